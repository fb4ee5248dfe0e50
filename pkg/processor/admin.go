package processor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// admin answers /livez, /readyz?verbose and /metrics, from before a dependency is
// asked for the first time until the end.
type admin struct {
	cfg      Config
	listener net.Listener // nil: nobody is answered

	mu     sync.Mutex // guards what follows
	p      *Processor // nil while it is being opened
	reason string     // why it is not open yet
}

// listenAdmin takes the admin address, if one is configured.
func listenAdmin(ctx context.Context, cfg Config) (*admin, error) {
	a := &admin{cfg: cfg, reason: "starting"}
	if cfg.Admin == "" {
		return a, nil
	}
	var err error
	if a.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.Admin); err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	return a, nil
}

// waits says what opening waits for.
func (a *admin) waits(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reason = "waiting for " + oneLine(err)
}

// reopens says why the pipeline is opened again.
func (a *admin) reopens(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.p, a.reason = nil, "opening again: "+oneLine(err)
}

// opened has the processor answer.
func (a *admin) opened(p *Processor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.p = p
}

func (a *admin) processor() (*Processor, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.p, a.reason
}

// serve answers until ctx ends.
func (a *admin) serve(ctx context.Context) error {
	if a.listener == nil {
		return nil
	}
	srv := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second}
	eg, ectx := errgroup.WithContext(ctx)
	eg.Go(func() error {
		if err := srv.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("admin address: %w", err)
		}
		return nil
	})
	eg.Go(func() error {
		<-ectx.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return srv.Shutdown(limited)
	})
	return eg.Wait()
}

func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if p, _ := a.processor(); p != nil {
			if err := p.health.live(time.Now()); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		_, _ = io.WriteString(w, "ok\n") // a client that is gone misses it
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		p, reason := a.processor()
		if p == nil {
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		now := time.Now()
		faults, still := p.ready(now)
		if len(faults)+len(still) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		p.report(w, r.URL.Query().Has("verbose"), faults, still, now)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.cfg.Registry, promhttp.HandlerOpts{}))
	return mux
}
