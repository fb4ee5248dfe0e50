# What every service needs: messages, the lock, bounded waits, processes that outlive the shell that started them.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

say() { printf 'services: %s\n' "$*" >&2; }

die() {
	say "$*"
	exit 1
}

# One `up` or `down` at a time for this user, whatever clone it is called from: two clones share the ports.
lock() {
	mkdir -p "$state" "$cache"
	exec 9>"$cache/services.lock"
	if command -v flock >/dev/null; then
		flock -w 600 9 || die "another scripts/services has held $cache/services.lock for 10 minutes"
	fi
}

# wait_for NAME SECONDS CHECK LOG ALIVE: polls CHECK five times a second; shows the end of LOG when ALIVE fails or
# the time is over.
wait_for() {
	local name=$1 seconds=$2 check=$3 log=$4 alive=$5
	local deadline=$((SECONDS + seconds))
	until "$check"; do
		if ! "$alive" && ! "$check"; then
			tail -n 20 "$log" >&2 2>/dev/null || true
			die "$name ended while starting; its log is $log"
		fi
		if [ "$SECONDS" -ge "$deadline" ]; then
			tail -n 20 "$log" >&2 2>/dev/null || true
			die "$name did not answer within ${seconds}s; its log is $log"
		fi
		sleep 0.2
	done
}

# launch NAME COMMAND...: starts COMMAND in a session of its own, so that it survives this shell and its terminal,
# with its pid in .services/NAME.pid and its output in .services/NAME.log. The lock is not handed on.
launch() {
	local name=$1 session=()
	shift
	command -v setsid >/dev/null && session=(setsid)
	# shellcheck disable=SC2016
	"${session[@]}" nohup bash -c 'echo $$ >"$1"; shift; exec "$@"' launch "$state/$name.pid" "$@" \
		</dev/null >"$state/$name.log" 2>&1 9>&- &
	local deadline=$((SECONDS + 10))
	until [ -s "$state/$name.pid" ]; do
		[ "$SECONDS" -lt "$deadline" ] || die "$name was not started; see $state/$name.log"
		sleep 0.05
	done
}

# ours NAME MARK: prints the pid of the process that `launch` started. MARK has to be in its command line, since
# the system may have given the pid to somebody else after a restart of the machine.
ours() {
	local pid
	pid=$(cat "$state/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
	command_line "$pid" | grep -qF -- "$2" || return 1
	echo "$pid"
}

command_line() {
	if [ -d /proc/self ]; then
		tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" || true
	else
		ps -p "$1" -o args= 2>/dev/null || true
	fi
}

# stop NAME MARK SECONDS: SIGTERM to the process that `launch` started, and SIGKILL when the time is over.
stop() {
	local name=$1 mark=$2 deadline=$((SECONDS + $3)) pid
	if pid=$(ours "$name" "$mark"); then
		kill -TERM "$pid" 2>/dev/null || true
		while ours "$name" "$mark" >/dev/null; do
			if [ "$SECONDS" -ge "$deadline" ]; then
				say "$name (pid $pid) did not end on SIGTERM, killing it"
				kill -KILL "$pid" 2>/dev/null || true
				break
			fi
			sleep 0.1
		done
		say "$name stopped"
	fi
	rm -f "$state/$name.pid"
}

# The env file is read by people (`. .services/env`) and by the tests. It is replaced in one step, so that nobody
# reads half of it.
write_env() {
	{
		echo "export EFFECTONCE_TEST_POSTGRES=postgres://postgres@127.0.0.1:$postgres_port/postgres?sslmode=disable"
		echo "export EFFECTONCE_TEST_KAFKA=127.0.0.1:$kafka_port"
		echo "export EFFECTONCE_TEST_REDIS=127.0.0.1:$redis_port"
		# For tests that start a broker or a cluster with settings of their own.
		[ ! -d "$kafka_lib" ] || echo "export EFFECTONCE_TEST_KAFKA_LIB=$kafka_lib"
		! postgres_bin || echo "export EFFECTONCE_TEST_POSTGRES_BIN=$pg_bin"
	} >"$state/env.new"
	mv "$state/env.new" "$state/env"
}

remove_data() {
	local away
	away=$(cat "$state/postgres.home" 2>/dev/null || true)
	case "$away" in
	/var/tmp/effectonce.*) rm -rf -- "$away" ;;
	esac
	rm -rf -- "$state/kafka" "$state/postgres" "$state/redis" "$state/postgres.home"
}
