package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/proctest"
)

// member is one process of the group. It outlives its processes: start after kill
// is a restart with the same configuration.
type member struct {
	w      *world
	name   string
	proxy  *pgproxytest.Proxy // its way to Postgres
	admin  string             // host:port
	config string             // path
	log    string             // path
	set    []string           // settings over those of the file, as name=value

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone
	ending bool          // its end is expected
}

// member prepares one more member.
func (w *world) member() *member {
	w.t.Helper()
	m := &member{w: w, name: fmt.Sprintf("member-%d", len(w.members)), proxy: pgproxytest.Start(w.t, w.postgres()), admin: fmt.Sprintf("127.0.0.1:%d", proctest.Ports(w.t, 1)[0])}
	m.config, m.log = filepath.Join(w.dir, m.name+".yaml"), filepath.Join(w.dir, m.name+".log")
	if err := os.WriteFile(m.config, []byte(w.settings(m)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.members = append(w.members, m)
	return m
}

// start starts a new member, with settings of its own.
func (w *world) start(set ...string) *member {
	w.t.Helper()
	m := w.member()
	m.set = set
	m.start()
	return m
}

func (m *member) start() {
	t := m.w.t
	t.Helper()
	binary, err := m.w.binary()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	args := []string{"run", m.config}
	for _, s := range m.set {
		args = append(args, "--set", s)
	}
	m.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	m.cmd.Env = append(os.Environ(), m.w.env...)
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.SysProcAttr = log, log, dieWithUs()
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.ending, m.exited = false, make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in ProcessState
	}(m.cmd, m.exited)
}

func (m *member) pid() int { return m.cmd.Process.Pid }

func (m *member) signal(s syscall.Signal) {
	m.w.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.w.t.Fatalf("%s: signal %v: %v", m.name, s, err)
	}
}

// kill is kill -9.
func (m *member) kill() {
	m.w.t.Helper()
	m.ending = true
	m.signal(syscall.SIGKILL)
	m.gone()
}

// stop asks the member to finish and returns its exit code.
func (m *member) stop() int {
	m.w.t.Helper()
	m.ending = true
	m.signal(syscall.SIGTERM)
	return m.gone()
}

// gone waits for the process to end.
func (m *member) gone() int {
	m.w.t.Helper()
	m.ending = true
	select {
	case <-m.exited:
	case <-time.After(patience):
		m.w.t.Fatalf("%s does not end", m.name)
	}
	return m.cmd.ProcessState.ExitCode()
}

func (m *member) running() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

// end ends what is left, at the end of the test.
func (m *member) end() {
	if m.running() {
		_ = m.cmd.Process.Kill() // gone meanwhile is as good
		<-m.exited
	}
}

// fired waits for the fault that was armed in the member's proxy.
func (m *member) fired() {
	m.w.t.Helper()
	select {
	case <-m.proxy.Fired():
	case <-time.After(patience):
		m.w.t.Fatalf("%s: the fault did not find its statement", m.name)
	}
}

// get asks the admin address; empty while it does not answer.
func (m *member) get(path string) string {
	ctx, cancel := context.WithTimeout(m.w.t.Context(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.admin+path, http.NoBody)
	if err != nil {
		m.w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or of no use
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

// metric is a sample of /metrics by its name with labels, 0 if there is none.
func (m *member) metric(name string) float64 {
	for line := range strings.Lines(m.get("/metrics")) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				m.w.t.Fatalf("%s: %v", line, err)
			}
			return n
		}
	}
	return 0
}

// output is everything the member wrote.
func (m *member) output() string {
	b, err := os.ReadFile(m.log)
	if err != nil {
		return ""
	}
	return string(b)
}

// tail is the end of the member's log.
func (m *member) tail(lines int) string {
	all := bytes.Split(bytes.TrimSpace([]byte(m.output())), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
