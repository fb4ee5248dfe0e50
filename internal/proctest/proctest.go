// Package proctest runs servers for tests: processes that end with the test, and
// also when the test's own process is killed, on ports that nobody takes first.
package proctest

import (
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// guard runs a command and signals it when standard input ends, which it does
// however the test ends. It exits when the command has.
const guard = `signal=$1; shift
"$@" </dev/null & pid=$!
exec 3<&0
{ read -r _ <&3; kill -s "$signal" "$pid"; } 2>/dev/null & watch=$!
while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
kill "$watch" 2>/dev/null; :`

// Server is a process to run.
type Server struct {
	Args    []string
	Log     string              // file for its output
	Signal  string              // that ends it: KILL, INT, …
	Account *syscall.Credential // to run under, nil for our own
}

// Start runs the server until the test ends. The channel is closed when it has
// ended, for whatever reason.
func Start(tb testing.TB, s Server) <-chan struct{} {
	tb.Helper()
	ended, end := StartEndable(tb, s)
	tb.Cleanup(end)
	return ended
}

// StartEndable is Start for a server that the caller ends. end returns when it has
// ended.
func StartEndable(tb testing.TB, s Server) (ended <-chan struct{}, end func()) {
	tb.Helper()
	log, err := os.Create(s.Log)
	if err != nil {
		tb.Fatalf("server log: %v", err)
	}
	lifeline, ours, err := os.Pipe()
	if err != nil {
		tb.Fatalf("server lifeline: %v", err)
	}
	cmd := exec.Command("sh", append([]string{"-c", guard, "sh", s.Signal}, s.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = lifeline, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.Account}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", s.Args[0], err)
	}
	_ = lifeline.Close() // the guard's copy is what counts
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait() // how it ended is in its log
	}()
	end = sync.OnceFunc(func() {
		_ = ours.Close() // the guard ends the server
		<-gone
		_ = log.Close() // nobody writes any more
	})
	return gone, end
}

// Ports finds n free ports outside the range that systems give to outgoing
// connections, so that nothing takes one before the server does.
func Ports(tb testing.TB, n int) []int {
	tb.Helper()
	const low, high, last = 10_000, 28_000, 32_000
	ports := make([]int, 0, n)
	for port := low + rand.IntN(high-low); len(ports) < n; port++ {
		if port > last {
			tb.Fatal("no free port")
		}
		probe, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // taken
		}
		_ = probe.Close() // the server takes it
		ports = append(ports, port)
	}
	return ports
}

// Unprivileged is an account for servers that refuse root, nil when we are not root.
func Unprivileged(tb testing.TB) *syscall.Credential {
	tb.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		account, err = user.Lookup("nobody")
	}
	if err != nil {
		tb.Fatalf("as root, an account is needed for what refuses root: %v", err)
	}
	uid, errUID := strconv.ParseUint(account.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(account.Gid, 10, 32)
	if errUID != nil || errGID != nil {
		tb.Fatalf("account %s has ids %s and %s", account.Username, account.Uid, account.Gid)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// Dir is a directory of the test's that belongs to the account, and that it can
// reach.
func Dir(tb testing.TB, account *syscall.Credential) string {
	tb.Helper()
	dir := tb.TempDir()
	if account == nil {
		return dir
	}
	if err := os.Chown(dir, int(account.Uid), int(account.Gid)); err != nil {
		tb.Fatalf("give directory to account: %v", err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		tb.Fatalf("open directory to account: %v", err)
	}
	return dir
}
