package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"service/store"
	"service/store/replica"
)

// MinLease is the shortest lease. It leaves time for several renewals.
const MinLease = 5 * time.Second

// leaseReserve is how long before the expiry of its lease a service stops. It covers the time to
// abort attempts, and clocks that run at different rates.
const leaseReserve = time.Second

// errLeaseLost is the cause of a cancelled server context when another service has taken
// the lease.
var errLeaseLost = errors.New("the lease is lost")

// newLease returns the configured lease, nil for none.
func (cfg *Config) newLease(ctx context.Context) (*replica.Lease, error) {
	if cfg.Lease == 0 {
		return nil, nil
	}
	return replica.NewLease(ctx, replica.LeaseConfig{
		Replica: cfg.Replica, Dir: cfg.Dir, TTL: cfg.Lease, Reserve: leaseReserve, Logger: cfg.Logger,
	})
}

// checkUnleased returns an error if the service is configured without a lease but another
// service holds the lease of the replica, or writes to the replica without one. If the replica is
// unreachable and the data may be served, it returns nil: the replication checks again before it
// writes.
func (cfg *Config) checkUnleased(ctx context.Context) error {
	if cfg.Replica == nil || cfg.Lease != 0 {
		return nil
	}
	err := whileStarting(ctx, cfg.Logger, func() error { return replica.AwaitUnleased(ctx, cfg.Replica, cfg.Dir, cfg.Logger) })
	target := cfg.Replica.Target()
	switch {
	case errors.Is(err, replica.ErrWriting):
		return cfg.explainWriting(err)
	case errors.Is(err, replica.ErrLeaseUnrenewed):
		return fmt.Errorf("%w, on the replica %s; if it is permanently gone, start this one with --lease to take over the lease; "+
			"otherwise configure a separate replica", err, target)
	case errors.Is(err, replica.ErrLeaseHeld):
		return fmt.Errorf("%w, on the replica %s; stop that service, follow it by starting this one with --lease, "+
			"or configure a separate replica", err, target)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		cfg.Logger.Warn("cannot see whether another service writes to the replica; starting without", "replica", target, "error", err)
	}
	return nil
}

// checkGone returns an error if the service that checkUnleased found gone came back while the
// database was restored or opened.
func (cfg *Config) checkGone(ctx context.Context) error {
	if cfg.Replica == nil || cfg.Lease != 0 {
		return nil
	}
	if err := replica.CheckGone(ctx, cfg.Replica, cfg.Dir); errors.Is(err, replica.ErrWriting) {
		return cfg.explainWriting(err)
	}
	return nil // unknown: the replication checks again before it writes
}

// explainWriting adds advice for the operator to an error that wraps [replica.ErrWriting].
func (cfg *Config) explainWriting(err error) error {
	return fmt.Errorf("%w; it is alive, and both would send. The replica is %s. If this service replaces that one, stop that one first. "+
		"For a drill, start this one with --litestream off, or with a path of its own in litestream.yml. "+
		"To run several machines, start all of them with --lease", err, cfg.Replica.Target())
}

// takeLease fences the store with the acquired lease, if there is one.
func (s *Server) takeLease(ctx context.Context) error {
	if s.lease == nil {
		return nil
	}
	written, err := s.store.Replica().WrittenGeneration(ctx)
	if err != nil {
		return err
	}
	s.lease.Raise(written)
	return s.store.Replica().Fence(s.lease.Generation(), store.Lease{
		Valid: s.lease.Valid, Context: s.lease.Held, Failure: s.lease.Failure,
	})
}

// releaseLease releases the lease, if there is one, so that a standby can take over at once.
func (s *Server) releaseLease() error {
	if s.lease == nil {
		return nil
	}
	return s.lease.Release(context.Background())
}

// leased calls handle with a writer that turns a success into 503 if the lease ends before the
// response is written. Data committed under the lease may not be in the replica, and data read
// after it may be out of date.
func (s *Server) leased(w http.ResponseWriter, handle func(http.ResponseWriter)) {
	if s.lease == nil {
		handle(w)
		return
	}
	handle(&leasedWriter{ResponseWriter: w, valid: s.lease.Valid})
}

// leasedWriter is the writer of [Server.leased].
type leasedWriter struct {
	http.ResponseWriter
	valid   func() bool
	wrote   bool // the header was written
	begun   bool // a success, whose body follows
	refused bool // 503 was written instead
}

// Unwrap returns the underlying writer for [http.ResponseController].
func (w *leasedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

const leaseEndedBody = `{"error":{"code":503,"title":"Service Unavailable",` +
	`"detail":"The lease of this service has ended. Whether the request was carried out is unknown: try again later."}}` + "\n"

// WriteHeader implements [http.ResponseWriter].
func (w *leasedWriter) WriteHeader(status int) {
	w.wrote = w.wrote || status >= 200
	if status < 200 || status > 299 || w.valid() {
		w.begun = w.begun || status >= 200 && status <= 299
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.refused = true
	h := w.Header()
	for _, name := range []string{"Content-Encoding", "Etag", "Location"} {
		h.Del(name)
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(leaseEndedBody)))
	h.Set("Retry-After", "5")
	w.ResponseWriter.WriteHeader(http.StatusServiceUnavailable)
	io.WriteString(w.ResponseWriter, leaseEndedBody) // the client may have disconnected
}

// Write implements [http.ResponseWriter]. It aborts a success if the lease has ended since the
// header.
func (w *leasedWriter) Write(b []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.refused:
		return len(b), nil
	case w.begun && !w.valid():
		panic(http.ErrAbortHandler)
	}
	return w.ResponseWriter.Write(b)
}
