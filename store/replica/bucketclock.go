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

// MaxClockDifference is the difference between this machine's clock and the bucket's above
// which it is reported. A wrong clock affects displayed times, signatures, and requests that
// a bucket rejects because of their time, but nothing else.
const MaxClockDifference = 5 * time.Second

// bucketClock compares this machine's clock with the Date of the bucket's responses.
type bucketClock struct {
	ahead  atomic.Pointer[time.Duration] // how far this machine's clock is ahead; nil for unknown
	logged atomic.Bool                   // the difference is logged
	logger *slog.Logger                  // nil discards
}

// noteError records the Date of an error response.
func (c *bucketClock) noteError(err error) {
	if refused, ok := errors.AsType[*awshttp.ResponseError](err); ok && refused.Response != nil {
		at, err := http.ParseTime(refused.Response.Header.Get("Date"))
		c.note(at, err == nil)
	}
}

// note records the Date of a response.
func (c *bucketClock) note(at time.Time, known bool) {
	if !known {
		return
	}
	ahead := time.Since(at.Add(time.Second / 2)).Round(time.Second) // Date has no fraction of a second
	c.ahead.Store(&ahead)
	wrong := ahead.Abs() > MaxClockDifference
	if c.logger == nil || wrong == c.logged.Swap(wrong) {
		return
	}
	if wrong {
		c.logger.Warn("system clock differs from the bucket's clock; this affects signatures and displayed times, but not the lease",
			"ahead", ahead)
	} else {
		c.logger.Info("system clock agrees with the bucket's clock again")
	}
}

// BucketClock returns by how much this machine's clock is ahead of that of the
// bucket, with a precision of about a second. It sends one request.
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
