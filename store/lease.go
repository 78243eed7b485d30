package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/s3"

	"service/internal/durable"
	"service/webhook"
)

// ClockSkew is how far the clocks of a primary and its standby may be apart.
const ClockSkew = 2 * time.Second

const (
	leaseFile    = "lease.id" // of the data directory: who holds a lease from here
	leaseSetting = "lease"    // the generation that the data was last written under
	leaseTime    = 5 * time.Second
)

var (
	// ErrLeaseHeld says that another service holds the lease. It is alive, or
	// was a moment ago.
	ErrLeaseHeld = errors.New("another service holds the lease")
	// ErrLeaseStale says that another service has held the lease since this
	// data was written: its data is newer.
	ErrLeaseStale = errors.New("another service has taken over since")
)

// LeaseConfig says where a lease is kept.
type LeaseConfig struct {
	Replica *ReplicaConfig // of s3: the lease is an object beside what is copied
	Dir     string         // the data directory, which remembers who it is
	TTL     time.Duration  // how long a lease is good for unless it is renewed
	// Reserve is how long before the end of a lease nothing new is begun: as
	// long as what is under way may take, and [ClockSkew].
	Reserve time.Duration
	Logger  *slog.Logger
}

// Lease is the right to accept and to send, which one service has at a time. It
// is an object in the bucket, written on the condition that nobody else has
// written it since, as Litestream does it. Who holds it renews it; when that
// fails it stops before the lease ends, and so before anybody else can have it.
type Lease struct {
	cfg    LeaseConfig
	leaser *s3.Leaser

	held  *litestream.Lease // owned by whoever takes, keeps and releases it
	until atomic.Int64      // nanoseconds after began: good until then, less the reserve; 0 is never
	began time.Time         // for its reading of the monotonic clock
}

// LeaseState is what the bucket says.
type LeaseState struct {
	Generation int64 // rises whenever another service takes it; 0 when there was none
	Owner      string
	Expires    time.Time // by the owner's clock
	Ours       bool
}

// NewLease returns a lease that is not held yet. It asks nobody.
func NewLease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	client, err := cfg.Replica.replica.client(nil)
	if err != nil {
		return nil, err
	}
	bucket, ok := client.(*s3.ReplicaClient)
	if !ok {
		return nil, errors.New("a lease is kept in a bucket, and so needs a replica of the type s3")
	}
	owner, err := leaseOwner(cfg.Dir)
	if err != nil {
		return nil, err
	}
	api, err := bucketClient(ctx, bucket)
	if err != nil {
		return nil, err
	}
	l := &Lease{cfg: cfg, leaser: s3.NewLeaser(), began: time.Now()}
	l.leaser.SetLogger(slog.New(slog.DiscardHandler))
	l.leaser.SetClient(api)
	l.leaser.Bucket, l.leaser.Path, l.leaser.TTL, l.leaser.Owner = bucket.Bucket, bucket.Path, cfg.TTL, owner
	return l, nil
}

// leaseOwner is the name of this machine and data directory, which it keeps.
func leaseOwner(dir string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, leaseFile)
	id, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		id = []byte(webhook.NewID())
		err = durable.WriteFile(name, id, 0o600)
	}
	return host + " " + string(id), err
}

// bucketClient returns a client for the objects of a bucket, as the replica's
// own is.
func bucketClient(ctx context.Context, c *s3.ReplicaClient) (*awss3.Client, error) {
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
			o.Region = s3.DefaultRegion // an endpoint of its own needs none
		}
		o.UsePathStyle = c.ForcePathStyle
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
			o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		}
	}), nil
}

// Look asks the bucket who holds the lease.
func (l *Lease) Look(ctx context.Context) (LeaseState, error) {
	held, err := l.look(ctx)
	if err != nil || held == nil {
		return LeaseState{}, err
	}
	return LeaseState{Generation: held.Generation, Owner: held.Owner, Expires: held.ExpiresAt, Ours: held.Owner == l.leaser.Owner}, nil
}

// look returns nil when there never was a lease.
func (l *Lease) look(ctx context.Context) (*litestream.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	key := litestreamLeaseKey(l.leaser)
	out, err := l.leaser.Client().GetObject(ctx, &awss3.GetObjectInput{Bucket: aws.String(l.leaser.Bucket), Key: aws.String(key)})
	var none *types.NoSuchKey
	if errors.As(err, &none) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	defer out.Body.Close()
	held := &litestream.Lease{ETag: aws.ToString(out.ETag)}
	if err := json.NewDecoder(out.Body).Decode(held); err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	return held, nil
}

func litestreamLeaseKey(l *s3.Leaser) string {
	if l.Path == "" {
		return s3.DefaultLeasePath
	}
	return l.Path + "/" + s3.DefaultLeasePath
}

