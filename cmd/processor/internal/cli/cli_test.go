package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"effectonce/cmd/processor/internal/exit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is what a caller of the program sees.
type result struct {
	code           int
	stdout, stderr string
}

// processor runs a command line the way main does.
func processor(t *testing.T, args ...string) result {
	t.Helper()
	root := Root(&cobra.Command{Use: "other", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	if err != nil {
		stderr.WriteString(Message(err) + "\n")
	}
	return result{exit.Code(err), stdout.String(), stderr.String()}
}

// write puts a configuration into a file.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const offline = `
pipeline: orders
kafka: {brokers: ["127.0.0.1:9092"], topics: [orders]}
postgres: {host: 127.0.0.1, database: app, user: effectonce, password: hunter2}
key: order_id
sink: {table: {name: orders, columns: {order_id: order_id}}}
`

func TestExitCodes(t *testing.T) {
	good := write(t, offline)
	bad := write(t, strings.Replace(offline, "pipeline", "pipelin", 1))
	for _, c := range []struct {
		name string
		args []string
		code int
		says string // on standard error
	}{
		{"no verb", nil, exit.UsageError, "which verb?"},
		{"unknown verb", []string{"vlidate"}, exit.UsageError, "did you mean validate?"},
		{"unknown verb below", []string{"migrate", "upp"}, exit.UsageError, "did you mean up?"},
		{"no verb below", []string{"config"}, exit.UsageError, "which verb?"},
		{"unknown flag", []string{"validate", "--ofline", good}, exit.UsageError, "--ofline"},
		{"too many files", []string{"validate", good, good}, exit.UsageError, "at most 1"},
		{"argument of another package's verb", []string{"other", "x"}, exit.UsageError, "unknown command"},
		{"no file", []string{"validate"}, exit.UsageError, "Give its FILE"},
		{"file twice", []string{"validate", good, "--config", good}, exit.UsageError, "give one"},
		{"unknown output", []string{"version", "-o", "xml"}, exit.UsageError, "table or json"},
		{"bad address", []string{"healthcheck", "--url", "127.0.0.1:1"}, exit.UsageError, "--url wants"},
		{"bad duration", []string{"healthcheck", "--timeout", "soon"}, exit.UsageError, "soon"},
		{"help", []string{"--help"}, exit.OK, ""},
		{"help of a verb", []string{"migrate", "up", "--help"}, exit.OK, ""},
		{"version", []string{"version"}, exit.OK, ""},
		{"valid", []string{"validate", "--offline", good}, exit.OK, ""},
		{"valid by flag", []string{"validate", "--offline", "-c", good}, exit.OK, ""},
		{"faults", []string{"validate", "--offline", bad}, exit.Config, bad + ":2:1: pipelin: unknown setting, did you mean pipeline?"},
		{"faults of another verb", []string{"config", "print", bad}, exit.Config, "did you mean pipeline?"},
		{"missing file", []string{"validate", "/nowhere.yaml"}, exit.Config, "/nowhere.yaml: no such file"},
		{"a flag that does not fit", []string{"validate", "--offline", good, "--log-level", "loud"}, exit.Config, "--log-level: log.level: wants"},
		{"set", []string{"validate", "--offline", good, "--set", "committers=many"}, exit.Config, "--set committers: committers"},
		{"script", []string{"migrate", "sql", good}, exit.OK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := processor(t, c.args...)
			if got.code != c.code {
				t.Errorf("exit code %d, want %d\n%s", got.code, c.code, got.stderr)
			}
			if !strings.Contains(got.stderr, c.says) || strings.Count(got.stderr, "processor: ") > 1 {
				t.Errorf("want %q once on stderr, got\n%s", c.says, got.stderr)
			}
			if (c.code == exit.OK) != (got.stderr == "") {
				t.Errorf("exit code %d and stderr\n%s", got.code, got.stderr)
			}
		})
	}
}

// What init prints is valid once its variable is set.
func TestInitIsValid(t *testing.T) {
	t.Setenv("EFFECTONCE_DSN", "postgres://effectonce@127.0.0.1/app")
	file := write(t, processor(t, "init").stdout)
	if got := processor(t, "validate", file, "--offline"); got.code != exit.OK {
		t.Error(got.stderr)
	}
}

func TestConfigPrint(t *testing.T) {
	t.Setenv("EFFECTONCE_KAFKA__GROUP", "from-the-environment")
	file := write(t, offline)
	text := processor(t, "config", "print", file, "--set", "committers=3")
	for _, want := range []string{"# EFFECTONCE_KAFKA__GROUP\n", "group: from-the-environment", "# --set committers\ncommitters: 3", file + ":4:72", `password: "***"`} {
		if !strings.Contains(text.stdout, want) {
			t.Errorf("no %q in\n%s", want, text.stdout)
		}
	}
	var printed struct {
		Config  map[string]any    `json:"config"`
		Origins map[string]string `json:"origins"`
	}
	asJSON := processor(t, "config", "print", file, "-o", "json")
	if err := json.Unmarshal([]byte(asJSON.stdout), &printed); err != nil {
		t.Fatal(err)
	}
	if printed.Config["pipeline"] != "orders" || printed.Origins["kafka.group"] != "EFFECTONCE_KAFKA__GROUP" || printed.Origins["log.level"] != "default" {
		t.Errorf("got %s", asJSON.stdout)
	}
	if strings.Contains(text.stdout+asJSON.stdout, "hunter2") {
		t.Error("the password is printed")
	}
}

func TestVersionFields(t *testing.T) {
	var got map[string]any
	if err := json.Unmarshal([]byte(processor(t, "version", "-o", "json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"dirty", "go", "platform", "revision", "version"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestSchemaIsJSON(t *testing.T) {
	var got map[string]any
	if err := json.Unmarshal([]byte(processor(t, "config", "schema").stdout), &got); err != nil || got["properties"] == nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestHealthcheck(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte("orders/3 stopped: the topic was recreated"))
	}))
	defer server.Close()
	if got := processor(t, "healthcheck", "--url", server.URL); got.code != exit.OK {
		t.Errorf("ready: %d, %s", got.code, got.stderr)
	}
	status = http.StatusServiceUnavailable
	if got := processor(t, "healthcheck", "--url", server.URL+"/"); got.code != exit.Refused || !strings.Contains(got.stderr, "orders/3 stopped") {
		t.Errorf("not ready: %d, %s", got.code, got.stderr)
	}
	if got := processor(t, "healthcheck", "--url", "http://"+deadAddress(t)); got.code != exit.Unavailable {
		t.Errorf("no answer: %d, %s", got.code, got.stderr)
	}
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	status = http.StatusOK
	for _, listen := range []string{"127.0.0.1", "0.0.0.0"} {
		file := write(t, offline+"admin: {allow_remote: true, listen: '"+listen+":"+port+"'}\n")
		if got := processor(t, "healthcheck", file); got.code != exit.OK {
			t.Errorf("%s in FILE: %d, %s", listen, got.code, got.stderr)
		}
		if got := processor(t, "healthcheck", file, "--url", server.URL); got.code != exit.UsageError {
			t.Errorf("FILE and --url: %d, %s", got.code, got.stderr)
		}
	}
}

// An address for all interfaces is listened on, not asked.
func TestReachable(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:9464": "127.0.0.1:9464", "0.0.0.0:9464": "127.0.0.1:9464", "[::]:9464": "[::1]:9464", ":9464": "127.0.0.1:9464",
		"10.0.0.5:1": "10.0.0.5:1", "[::1]:1": "[::1]:1", "localhost:1": "localhost:1",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("%s is asked at %s, want %s", listen, got, want)
		}
	}
}

// deadAddress is one that nobody listens on.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return addr
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := processor(t, "completion", shell); got.code != exit.OK || len(got.stdout) < 1000 {
			t.Errorf("%s: %d, %d bytes", shell, got.code, len(got.stdout))
		}
	}
	for line, want := range map[string]string{"validate --log-level ": "debug", "version -o ": "json", "migrate ": "status", "val": "validate"} {
		if got := processor(t, append([]string{"__complete"}, strings.Split(line, " ")...)...); !strings.Contains(got.stdout, want) {
			t.Errorf("%q completes to %q", line, got.stdout)
		}
	}
}
