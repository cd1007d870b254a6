package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// Options are what the program wires.
type Options struct {
	Logger   *slog.Logger        // nil discards
	Gatherer prometheus.Gatherer // nil has no metrics
	Health   func() Health       // asked by every request for it; it must not block
	API      http.Handler        // answers below /api/v1/; nil has none
	Token    string              // of who may know everything, with Config.RequireAuth
}

// Server answers on the admin address.
type Server struct {
	cfg   Config
	log   *slog.Logger
	http  *http.Server
	token string

	once   sync.Once
	closed chan struct{}

	mu       sync.Mutex
	listener net.Listener
	tls      *transport.TLS // nil without; set by Listen
}

// New prepares a server. It answers from Run on.
func New(cfg Config, opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Gatherer == nil {
		opts.Gatherer = prometheus.NewRegistry()
	}
	s := &Server{cfg: cfg, log: opts.Logger, token: opts.Token, closed: make(chan struct{})}
	mux := http.NewServeMux()
	health := func(r *http.Request) Health {
		h := opts.Health()
		if s.knows(r) {
			return h
		}
		return Health{Status: h.Status, Ready: h.Ready} // enough for who restarts or routes by it
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, health(r))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		h := health(r)
		status := http.StatusOK
		if !h.Ready {
			status = http.StatusServiceUnavailable
		}
		reply(w, status, h)
	})
	mux.Handle("GET /metrics", s.guarded(promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 8, // a scrape is one; more of them at the same time are a mistake that costs memory
	})))
	if opts.API != nil {
		mux.Handle("/api/v1/", opts.API)
	}
	if cfg.Profiling {
		mux.Handle("GET /debug/pprof/", s.guarded(http.HandlerFunc(pprof.Index))) // named profiles too: heap, goroutine, mutex
		mux.Handle("GET /debug/pprof/profile", s.guarded(http.HandlerFunc(pprof.Profile)))
		mux.Handle("GET /debug/pprof/trace", s.guarded(http.HandlerFunc(pprof.Trace)))
	}
	s.http = &http.Server{
		Handler:           cfg.guard(mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // a slow scraper, not a dead one
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	return s
}

// reply writes h for people too: it is read with curl at three in the morning.
func reply(w http.ResponseWriter, status int, h Health) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(h) // who asked has gone: nobody is left to tell
}

// Listen takes the address, so that a port in use is told before anything else starts.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	frugal := newFrugal(l, s.log)
	if s.listener, err = s.secure(frugal); err != nil {
		return errors.Join(fmt.Errorf("admin: %w", err), frugal.Close())
	}
	s.log.Info("listening", "address", l.Addr().String(), "tls", s.tls != nil)
	return nil
}

// Addr is the address that Listen took, nil before.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// Run answers requests until Close. Listen comes first.
func (s *Server) Run() error {
	s.mu.Lock()
	l, secure := s.listener, s.tls != nil
	s.mu.Unlock()
	if secure {
		var wg sync.WaitGroup
		wg.Go(s.watch)
		defer wg.Wait()
		defer s.end()
	}
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// closeGrace is for a scrape to end. Health and metrics are asked for again; no stop waits long for who asked.
const closeGrace = 2 * time.Second

// Close lets running requests end, but not for longer than closeGrace, then cuts them. It may be called twice, and before Run.
func (s *Server) Close(ctx context.Context) error {
	s.end()
	ctx, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	var err error
	if s.http.Shutdown(ctx) != nil {
		s.log.Debug("requests cut")
		err = s.http.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close() // not known to the HTTP server when Run was never called
	}
	return err
}

func (s *Server) end() { s.once.Do(func() { close(s.closed) }) }
