package demo

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// teller says what happens: a bar on a terminal, else a line every ten seconds,
// and in both cases a line for each event.
type teller struct {
	w   io.Writer
	p   *message.Printer
	bar *progressbar.ProgressBar // nil without a terminal

	mu sync.Mutex // guards w and bar
}

func newTeller(w io.Writer, total int64) *teller {
	t := &teller{w: w, p: message.NewPrinter(language.English)}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		t.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(30),
			progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
	}
	return t
}

// line prints one line, with digits in groups.
func (t *teller) line(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		_ = t.bar.Clear() // the display is a courtesy
	}
	_, _ = t.p.Fprintf(t.w, format+"\n", args...)
}

// watch shows the progress of the flows until they have finished.
func (t *teller) watch(finished <-chan struct{}, ours, naive *flow) {
	every := 10 * time.Second
	if t.bar != nil {
		every = 200 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			t.finish()
			return
		case <-tick.C:
			t.show(ours, naive)
		}
	}
}

func (t *teller) show(ours, naive *flow) {
	state := func(f *flow) string {
		return fmt.Sprintf("%3d %%, %d kills", 100*f.at.Load()/f.total, f.kills.Load())
	}
	text := "effectonce " + state(ours) + "; at-least-once " + state(naive)
	if t.bar == nil {
		t.line("%s", text)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bar.Describe(text)
	_ = t.bar.Set64(ours.at.Load() + naive.at.Load()) // the display is a courtesy
}

func (t *teller) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		_ = t.bar.Clear()
	}
}
