# Debian packages, installed only when a binary is missing and only by root.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

# install_or_say WHAT PACKAGE...: installs the packages or ends with what a person has to install.
install_or_say() {
	local what=$1
	shift
	if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
		die "$what is missing: install it (Debian: apt-get install $*) or use a Docker engine"
	fi
	say "installing $*"
	quiet_install "$@" >"$state/apt.log" 2>&1 || {
		tail -n 20 "$state/apt.log" >&2
		die "apt-get could not install $*; its log is $state/apt.log"
	}
}

# quiet_install keeps the packages from starting daemons of their own: Debian's PostgreSQL would bring a cluster
# on port 5432 and Redis a server on 6379, and both might meet something that a person runs there.
quiet_install() (
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	clusters=/etc/postgresql-common/createcluster.conf
	if [ ! -e "$clusters" ] && ! dpkg -s postgresql-common >/dev/null 2>&1; then
		mkdir -p "$(dirname "$clusters")"
		echo 'create_main_cluster = false' >"$clusters"
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt=(apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold -y)
	"${apt[@]}" update 9>&-
	"${apt[@]}" install --no-install-recommends "$@" 9>&-
)
