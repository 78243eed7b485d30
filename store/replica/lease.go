package replica

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/benbjohnson/litestream/s3"

	"service/webhook"
)

// MaxClockSkew is the largest difference between the clocks of a primary and its
// standby under which at most one of them holds the lease.
const MaxClockSkew = 2 * time.Second

const (
	leaseName    = "lock.json" // of the object, beside the replica's files
	leaseTimeout = 5 * time.Second
)

var (
	// ErrLeaseHeld says that another service holds the lease. It is alive, or
	// was a moment ago.
	ErrLeaseHeld = errors.New("another service holds the lease")
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
	// Reserve is how long before its expiry a lease stops being valid for new
	// work. It must be at least the duration of the longest work, and
	// [MaxClockSkew].
	Reserve time.Duration
	Logger  *slog.Logger
}

// Lease is the right to accept events and to send deliveries, which one service
// holds at a time. It is an object in the bucket that is written with a
// precondition. Its holder renews it, and stops before it expires when the
// renewal fails: so it stops before another service can acquire the lease.
//
// Acquire, KeepAlive and Release must not run at the same time. Valid may be
// called from any goroutine.
type Lease struct {
	cfg         LeaseConfig
	client      *awss3.Client
	bucket, key string // of the lease object
	owner       string // of the object while this process holds the lease; random for each process

	held   *leaseObject // as this process last wrote it; nil before Acquire
	expiry atomic.Int64 // nanoseconds of uptime, without the reserve; 0 for not held
}

// leaseObject is the object in the bucket.
type leaseObject struct {
	Generation int64     `json:"generation"` // increases with each change of the owner
	Expires    time.Time `json:"expires_at"` // by the owner's clock
	Owner      string    `json:"owner"`
	Released   bool      `json:"released,omitempty"` // the owner has given it up
	// PeriodMS is the owner's TTL in milliseconds, 0 in objects of older versions.
	PeriodMS int64 `json:"period_ms,omitempty"`

	etag string
}

func (o *leaseObject) expired() bool { return o.Released || time.Now().After(o.Expires) }

// LeaseState is what the bucket says about the lease.
type LeaseState struct {
	Generation int64 // 0 for no lease
	Owner      string
	Expires    time.Time // by the owner's clock
	Released   bool      // the owner has given it up
	Ours       bool

	period time.Duration // the owner's TTL, 0 for unknown
	etag   string
}

// NewLease returns a lease that is not held. It does not connect to the bucket.
func NewLease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	client, err := cfg.Replica.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	bucket, ok := client.(*s3.ReplicaClient)
	if !ok {
		return nil, errors.New("a lease is kept in a bucket, and so needs a replica of the type s3")
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	api, err := newS3Client(ctx, bucket)
	if err != nil {
		return nil, err
	}
	return &Lease{cfg: cfg, client: api, bucket: bucket.Bucket, key: leaseKey(bucket.Path), owner: host + " " + webhook.NewID()}, nil
}

// leaseKey returns the key of the lease object of a replica at path in its
// bucket.
func leaseKey(path string) string {
	if path == "" {
		return leaseName
	}
	return path + "/" + leaseName
}

// CheckUnleased returns an error that wraps [ErrLeaseHeld] while a service holds
// a lease in the bucket of cfg. A service without a lease must not write there.
// Other errors say that this is not known. A replica in a directory has no
// lease. It compares the expiry with this machine's clock.
func CheckUnleased(ctx context.Context, cfg *Config) error {
	if !cfg.IsS3() {
		return nil
	}
	l, err := NewLease(ctx, LeaseConfig{Replica: cfg})
	if err != nil {
		return err
	}
	found, err := l.read(ctx)
	if err != nil {
		return err
	}
	if found != nil && !found.expired() {
		return heldBy(found)
	}
	return nil
}

// newS3Client returns a client with the settings of a replica's client, whose
// own is not accessible.
func newS3Client(ctx context.Context, c *s3.ReplicaClient) (*awss3.Client, error) {
	var options []func(*config.LoadOptions) error
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	if c.AccessKeyID != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, err
	}
	return awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		if o.Region == "" {
			o.Region = s3.DefaultRegion // a custom endpoint needs none
		}
		o.UsePathStyle = c.ForcePathStyle
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
			o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		}
	}), nil
}

// State reads the lease object.
func (l *Lease) State(ctx context.Context) (LeaseState, error) {
	found, err := l.read(ctx)
	if err != nil || found == nil {
		return LeaseState{}, err
	}
	return LeaseState{Generation: found.Generation, Owner: found.Owner, Expires: found.Expires, Released: found.Released, Ours: l.ours(found), period: time.Duration(found.PeriodMS) * time.Millisecond, etag: found.etag}, nil
}

