# Redis: a plain server without persistence, for the cache it is here.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

redis_start() {
	if redis_answers; then
		return 0
	fi
	command -v redis-server >/dev/null || install_or_say "Redis" redis-server
	stop redis redis-server 10
	mkdir -p "$state/redis"
	launch redis redis-server --bind 127.0.0.1 --port "$redis_port" --dir "$state/redis" \
		--save '' --appendonly no --daemonize no
}

redis_answers() {
	[ "$(timeout 2 bash -c '
		exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
		printf "PING\r\n" >&3
		head -c 5 <&3' probe "$redis_port" 2>/dev/null)" = +PONG ]
}

# Redis rewrites its own command line to this.
redis_alive() { ours redis redis-server >/dev/null; }

redis_wait() { wait_for Redis 30 redis_answers "$state/redis.log" redis_alive; }

redis_stop() { stop redis redis-server 10; }
