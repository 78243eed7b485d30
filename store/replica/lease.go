package replica

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/benbjohnson/litestream/s3"

	"service/webhook"
)

const (
	leaseName = "lock.json" // of the object, beside the replica's files
	// maxLeaseTimeout is the longest time that a request of the lease takes.
	maxLeaseTimeout = 5 * time.Second
	// defaultPeriod is for how long a lease is watched whose holder's TTL is not
	// known.
	defaultPeriod = 30 * time.Second
)

var (
	// ErrLeaseHeld says that another service holds the lease. It is alive, or
	// was a moment ago.
	ErrLeaseHeld = errors.New("another service holds the lease")
	// ErrLeaseUnrenewed says that the service that holds the lease has not
	// renewed it for a whole period. It wraps [ErrLeaseHeld].
	ErrLeaseUnrenewed = fmt.Errorf("%w, and does not renew it", ErrLeaseHeld)
	// ErrLeaseStale says that another service has held the lease since this
	// data was written: its data is newer.
	ErrLeaseStale = errors.New("another service has taken over since")
	// ErrLeaseExpired says that this service's lease has expired without a
	// renewal.
	ErrLeaseExpired = errors.New("the lease has ended: another service may have taken over")
)

// LeaseConfig is the configuration of a Lease.
type LeaseConfig struct {
	Replica *Config       // must be of the type s3: the lease is an object in the same bucket
	Dir     string        // the data directory, which remembers the process that holds the lease
	TTL     time.Duration // how long a lease is valid without a renewal
	// Reserve is how long before its expiry a lease stops being valid: time for
	// what is under way to be cut off, and for clocks that run at different rates.
	Reserve time.Duration
	Logger  *slog.Logger // nil discards
}

// Lease is the right to accept events and to send deliveries, which one service
// holds at a time. It is an object in the bucket that is written with a
// precondition. Its holder renews it, and stops before it expires when the
// renewal fails: so it stops before another service can acquire the lease.
//
// No decision depends on a wall clock, or on the clock of another machine.
//
// Acquire, TakeOver, Seize, KeepAlive and Release must not run at the same time.
// Valid and Held may be called from any goroutine.
type Lease struct {
	cfg    LeaseConfig
	bucket *leaseBucket
	owner  string        // of the object while this process holds the lease; random for each process
	margin time.Duration // how much longer than its period a lease is watched at the start

	held   *leaseObject // as this process last wrote it; nil before it was acquired
	writes int64        // how often this process wrote the object
	term   atomic.Int64 // see SetTerm
	expiry atomic.Int64 // nanoseconds of uptime, without the reserve; 0 for not held
	tenure atomic.Pointer[tenure]
	mu     sync.Mutex // held to change expiry and tenure
}

// leaseObject is the object in the bucket.
type leaseObject struct {
	Generation int64     `json:"generation"`     // increases with each change of the owner
	Term       int64     `json:"term,omitempty"` // of the replica, that the owner writes to; 0 until it does
	Expires    time.Time `json:"expires_at"`     // by the owner's clock; information only
	Owner      string    `json:"owner"`
	Released   bool      `json:"released,omitempty"` // the owner has given it up
	// PeriodMS is the owner's TTL in milliseconds, 0 in objects of older versions.
	PeriodMS int64 `json:"period_ms,omitempty"`
	// Writes increases with each renewal, so that the ETag changes even if the
	// owner's clock stands still.
	Writes int64 `json:"writes,omitempty"`

	etag string
}

// LeaseState is what the bucket says about the lease.
type LeaseState struct {
	Generation int64 // 0 for no lease
	Term       int64 // of the replica, that the owner writes to; 0 for unknown
	Owner      string
	Expires    time.Time // by the owner's clock; information only
	Released   bool      // the owner has given it up
	Ours       bool

	period time.Duration // the owner's TTL, 0 for unknown
	etag   string
}

// held reports whether a service holds the lease, or held it when it ended.
func (s LeaseState) held() bool { return s.Generation > 0 && !s.Released }

// Renewed reports whether the lease object was written after it was found as
// before.
func (s LeaseState) Renewed(before LeaseState) bool { return s.etag != before.etag }