// read returns nil when there is no lease object.
func (l *Lease) read(ctx context.Context) (*leaseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	out, err := l.client.GetObject(ctx, &awss3.GetObjectInput{Bucket: &l.bucket, Key: &l.key})
	var none *types.NoSuchKey
	if errors.As(err, &none) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	defer out.Body.Close()
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
	o.Owner, o.Expires, o.PeriodMS = l.owner, time.Now().Add(l.cfg.TTL), l.cfg.TTL.Milliseconds()
	if o.Released {
		o.Expires = time.Now()
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	input := &awss3.PutObjectInput{Bucket: &l.bucket, Key: &l.key, Body: bytes.NewReader(text), ContentType: aws.String("application/json")}
	if old == "" {
		input.IfNoneMatch = aws.String("*")
	} else {
		input.IfMatch = &old
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	out, err := l.client.PutObject(ctx, input)
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
	o.etag = aws.ToString(out.ETag)
	return &o, nil
}

func (l *Lease) ours(found *leaseObject) bool { return found.Owner == l.owner }

// Acquire acquires the lease. It takes it over from a process of this data
// directory that has ended, without waiting for its expiry. known is the
// generation that the data was last written under: 0 for none, [math.MaxInt64]
// for data that is known to be the newest. The error wraps [ErrLeaseHeld] while
// another service holds the lease, and [ErrLeaseStale] when the data is older
// than that of the last holder.
func (l *Lease) Acquire(ctx context.Context, known int64) error {
	asked := uptime()
	found, err := l.read(ctx)
	if err != nil {
		return err
	}
	last, err := readHolder(l.cfg.Dir)
	if err != nil {
		return err
	}
	now, err := currentHolder(l.cfg.Dir, l.owner)
	if err != nil {
		return err
	}
	// A holder that is known to have ended is not waited for. Neither a copy of
	// the data directory nor a process that is only stopped may do that.
	ours := found != nil && found.Owner == last.Owner && last.sameDir(now)
	switch {
	case ours && !found.expired() && last.ended():
		if err := now.write(l.cfg.Dir); err != nil {
			return err
		}
		return l.renew(ctx, found, asked)
	case found != nil && !found.expired():
		return heldBy(found)
	case found != nil && !ours && found.Generation > known:
		return fmt.Errorf("%w: %s, under the lease of generation %d, and the data here was last written under %d", ErrLeaseStale, found.Owner, found.Generation, known)
	}
	if found == nil {
		found = &leaseObject{}
	}
	generation := found.Generation
	if known < math.MaxInt64 {
		generation = max(generation, known) // the object may have been deleted
	}
	return l.take(ctx, generation+1, found.etag)
}

// TakeOver acquires the lease that [LeaseWatch.Look] found to have ended. It
// fails when that has changed since, with an error that wraps [ErrLeaseHeld]. The
// data must be the newest.
func (l *Lease) TakeOver(ctx context.Context, ended LeaseState) error {
	return l.take(ctx, ended.Generation+1, ended.etag)
}

// take writes the lease object in place of the one with the ETag old.
func (l *Lease) take(ctx context.Context, generation int64, old string) error {
	// The holder goes first: a crash in between must not leave a lease that
	// nobody recognizes.
	now, err := currentHolder(l.cfg.Dir, l.owner)
	if err == nil {
		err = now.write(l.cfg.Dir)
	}
	if err != nil {
		return err
	}
	asked := uptime()
	taken, err := l.put(ctx, leaseObject{Generation: generation}, old)
	if errors.Is(err, errLeaseChanged) {
		return l.recheck(ctx, asked)
	} else if err != nil {
		return err
	}
	l.held = taken
	l.extend(asked)
	return nil
}

func heldBy(found *leaseObject) error {
	return fmt.Errorf("%w: %s, until %s", ErrLeaseHeld, found.Owner, webhook.FormatTime(found.Expires))
}

// renew renews a lease of this service. It is valid from asked, the time before
// the object was read or written.
func (l *Lease) renew(ctx context.Context, found *leaseObject, asked time.Duration) error {
	renewed, err := l.put(ctx, leaseObject{Generation: found.Generation}, found.etag)
	if err != nil {
		return err
	}
	l.held = renewed
	l.extend(asked)
	return nil
}

func (l *Lease) extend(asked time.Duration) {
	l.expiry.Store(int64(asked + l.cfg.TTL - l.cfg.Reserve))
}

// Valid reports whether new work may begin under the lease. It uses a clock that
// nobody sets, and that also runs while the machine is suspended.
func (l *Lease) Valid() bool { return int64(uptime()) < l.expiry.Load() }

// Generation returns the generation of the lease that is held.
func (l *Lease) Generation() int64 { return l.held.Generation }

// KeepAlive renews the lease several times in each TTL until ctx ends. It returns
// an error when another service holds the lease: then nothing may be sent any
// more. It retries while the bucket cannot be reached; [Lease.Valid] reports
// whether the service may work until then.
func (l *Lease) KeepAlive(ctx context.Context) error {
	tick := time.NewTicker(max((l.cfg.TTL-l.cfg.Reserve)/4, 100*time.Millisecond))
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := l.renewOrLose(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrLeaseHeld) {
			return err
		}
		if bad := err != nil; bad != failing {
			failing = bad
			if bad {
				l.cfg.Logger.Error("the lease cannot be renewed; before it ends nothing is accepted or sent any more", "error", err)
			} else {
				l.cfg.Logger.Info("the lease is renewed again")
			}
		}
	}
}

// renewOrLose renews the lease. The error wraps [ErrLeaseHeld] when it is
// another's, and the lease is not valid then.
func (l *Lease) renewOrLose(ctx context.Context) error {
	asked := uptime()
	err := l.renew(ctx, l.held, asked)
	if errors.Is(err, errLeaseChanged) {
		return l.recheck(ctx, asked)
	}
	return err
}

// recheck renews the lease if this process wrote the object that is in the
// bucket: the response to a write may have been lost. Otherwise the lease is not
// valid, and the error wraps [ErrLeaseHeld].
func (l *Lease) recheck(ctx context.Context, asked time.Duration) error {
	found, err := l.read(ctx)
	switch {
	case err != nil:
		return err
	case found == nil:
		l.expiry.Store(0)
		return fmt.Errorf("%w: it was removed from the bucket", ErrLeaseHeld)
	case !l.ours(found):
		l.expiry.Store(0)
		return heldBy(found)
	}
	return l.renew(ctx, found, asked)
}

// Release ends the lease, so that another service can acquire it at once. It
// does nothing when the lease is not valid.
func (l *Lease) Release(ctx context.Context) error {
	if l.held == nil || !l.Valid() {
		return nil
	}
	l.expiry.Store(0)
	err := l.release(ctx, l.held)
	if errors.Is(err, errLeaseChanged) {
		// A renewal that was cut off may have been written all the same.
		var found *leaseObject
		if found, err = l.read(ctx); err == nil && found != nil && l.ours(found) {
			err = l.release(ctx, found)
		}
	}
	if err != nil {
		return fmt.Errorf("release the lease: %w", err)
	}
	return nil
}

// release writes that the lease is given up. The object stays, and preserves the
// generation.
func (l *Lease) release(ctx context.Context, found *leaseObject) error {
	_, err := l.put(ctx, leaseObject{Generation: found.Generation, Released: true}, found.etag)
	return err
}

// LeaseWatch observes the lease of another service. It does not compare the
// clocks of two machines: a lease has ended when this machine has seen it
// unchanged for a whole TTL (the holder's, or its own if that is longer), with
// the bucket readable all the time. After an outage of the bucket the holder
// therefore has a whole TTL to renew it.
type LeaseWatch struct {
	lease *Lease
	etag  string        // as last seen
	since time.Duration // uptime when that was first seen
	asked time.Duration // uptime before the last look that succeeded
}

// NewWatch returns a watch of l, which this process does not hold.
func (l *Lease) NewWatch() *LeaseWatch { return &LeaseWatch{lease: l} }

// Look reads the lease, and reports whether it has ended: it was released, or has
// not been renewed. A lease that nobody ever held has not ended. It must be
// called several times in each third of the TTL, by one goroutine.
func (w *LeaseWatch) Look(ctx context.Context) (state LeaseState, ended bool, err error) {
	asked := uptime()
	if state, err = w.lease.State(ctx); err != nil {
		return state, false, err
	}
	return state, w.observe(state, asked, uptime()), nil
}

// observe is Look for a state that was asked for and answered at these uptimes.
func (w *LeaseWatch) observe(state LeaseState, asked, answered time.Duration) bool {
	ttl := max(w.lease.cfg.TTL, state.period)
	if state.etag != w.etag || answered-w.asked > ttl/3 {
		w.etag, w.since = state.etag, answered
	}
	w.asked = asked
	return state.Generation > 0 && (state.Released || asked-w.since >= ttl)
}
