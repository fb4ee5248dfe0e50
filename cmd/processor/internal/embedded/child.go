package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Spec says which program to start and how.
type Spec struct {
	Name    string   // for messages
	Path    string   // of the executable
	Args    []string // without the program's name
	Env     []string // nil is our own
	Dir     string   // working directory, empty is our own
	Log     string   // file that its output is appended to
	Orders  any      // first line of its standard input, as JSON; nil is none
	Answers bool     // the first line of its standard output is for Answer, not for Log
	Account *Account // nil is our own

	// Orphaned is the signal the kernel sends when we die (Linux only); 0 is none.
	Orphaned syscall.Signal
}

// Child is a running program. Its standard input stays open until Stop or Kill.
type Child struct {
	spec   Spec
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *os.File // nil unless it answers
	done   chan struct{}
	err    error // of the exit; read it after done
}

// Start starts the program in a process group of its own, so that an interrupt at
// the terminal reaches us alone.
func Start(spec Spec) (*Child, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor

	c := &Child{spec: spec, cmd: exec.Command(spec.Path, spec.Args...), done: make(chan struct{})} //nolint:gosec,noctx // our own binary; Stop ends it
	c.cmd.Env, c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = spec.Env, spec.Dir, log, log
	c.cmd.SysProcAttr = attributes(spec.Orphaned)
	if spec.Account != nil {
		c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: spec.Account.UID, Gid: spec.Account.GID}
	}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("input of %s: %w", spec.Name, err)
	}
	c.stdin = stdin
	if spec.Answers {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("output of %s: %w", spec.Name, err)
		}
		defer func() { _ = w.Close() }()
		c.stdout, c.cmd.Stdout = r, w
	}
	if err := c.cmd.Start(); err != nil {
		c.release()
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	go func() { // ends with the process, which Stop and Kill wait for
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	if spec.Orders != nil {
		if err := json.NewEncoder(stdin).Encode(spec.Orders); err != nil {
			return nil, errors.Join(fmt.Errorf("orders for %s: %w", spec.Name, err), c.Kill())
		}
	}
	return c, nil
}

// Answer waits for the first line of the child's output and reads it into v. It is
// called once, and fails with the end of the child's log if the child ends first.
func (c *Child) Answer(ctx context.Context, v any) error {
	stop := context.AfterFunc(ctx, func() { _ = c.stdout.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(c.stdout).ReadBytes('\n')
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not get ready: %w%s", c.spec.Name, context.Cause(ctx), c.Tail())
	case err != nil: // the pipe closed
		<-c.done
		return c.Died()
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("answer of %s: %w", c.spec.Name, err)
	}
	return nil
}

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// PID is the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Died is the error of a child that ended although nobody asked it to, with the
// last lines of its log. Done is closed.
func (c *Child) Died() error {
	how := "exit status 0"
	if c.err != nil {
		how = c.err.Error()
	}
	return fmt.Errorf("%s ended by itself: %s%s", c.spec.Name, how, c.Tail())
}

// Signal sends the process a signal; one that is gone takes none.
func (c *Child) Signal(s syscall.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", c.spec.Name, err)
	}
	return nil
}

// Kill ends the process as kill -9 does and waits for its end.
func (c *Child) Kill() error {
	err := c.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-c.done
	c.release()
	return err
}

// Hush closes the child's input, as our death would.
func (c *Child) Hush() { _ = c.stdin.Close() }

// Stop asks the process to end, by the end of its input and by SIGTERM, and kills
// it after grace. It returns how the process ended if that was not well.
func (c *Child) Stop(grace time.Duration) error {
	c.Hush()
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // the process may be gone
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
		c.release()
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not end within %s%s", c.spec.Name, grace, c.Tail()), c.Kill())
	}
	if c.err != nil {
		return fmt.Errorf("%s: %w%s", c.spec.Name, c.err, c.Tail())
	}
	return nil
}

func (c *Child) release() {
	_ = c.stdin.Close()
	if c.stdout != nil {
		_ = c.stdout.Close()
	}
}

// Tail is the end of the child's log, ready to follow an error's text.
func (c *Child) Tail() string { return Tail(c.spec.Log) }

// Tail returns the last lines of a log file, indented, behind a heading line; empty
// if there are none.
func Tail(path string) string {
	const lines, bytes = 12, 8 << 10
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-bytes), io.SeekStart)
	}
	text, _ := io.ReadAll(f)
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if all = all[max(0, len(all)-lines):]; len(all) == 1 && all[0] == "" {
		return ""
	}
	return "\nlast lines of " + path + ":\n  " + strings.Join(all, "\n  ")
}

// PlainEnv is our environment without settings of a pipeline or of Postgres'
// clients, which would be stronger than the configuration.
func PlainEnv() []string {
	env := []string{}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "EFFECTONCE_") && !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	return env
}
