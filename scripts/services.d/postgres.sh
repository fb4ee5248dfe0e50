# PostgreSQL: a cluster of its own with a private data directory.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

# postgres_bin sets pg_bin to the directory with the server's programs: the one asked for, else the newest of
# Debian's, else the one on PATH.
postgres_bin() {
	local dir
	pg_bin=
	for dir in "${EFFECTONCE_PG_BIN:-}" \
		$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5,5nr) \
		"$(dirname "$(command -v initdb 2>/dev/null)" 2>/dev/null)"; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/pg_ctl" ]; then
			pg_bin=$dir
			return 0
		fi
	done
	return 1
}

# as_postgres runs the server's programs: initdb and postgres refuse root, so there it is Debian's postgres user.
as_postgres() {
	if [ "$(id -u)" -eq 0 ]; then
		(cd / && runuser -u postgres -- "$@" 9>&-)
	else
		"$@" 9>&-
	fi
}

# postgres_home sets pg_home to a directory that the server's user can reach. Root's clones often lie below a
# directory that is closed to everybody else; then it is one in /var/tmp, remembered in .services/postgres.home.
postgres_home() {
	pg_home=$(cat "$state/postgres.home" 2>/dev/null || true)
	if [ -n "$pg_home" ] && [ -d "$pg_home" ]; then
		return 0
	fi
	pg_home=$state/postgres
	if [ "$(id -u)" -eq 0 ] && ! as_postgres test -x "$state"; then
		pg_home=$(mktemp -d /var/tmp/effectonce.XXXXXXXX)
	fi
	mkdir -p "$pg_home"
	if [ "$(id -u)" -eq 0 ]; then
		chown postgres: "$pg_home"
	fi
	echo "$pg_home" >"$state/postgres.home"
}

postgres_start() {
	if postgres_answers; then
		return 0
	fi
	if ! postgres_bin; then
		install_or_say "a PostgreSQL server (14 or newer)" postgresql
		postgres_bin || die "the package postgresql brought no server under /usr/lib/postgresql"
	fi
	postgres_home
	if [ ! -e "$pg_home/data/PG_VERSION" ]; then
		as_postgres "$pg_bin/initdb" -D "$pg_home/data" --username=postgres --auth=trust --encoding=UTF8 \
			--no-locale >"$state/postgres.log" 2>&1 || {
			tail -n 20 "$state/postgres.log" >&2
			die "initdb did not make a cluster in $pg_home/data"
		}
	fi
	postgres_settings | as_postgres tee "$pg_home/data/postgresql.conf" >/dev/null
	as_postgres "$pg_bin/pg_ctl" start -D "$pg_home/data" -l "$pg_home/log" -W </dev/null >/dev/null
}

# What a production server has that the promise rests on (fsync, full_page_writes, synchronous_commit) is spelled
# out, so that nobody's default takes it away.
postgres_settings() {
	cat <<-SETTINGS
		listen_addresses = '127.0.0.1'
		port = $postgres_port
		unix_socket_directories = ''
		max_connections = 200
		fsync = on
		full_page_writes = on
		synchronous_commit = on
		wal_level = replica
		max_wal_senders = 10
		shared_buffers = '256MB'
		max_wal_size = '4GB'
		timezone = 'UTC'
		log_timezone = 'UTC'
		log_line_prefix = '%m [%p] %a '
	SETTINGS
}

postgres_answers() {
	# An SSLRequest and its one-byte answer; a server that still recovers answers it too, so pg_isready is better.
	if postgres_bin && [ -x "$pg_bin/pg_isready" ]; then
		"$pg_bin/pg_isready" -q -h 127.0.0.1 -p "$postgres_port" -t 2
		return
	fi
	[ "$(timeout 2 bash -c '
		exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
		printf "\0\0\0\010\004\322\026\057" >&3
		head -c 1 <&3' probe "$postgres_port" 2>/dev/null)" = N ]
}

postgres_alive() { as_postgres "$pg_bin/pg_ctl" status -D "$pg_home/data" >/dev/null 2>&1; }

postgres_wait() { wait_for PostgreSQL 60 postgres_answers "${pg_home:-$state/postgres}/log" postgres_alive; }

postgres_stop() {
	pg_home=$(cat "$state/postgres.home" 2>/dev/null) && [ -d "$pg_home/data" ] && postgres_bin || return 0
	if postgres_alive; then
		as_postgres "$pg_bin/pg_ctl" stop -D "$pg_home/data" -m fast -w -t 60 >/dev/null ||
			die "PostgreSQL did not stop within 60s; its data is in $pg_home/data"
		say "postgres stopped"
	fi
}

# Tests start PgBouncer themselves; here it is only installed. Who may not install it reads that in their output.
pgbouncer_install() {
	if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ ! -x /usr/sbin/pgbouncer ] && ! command -v pgbouncer >/dev/null; then
		install_or_say "PgBouncer" pgbouncer
	fi
}
