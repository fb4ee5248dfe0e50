package kafkatest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/certtest"
	"effectonce/internal/cuttest"
	"effectonce/internal/proctest"
)

// patience bounds a broker's start on a busy machine.
const patience = 3 * time.Minute

// Listener is one more door of a private broker, on 127.0.0.1.
type Listener struct {
	Name       string            // upper case
	Protocol   string            // PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
	Properties map[string]string // of this listener: without the prefix listener.name.….
	Proxied    bool              // clients come through a proxy that can cut them off
}

// Private is a real broker of the test's own. Addr is its PLAINTEXT listener.
type Private struct {
	Addr    string
	ports   map[string]int
	proxies map[string]*cuttest.Proxy
	data    string // directory
	args    []string
	kill    func()
}

// Proxy is the one before a proxied listener.
func (b *Private) Proxy(name string) *cuttest.Proxy { return b.proxies[name] }

// ListenerAddr is the host:port of a listener by name.
func (b *Private) ListenerAddr(name string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.ports[name]))
}

// Keystore are the properties of a TLS listener that shows the pair and trusts
// the authority for clients' certificates.
func Keystore(pair certtest.Pair, trust *certtest.CA) map[string]string {
	return map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": string(pair.Cert), "ssl.keystore.key": string(pair.Key),
		"ssl.truststore.type": "PEM", "ssl.truststore.certificates": string(trust.PEM),
	}
}

// StartPrivate starts a broker with more listeners and with properties that come
// before the usual ones, and ends it with the test. It needs the jars that
// scripts/services fetched, and java.
func StartPrivate(tb testing.TB, properties map[string]string, listeners ...Listener) *Private {
	tb.Helper()
	dir := tb.TempDir()
	all := append([]Listener{{Name: "PLAINTEXT", Protocol: "PLAINTEXT"}, {Name: "CONTROLLER", Protocol: "PLAINTEXT"}}, listeners...)
	b := &Private{ports: map[string]int{}, proxies: map[string]*cuttest.Proxy{}, kill: func() {}}
	for i, port := range proctest.Ports(tb, len(all)) {
		b.ports[all[i].Name] = port
		if all[i].Proxied {
			b.proxies[all[i].Name] = cuttest.Start(tb, b.ListenerAddr(all[i].Name))
		}
	}
	b.Addr = b.ListenerAddr("PLAINTEXT")
	config := filepath.Join(dir, "server.properties")
	set := b.settings(filepath.Join(dir, "data"), all)
	maps.Copy(set, properties)
	if err := os.WriteFile(config, encodeProperties(set), 0o600); err != nil {
		tb.Fatalf("write broker properties: %v", err)
	}
	class := java(setting(tb, envJars))
	format := exec.CommandContext(tb.Context(), "java", class("kafka.tools.StorageTool",
		"format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", config)...)
	if out, err := format.CombinedOutput(); err != nil {
		tb.Fatalf("format broker storage: %v\n%s", err, out)
	}
	b.data, b.args = filepath.Join(dir, "data"), append([]string{"java"}, class("kafka.Kafka", config)...)
	tb.Cleanup(func() { b.kill() }) // the one that runs then
	b.start(tb)
	return b
}

// start runs the broker and returns when it answers.
func (b *Private) start(tb testing.TB) {
	tb.Helper()
	log := b.data + ".log"
	ended, end := proctest.StartEndable(tb, proctest.Server{Args: b.args, Log: log, Signal: "KILL"})
	b.kill = end
	awaitBroker(tb, b.Addr, log, ended)
}

// Restart is kill -9 and a new start, with the same addresses and the same data, until
// tb ends. The broker is the coordinator of all groups and the leader of all partitions.
func (b *Private) Restart(tb testing.TB) {
	tb.Helper()
	b.kill()
	b.start(tb)
}

// LoseTail kills the broker, cuts each topic's partition 0 to a part of its bytes, and
// starts the broker again: what was not on the disk yet when the power failed. The new
// leader writes under a new epoch.
func (b *Private) LoseTail(tb testing.TB, keep float64, topics ...string) {
	tb.Helper()
	b.kill()
	for _, topic := range topics {
		file := filepath.Join(b.data, topic+"-0", "00000000000000000000.log")
		info, err := os.Stat(file)
		if err != nil {
			tb.Fatalf("find log: %v", err)
		}
		if err := os.Truncate(file, int64(keep*float64(info.Size()))); err != nil {
			tb.Fatalf("cut log: %v", err)
		}
	}
	b.start(tb)
}

// java makes the arguments that run a class: a small heap and no costly compiler.
func java(jars string) func(class string, args ...string) []string {
	return func(class string, args ...string) []string {
		return append([]string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"), class}, args...)
	}
}

// awaitBroker returns when the broker answers.
func awaitBroker(tb testing.TB, addr, logPath string, ended <-chan struct{}) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		tb.Fatalf("kafka client: %v", err)
	}
	defer client.Close()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := client.Ping(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
			continue
		case <-ended:
		case <-ctx.Done():
		}
		log, _ := os.ReadFile(logPath) // what there is of it
		tb.Fatalf("private broker did not start: %v\n%s", err, log)
	}
}

func (b *Private) settings(data string, listeners []Listener) map[string]string {
	set := map[string]string{
		"process.roles": "broker,controller", "node.id": "1", "log.dirs": data,
		"controller.quorum.voters":         "1@" + b.ListenerAddr("CONTROLLER"),
		"controller.listener.names":        "CONTROLLER",
		"inter.broker.listener.name":       "PLAINTEXT",
		"auto.create.topics.enable":        "false",
		"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "4",
		"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1",
		"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000",
	}
	var doors, advertised, protocols []string
	for _, l := range listeners {
		door := l.Name + "://" + b.ListenerAddr(l.Name)
		doors = append(doors, door)
		protocols = append(protocols, l.Name+":"+l.Protocol)
		switch {
		case l.Proxied:
			advertised = append(advertised, l.Name+"://"+b.proxies[l.Name].Addr())
		case l.Name != "CONTROLLER":
			advertised = append(advertised, door)
		}
		for key, value := range l.Properties {
			set["listener.name."+strings.ToLower(l.Name)+"."+key] = value
		}
	}
	set["listeners"] = strings.Join(doors, ",")
	set["advertised.listeners"] = strings.Join(advertised, ",")
	set["listener.security.protocol.map"] = strings.Join(protocols, ",")
	return set
}

// encodeProperties writes Java's format; values may have several lines.
func encodeProperties(set map[string]string) []byte {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	var b strings.Builder
	for key, value := range set {
		fmt.Fprintf(&b, "%s=%s\n", key, escape.Replace(value))
	}
	return []byte(b.String())
}
