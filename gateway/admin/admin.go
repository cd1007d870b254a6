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
)

// Options are what the program wires.
type Options struct {
	Logger   *slog.Logger        // nil discards
	Gatherer prometheus.Gatherer // nil has no metrics
	Health   func() Health       // asked by every request for it; it must not block
	API      http.Handler        // answers below /api/v1/; nil has none
}

// Server answers on the admin address.
type Server struct {
	cfg  Config
	log  *slog.Logger
	http *http.Server

	mu       sync.Mutex
	listener net.Listener
}

// New prepares a server. It answers from Run on.
func New(cfg Config, opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Gatherer == nil {
		opts.Gatherer = prometheus.NewRegistry()
	}
	s := &Server{cfg: cfg, log: opts.Logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, opts.Health())
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := opts.Health()
		status := http.StatusOK
		if !h.Ready {
			status = http.StatusServiceUnavailable
		}
		reply(w, status, h)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 8, // a scrape is one; more of them at the same time are a mistake that costs memory
	}))
	if opts.API != nil {
		mux.Handle("/api/v1/", opts.API)
	}
	if cfg.Profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index) // named profiles too: heap, goroutine, mutex
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
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
	s.listener = newFrugal(l, s.log)
	s.mu.Unlock()
	s.log.Info("listening", "address", l.Addr().String())
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
	l := s.listener
	s.mu.Unlock()
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// closeGrace is for a scrape to end. Health and metrics are asked for again; no stop waits long for who asked.
const closeGrace = 2 * time.Second

// Close lets running requests end, but not for longer than closeGrace, then cuts them. It may be called twice, and before Run.
func (s *Server) Close(ctx context.Context) error {
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