// heldError returns an error that wraps err and names the holder.
func (s LeaseState) heldError(err error) error {
	if s.Term == 0 {
		return fmt.Errorf("%w: %s, generation %d", err, s.Owner, s.Generation)
	}
	return fmt.Errorf("%w: %s, generation %d, which writes term %d of the replica", err, s.Owner, s.Generation, s.Term)
}

// NewLease returns a lease that is not held. It does not connect to the bucket.
func NewLease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	client, err := cfg.Replica.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	c, ok := client.(*s3.ReplicaClient)
	if !ok {
		return nil, errors.New("a lease is kept in a bucket, and so needs a replica of the type s3")
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	bucket, err := newLeaseBucket(ctx, c)
	if err != nil {
		return nil, err
	}
	l := &Lease{cfg: cfg, bucket: bucket, owner: host + " " + webhook.NewID(), margin: watchMargin}
	l.tenure.Store(endedTenure())
	return l, nil
}

// timeout returns how long one request to the bucket may take: several fit into
// a TTL.
func (l *Lease) timeout() time.Duration {
	return min(cmp.Or(l.cfg.TTL, defaultPeriod)/3, maxLeaseTimeout)
}

// State reads the lease object.
func (l *Lease) State(ctx context.Context) (LeaseState, error) {
	found, err := l.read(ctx)
	if err != nil || found == nil {
		return LeaseState{}, err
	}
	return LeaseState{Generation: found.Generation, Term: found.Term, Owner: found.Owner, Expires: found.Expires, Released: found.Released, Ours: l.ours(found), period: time.Duration(found.PeriodMS) * time.Millisecond, etag: found.etag}, nil
}

// ours reports whether this process wrote the object.
func (l *Lease) ours(found *leaseObject) bool { return found.Owner == l.owner }

// read returns nil when there is no lease object.
func (l *Lease) read(ctx context.Context) (*leaseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	client, err := l.bucket.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	out, err := client.GetObject(ctx, &awss3.GetObjectInput{Bucket: &l.bucket.name, Key: &l.bucket.key})
	l.bucket.clock.noteError(err, l.cfg.Logger)
	var none *types.NoSuchKey
	if errors.As(err, &none) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	defer out.Body.Close()
	at, known := awsmiddleware.GetServerTime(out.ResultMetadata)
	l.bucket.clock.note(at, known, l.cfg.Logger)
	found := &leaseObject{etag: aws.ToString(out.ETag)}
	if err := json.NewDecoder(out.Body).Decode(found); err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	return found, nil
}

// errLeaseChanged says that the lease object is no longer the one to be replaced.
var errLeaseChanged = errors.New("the lease has changed")

// put writes the lease object for this owner, in place of the object with the
// ETag old, "" for none.
func (l *Lease) put(ctx context.Context, o leaseObject, old string) (*leaseObject, error) {
	l.writes++
	o.Term = l.term.Load()
	o.Owner, o.Expires, o.PeriodMS, o.Writes = l.owner, time.Now().Add(l.cfg.TTL), l.cfg.TTL.Milliseconds(), l.writes
	if o.Released {
		o.Expires = time.Now()
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	input := &awss3.PutObjectInput{Bucket: &l.bucket.name, Key: &l.bucket.key, Body: bytes.NewReader(text), ContentType: aws.String("application/json")}
	if old == "" {
		input.IfNoneMatch = aws.String("*")
	} else {
		input.IfMatch = &old
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	client, err := l.bucket.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("write the lease: %w", err)
	}
	out, err := client.PutObject(ctx, input)
	l.bucket.clock.noteError(err, l.cfg.Logger)
	var response interface{ HTTPStatusCode() int }
	if errors.As(err, &response) {
		switch response.HTTPStatusCode() {
		case 409, 412: // another write at the same time, or before
			return nil, errLeaseChanged
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write the lease: %w", err)
	}
	at, known := awsmiddleware.GetServerTime(out.ResultMetadata)
	l.bucket.clock.note(at, known, l.cfg.Logger)
	o.etag = aws.ToString(out.ETag)
	return &o, nil
}
