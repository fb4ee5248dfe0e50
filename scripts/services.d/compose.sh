# The same three services as containers, where a Docker engine answers.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

use_compose() {
	case "${EFFECTONCE_SERVICES:-auto}" in
	local) return 1 ;;
	compose) return 0 ;;
	esac
	command -v docker >/dev/null &&
		timeout 10 docker info >/dev/null 2>&1 9>&- &&
		docker compose version >/dev/null 2>&1 9>&-
}

compose() {
	EFFECTONCE_POSTGRES_PORT=$postgres_port EFFECTONCE_KAFKA_PORT=$kafka_port EFFECTONCE_REDIS_PORT=$redis_port \
		docker compose -f "$root/docker-compose.yml" "$@" 9>&-
}

compose_up() {
	compose up --detach --wait --wait-timeout 180 kafka postgres redis ||
		die "docker compose did not bring kafka, postgres and redis up; see docker compose logs"
	echo compose >"$state/mode"
	# Some tests start brokers with settings of their own, from the jars.
	if command -v mvn >/dev/null && command -v java >/dev/null; then
		kafka_jars
	fi
}

compose_down() {
	if [ "$1" = --data ]; then
		compose down --volumes
	else
		compose stop kafka postgres redis
	fi
}
