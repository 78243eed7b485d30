package replica

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// MaxClockDifference is the largest difference between this machine's clock and
// the bucket's that is not reported. Nothing depends on it but the times that
// people read, signatures, and requests that a bucket refuses because of their
// time.
const MaxClockDifference = 5 * time.Second

// bucketClock is what the Date of the bucket's responses says about this
// machine's clock.
type bucketClock struct {
	ahead atomic.Pointer[time.Duration] // this machine's clock, of the bucket's; nil for unknown
	told  atomic.Bool                   // the difference is in the log
}

// noteError records the Date of an error that was a response.
func (c *bucketClock) noteError(err error, logger *slog.Logger) {
	if refused, ok := errors.AsType[*awshttp.ResponseError](err); ok && refused.Response != nil {
		at, err := http.ParseTime(refused.Response.Header.Get("Date"))
		c.note(at, err == nil, logger)
	}
}

// note records the Date of a response.
func (c *bucketClock) note(at time.Time, known bool, logger *slog.Logger) {
	if !known {
		return
	}
	ahead := time.Since(at.Add(time.Second / 2)).Round(time.Second) // Date is cut to the second
	c.ahead.Store(&ahead)
	wrong := ahead.Abs() > MaxClockDifference
	if wrong == c.told.Swap(wrong) {
		return
	}
	if wrong {
		logger.Warn("the clock of this machine differs from the bucket's; the lease does not depend on it, signatures and the times that are shown do", "ahead", ahead)
	} else {
		logger.Info("the clock of this machine agrees with the bucket's again")
	}
}

// BucketClock returns by how much the clock of this machine is ahead of that of
// the bucket, to about a second. It asks the bucket once.
func BucketClock(ctx context.Context, cfg *Config) (ahead time.Duration, err error) {
	l, err := NewLease(ctx, LeaseConfig{Replica: cfg})
	if err != nil {
		return 0, err
	}
	_, err = l.State(ctx)
	if known := l.bucket.clock.ahead.Load(); known != nil {
		return *known, nil
	}
	if err == nil {
		err = errors.New("the bucket's responses have no Date")
	}
	return 0, err
}
