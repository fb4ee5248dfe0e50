# Apache Kafka: one broker that is its own controller (KRaft), from the jars published on Maven Central.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

kafka_version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$here/services.d/pom.xml")
kafka_lib=$cache/kafka-$kafka_version/lib
kafka_home=$state/kafka

# kafka_jars fetches the jars once for all clones of this user; the directory appears whole or not at all.
kafka_jars() {
	[ ! -d "$kafka_lib" ] || return 0
	command -v java >/dev/null || install_or_say "a Java runtime (17 or newer)" default-jre-headless
	command -v mvn >/dev/null || install_or_say "Maven" maven
	local fresh=$cache/kafka-$kafka_version/fetch.$$
	say "fetching the jars of Kafka $kafka_version"
	mkdir -p "$fresh"
	mvn -q -B -f "$here/services.d/pom.xml" dependency:copy-dependencies \
		-DoutputDirectory="$fresh" -DincludeScope=runtime >"$state/maven.log" 2>&1 9>&- || {
		rm -rf -- "$fresh"
		tail -n 20 "$state/maven.log" >&2
		die "Maven could not fetch Kafka; its log is $state/maven.log"
	}
	mv "$fresh" "$kafka_lib"
}

kafka_start() {
	if kafka_answers; then
		return 0
	fi
	kafka_jars
	stop kafka "$kafka_home" 30
	mkdir -p "$kafka_home"
	kafka_properties >"$kafka_home/server.properties"
	if [ ! -e "$kafka_home/data/meta.properties" ]; then
		local id
		id=$(kafka_java kafka.tools.StorageTool random-uuid 2>/dev/null)
		kafka_java kafka.tools.StorageTool format -t "$id" -c "$kafka_home/server.properties" \
			>"$state/kafka.log" 2>&1 || die "Kafka's storage could not be formatted; see $state/kafka.log"
	fi
	local heap=${EFFECTONCE_KAFKA_HEAP:-512m}
	launch kafka java "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC -XX:MaxGCPauseMillis=20 \
		-XX:InitiatingHeapOccupancyPercent=35 -Djava.awt.headless=true \
		-Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true \
		-cp "$kafka_lib/*" kafka.Kafka "$kafka_home/server.properties"
}

kafka_java() { java -Xmx256m -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$kafka_lib/*" "$@" 9>&-; }

kafka_alive() { ours kafka "$kafka_home" >/dev/null; }

kafka_wait() { wait_for Kafka 90 kafka_answers "$state/kafka.log" kafka_alive; }

kafka_stop() { stop kafka "$kafka_home" 30; }

# kafka_answers sends a Metadata request (version 0, correlation id 1, no client id, all topics) and looks for at
# least one broker in the answer. A broker that still registers accepts connections but is not in its own list,
# and creating a topic would fail.
kafka_answers() {
	local answer
	answer=$(
		timeout 2 bash -c '
			exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
			printf "\0\0\0\016\0\003\0\0\0\0\0\001\377\377\0\0\0\0" >&3
			head -c 12 <&3 | od -An -v -tx1 | tr -d " \n"
		' probe "$kafka_port" 2>/dev/null
	) || return 1
	[[ $answer =~ ^[0-9a-f]{8}00000001([0-9a-f]{8})$ && ${BASH_REMATCH[1]} != 00000000 ]]
}

# Short sessions are allowed and the internal topics are small, because the tests kill members all the time.
kafka_properties() {
	cat <<-PROPERTIES
		process.roles=broker,controller
		node.id=1
		controller.quorum.voters=1@127.0.0.1:$kafka_controller_port
		listeners=PLAINTEXT://127.0.0.1:$kafka_port,CONTROLLER://127.0.0.1:$kafka_controller_port
		advertised.listeners=PLAINTEXT://127.0.0.1:$kafka_port
		listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
		inter.broker.listener.name=PLAINTEXT
		controller.listener.names=CONTROLLER
		log.dirs=$kafka_home/data
		auto.create.topics.enable=false
		offsets.topic.replication.factor=1
		offsets.topic.num.partitions=4
		transaction.state.log.replication.factor=1
		transaction.state.log.min.isr=1
		transaction.state.log.num.partitions=4
		share.coordinator.state.topic.replication.factor=1
		share.coordinator.state.topic.min.isr=1
		share.coordinator.state.topic.num.partitions=4
		group.initial.rebalance.delay.ms=0
		group.min.session.timeout.ms=1000
		group.consumer.min.session.timeout.ms=6000
		group.consumer.session.timeout.ms=6000
		group.consumer.min.heartbeat.interval.ms=500
		group.consumer.heartbeat.interval.ms=500
		offsets.retention.check.interval.ms=5000
	PROPERTIES
}
