package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/litestream/s3"

	"service/webhook"
)

const (
	leaseName     = "lock.json" // name of the lease object, next to the replica's files
	maxLeaseBytes = 64 << 10
	// maxLeaseTimeout is the maximum timeout of a request for the lease.
	maxLeaseTimeout = 5 * time.Second
	// defaultPeriod is used in place of a TTL by a process without one, until it has seen a lease.
	defaultPeriod = 30 * time.Second
)

var (
	// ErrLeaseHeld means that another service holds the lease. That service is alive, or was a
	// moment ago.
	ErrLeaseHeld = errors.New("another service holds the lease")
	// ErrLeaseUnrenewed means that the holder has not renewed the lease for a whole
	// period. It wraps [ErrLeaseHeld].
	ErrLeaseUnrenewed = fmt.Errorf("%w, and does not renew it", ErrLeaseHeld)
	// ErrLeaseStale means that another service has held the lease since this data was
	// written, and has newer data.
	ErrLeaseStale = errors.New("another service has taken over since")
	// ErrLeaseExpired means that this service's lease has expired without a renewal.
	ErrLeaseExpired = errors.New("the lease has ended: another service may have taken over")
)

// LeaseConfig is the configuration of a Lease.
type LeaseConfig struct {
	Replica *Config       // must have the type s3: the lease is an object in the same bucket
	Dir     string        // the data directory, in which the holder is recorded
	TTL     time.Duration // how long a lease is valid without a renewal
	// Reserve is how long before its expiry a lease stops being valid. It leaves time
	// to abort work in flight, and for clocks that run at different rates.
	Reserve time.Duration
	Logger  *slog.Logger // nil discards
}

// Lease is the right to accept events and to send deliveries. One service holds it at a
// time. It is an object in the bucket, written with conditional requests. The holder
// renews it. If renewals fail, the holder stops before the lease expires, and so before
// another service can acquire it.
//
// No decision depends on a wall clock or on the clock of another machine.
//
// Acquire, TakeOver, Seize, KeepAlive and Release must not run at the same time.
// Valid and Held are safe for concurrent use.
type Lease struct {
	cfg    LeaseConfig
	bucket *leaseBucket
	owner  string        // identifies this process in the lease object; random per process
	margin time.Duration // how much longer than its period a lease is watched at the start

	timeout  time.Duration // of a request to the bucket; several fit into a TTL
	interval time.Duration // between renewals

	held   *leaseObject          // as last written by this process; nil before Acquire
	writes int64                 // number of writes by this process
	raised atomic.Int64          // the generation, at least that of held; see Raise
	expiry atomic.Int64          // nanoseconds of uptime, minus the reserve; 0 while not held
	failed atomic.Pointer[error] // of the last renewal; see Failure
	tenure atomic.Pointer[tenure]
	mu     sync.Mutex // held to change expiry and tenure
}

// leaseObject is the content of the object in the bucket.
type leaseObject struct {
	Generation int64     `json:"generation"` // increases with each change of the owner
	Expires    time.Time `json:"expires_at"` // by the owner's clock; information only
	Owner      string    `json:"owner"`
	Released   bool      `json:"released,omitempty"` // the owner has released the lease
	// PeriodMS is the owner's TTL in milliseconds, at least 1.
	PeriodMS int64 `json:"period_ms"`
	// Writes increases with each renewal, so that the ETag changes even if the owner's
	// clock does not advance.
	Writes int64 `json:"writes,omitempty"`

	etag string
}

// LeaseState is the state of the lease object.
type LeaseState struct {
	Generation int64 // 0 without a lease object
	Owner      string
	Expires    time.Time // by the owner's clock; information only
	Released   bool      // the owner has released the lease
	Ours       bool      // this process is the owner

	period time.Duration // the owner's TTL, 0 without a lease object
	etag   string
}

// Host returns the host of the owner, "" without one.
func (s LeaseState) Host() string {
	host, _, _ := strings.Cut(s.Owner, " ")
	return host
}

// held reports whether a service holds the lease, or died without releasing it.
func (s LeaseState) held() bool { return s.Generation > 0 && !s.Released }

// Renewed reports whether the lease object was written between before and s.
func (s LeaseState) Renewed(before LeaseState) bool { return s.etag != before.etag }

// heldError returns an error that wraps err and names the holder.
func (s LeaseState) heldError(err error) error {
	return fmt.Errorf("%w: %s, generation %d", err, s.Owner, s.Generation)
}

// NewLease returns a lease that is not held. It does not connect to the bucket.
func NewLease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	client, err := cfg.Replica.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	c, ok := client.(*s3.ReplicaClient)
	if !ok {
		return nil, errors.New("a lease needs a replica of the type s3, because it is an object in the bucket")
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	bucket, err := newLeaseBucket(ctx, c)
	if err != nil {
		return nil, err
	}
	bucket.clock.logger = cfg.Logger
	l := &Lease{
		cfg: cfg, bucket: bucket, owner: host + " " + webhook.NewID(), margin: watchMargin,
		timeout:  min(cmp.Or(cfg.TTL, defaultPeriod)/3, maxLeaseTimeout),
		interval: max((cfg.TTL-cfg.Reserve)/4, 100*time.Millisecond),
	}
	l.tenure.Store(endedTenure())
	return l, nil
}

// State reads the lease object.
func (l *Lease) State(ctx context.Context) (LeaseState, error) {
	found, err := l.read(ctx)
	if err != nil || found == nil {
		return LeaseState{}, err
	}
	return LeaseState{
		Generation: found.Generation, Owner: found.Owner, Expires: found.Expires, Released: found.Released,
		Ours: l.ours(found), period: time.Duration(found.PeriodMS) * time.Millisecond, etag: found.etag,
	}, nil
}

// ours reports whether this process wrote the object.
func (l *Lease) ours(found *leaseObject) bool { return found.Owner == l.owner }

// read returns the lease object, or nil if there is none.
func (l *Lease) read(ctx context.Context) (*leaseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	text, etag, err := l.bucket.get(ctx, l.bucket.key, maxLeaseBytes)
	if err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	if text == nil {
		return nil, nil
	}
	found := &leaseObject{etag: etag}
	if err = json.Unmarshal(text, found); err == nil && (found.PeriodMS < 1 || found.Generation < 1) {
		err = errors.New("it has no period_ms or no generation") // without them, the end of the lease is unknown
	}
	if err != nil {
		return nil, fmt.Errorf("read the lease: %w", &damagedLease{l.bucket.key, found.etag, err})
	}
	return found, nil
}

// put writes the lease object for this owner, if the current object has the ETag old, or
// if there is no object and old is "".
func (l *Lease) put(ctx context.Context, o leaseObject, old string) (*leaseObject, error) {
	l.writes++
	o.Generation = max(o.Generation, l.raised.Load())
	o.Owner, o.Expires, o.PeriodMS, o.Writes = l.owner, time.Now().Add(l.cfg.TTL), l.cfg.TTL.Milliseconds(), l.writes
	if o.Released {
		o.Expires = time.Now()
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if o.etag, err = l.bucket.put(ctx, l.bucket.key, text, &old); err != nil && !errors.Is(err, errLeaseChanged) {
		err = fmt.Errorf("write the lease: %w", err)
	}
	return &o, err
}