// Take takes the lease. Known is the generation that the data was last written
// under, see [Store.LeaseGeneration]. The error wraps [ErrLeaseHeld] while
// another has it, and [ErrLeaseStale] when the data is older than another's.
func (l *Lease) Take(ctx context.Context, known int64) error {
	asked := time.Now()
	there, err := l.look(ctx)
	if err != nil {
		return err
	}
	ours := there != nil && there.Owner == l.leaser.Owner
	switch {
	case ours && !there.IsExpired():
		return l.renew(ctx, there, asked) // this service was here a moment ago
	case there != nil && !there.IsExpired():
		return held(there)
	case there != nil && !ours && there.Generation > known:
		return fmt.Errorf("%w: %s, under the lease of generation %d, and the data here was last written under %d", ErrLeaseStale, there.Owner, there.Generation, known)
	}
	asked = time.Now()
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	l.held, err = l.leaser.AcquireLease(ctx)
	var other *litestream.LeaseExistsError
	if errors.As(err, &other) {
		return held(&litestream.Lease{Owner: other.Owner, ExpiresAt: other.ExpiresAt})
	} else if err != nil {
		return fmt.Errorf("take the lease: %w", err)
	}
	l.good(asked)
	if known < math.MaxInt64 && l.held.Generation <= known {
		// Somebody has removed the object.
		next := *l.held
		next.Generation = known + 1
		return l.renew(ctx, &next, time.Now())
	}
	return nil
}

func held(by *litestream.Lease) error {
	return fmt.Errorf("%w: %s, until %s", ErrLeaseHeld, by.Owner, webhook.FormatTime(by.ExpiresAt))
}

// renew makes a lease that was found, and is ours, good for another time from
// when it was asked for.
func (l *Lease) renew(ctx context.Context, there *litestream.Lease, asked time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	renewed, err := l.leaser.RenewLease(ctx, there)
	if err != nil {
		return err
	}
	l.held = renewed
	l.good(asked)
	return nil
}

func (l *Lease) good(asked time.Time) {
	l.until.Store(int64(asked.Add(l.cfg.TTL - l.cfg.Reserve).Sub(l.began)))
}

// Good says whether something new may be begun under the lease. It reads a
// clock that nobody sets.
func (l *Lease) Good() bool { return int64(time.Since(l.began)) < l.until.Load() }

// Generation is that of the lease that is held.
func (l *Lease) Generation() int64 { return l.held.Generation }

// Keep renews the lease until ctx ends, several times before it would end. It
// fails when another has it: then nothing may be sent any more. A bucket that
// cannot be reached is tried again; what becomes of the service meanwhile is
// Good's.
func (l *Lease) Keep(ctx context.Context) error {
	tick := time.NewTicker(max((l.cfg.TTL-l.cfg.Reserve)/4, 100*time.Millisecond))
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		asked := time.Now()
		err := l.renew(ctx, l.held, asked)
		if errors.Is(err, litestream.ErrLeaseNotHeld) {
			// Perhaps by ourselves: an answer may have been lost.
			var there *litestream.Lease
			if there, err = l.look(ctx); err == nil {
				if there == nil || there.Owner != l.leaser.Owner {
					l.until.Store(0)
					return l.lost(there)
				}
				err = l.renew(ctx, there, asked)
			}
		}
		if ctx.Err() != nil {
			return nil
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

func (l *Lease) lost(there *litestream.Lease) error {
	if there == nil {
		return fmt.Errorf("%w: it was removed from the bucket", ErrLeaseHeld)
	}
	return held(there)
}

// Release ends the lease at once, so that another can have it. It does nothing
// when it is not held any more.
func (l *Lease) Release(ctx context.Context) error {
	if l.held == nil || !l.Good() {
		return nil
	}
	l.until.Store(0)
	l.leaser.TTL = 0 // an object that is there, and has ended, keeps the generation
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	_, err := l.leaser.RenewLease(ctx, l.held)
	if err != nil {
		return fmt.Errorf("release the lease: %w", err)
	}
	return nil
}

// LeaseGeneration is the generation of the lease that the data was last written
// under, 0 for none. Data that was just restored is as good as any.
func (s *Store) LeaseGeneration(ctx context.Context) (generation int64, err error) {
	err = s.writer.do(func(t *tx) error {
		var text []byte
		err := t.scan("SELECT value FROM settings WHERE name = '"+restoredSetting+"'", nil, &text)
		if err == nil {
			generation = math.MaxInt64
			return nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		err = t.scan("SELECT value FROM settings WHERE name = '"+leaseSetting+"'", nil, &text)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		generation, err = strconv.ParseInt(string(text), 10, 64)
		return err
	})
	return generation, err
}

// Fence makes the store depend on a lease that is held: while it is not good
// nothing is written, and so nothing is accepted and no attempt is counted. It
// is called once, before anything is accepted or sent.
func (s *Store) Fence(l *Lease) error {
	generation := strconv.FormatInt(l.Generation(), 10)
	err := s.writer.do(func(t *tx) error {
		return t.exec("INSERT INTO settings (name, value) VALUES ('"+leaseSetting+"', ?1) ON CONFLICT DO UPDATE SET value = ?1", []byte(generation))
	})
	if err != nil {
		return err
	}
	s.writer.lease.Store(l)
	if s.replication != nil {
		s.replication.lease.Store(l)
	}
	return nil
}

// errFenced is what a write gets without a lease.
var errFenced = errors.New("the lease has ended: another service may have taken over")

// MaySend says whether an attempt that has been counted may be made now.
func (s *Store) MaySend() bool {
	l := s.writer.lease.Load()
	return l == nil || l.Good()
}
