package replica

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/benbjohnson/litestream/s3"
)

// leaseBucket is the bucket of a replica. It has its own client, because Litestream's has
// no conditional writes.
type leaseBucket struct {
	name, key string // name of the bucket, key of the lease object
	cfg       aws.Config
	options   func(*awss3.Options)
	clock     bucketClock

	mu  sync.Mutex
	api *awss3.Client // nil until the first call of client
}

// errLeaseChanged means that the precondition of a write failed.
var errLeaseChanged = errors.New("the lease has changed")

// newLeaseBucket returns the bucket of a replica with the settings of its Litestream
// client. It does not connect.
func newLeaseBucket(ctx context.Context, c *s3.ReplicaClient) (*leaseBucket, error) {
	client := awshttp.NewBuildableClient()
	if c.SkipVerify {
		client = client.WithTransportOptions(func(t *http.Transport) {
			t.TLSClientConfig.InsecureSkipVerify = true // the operator asked for it
		})
	}
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(client),
		// The SDK's own rate limit for retries would be exhausted by an outage.
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 3, 500*time.Millisecond, ratelimit.None
			})
		}),
	}
	region := c.Region
	if region == "" && c.Endpoint != "" {
		region = s3.DefaultRegion // a custom endpoint needs no particular region
	}
	if region != "" {
		options = append(options, config.WithRegion(region))
	}
	if c.AccessKeyID != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, err
	}
	if region == "" {
		cfg.Region = "" // ignore the environment's region: the bucket may be elsewhere
	}
	return &leaseBucket{name: c.Bucket, key: leaseKey(c.Path), cfg: cfg, options: func(o *awss3.Options) {
		o.UsePathStyle, o.UseARNRegion = c.ForcePathStyle, true
		if c.Endpoint == "" {
			return
		}
		endpoint := c.Endpoint
		if !strings.Contains(endpoint, "://") {
			endpoint = "https://" + endpoint
		}
		o.BaseEndpoint = &endpoint
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	}}, nil
}

// leaseKey returns the key of the lease object of a replica at path in its bucket.
func leaseKey(path string) string {
	if path == "" {
		return leaseName
	}
	return path + "/" + leaseName
}

// client returns a client for the bucket's region. If the region is not configured, the
// first call looks it up.
func (b *leaseBucket) client(ctx context.Context) (*awss3.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.api != nil {
		return b.api, nil
	}
	cfg := b.cfg
	if cfg.Region == "" {
		cfg.Region = s3.DefaultRegion
		found, err := awss3.NewFromConfig(cfg, b.options).GetBucketLocation(ctx, &awss3.GetBucketLocationInput{Bucket: &b.name})
		if err != nil {
			return nil, err
		}
		if found.LocationConstraint != "" { // us-east-1 has none
			cfg.Region = string(found.LocationConstraint)
		}
	}
	b.api = awss3.NewFromConfig(cfg, b.options)
	return b.api, nil
}

// get returns at most limit bytes of an object, and its ETag; nil if there is none.
func (b *leaseBucket) get(ctx context.Context, key string, limit int64) (text []byte, etag string, err error) {
	api, err := b.client(ctx)
	if err != nil {
		return nil, "", err
	}
	out, err := api.GetObject(ctx, &awss3.GetObjectInput{Bucket: &b.name, Key: &key})
	b.clock.noteError(err)
	if errors.As(err, new(*types.NoSuchKey)) {
		return nil, "", nil
	} else if err != nil {
		return nil, "", err
	}
	defer out.Body.Close()
	b.clock.note(awsmiddleware.GetServerTime(out.ResultMetadata))
	text, err = io.ReadAll(io.LimitReader(out.Body, limit))
	return text, aws.ToString(out.ETag), err
}

// put writes an object and returns its ETag. Unless old is nil, the error is errLeaseChanged if the
// object does not have that ETag; if *old is "", the object must not exist.
func (b *leaseBucket) put(ctx context.Context, key string, text []byte, old *string) (etag string, err error) {
	api, err := b.client(ctx)
	if err != nil {
		return "", err
	}
	input := &awss3.PutObjectInput{Bucket: &b.name, Key: &key, Body: bytes.NewReader(text), ContentType: aws.String("application/json")}
	if old != nil && *old == "" {
		input.IfNoneMatch = aws.String("*")
	} else {
		input.IfMatch = old
	}
	out, err := api.PutObject(ctx, input)
	b.clock.noteError(err)
	var failed interface{ ErrorCode() string }
	status := responseStatus(err)
	switch {
	case old != nil && (status == http.StatusConflict || status == http.StatusPreconditionFailed):
		return "", errLeaseChanged // another process wrote it at the same time or before
	case input.IfMatch != nil && errors.As(err, &failed) && failed.ErrorCode() == "NoSuchKey":
		return "", errLeaseChanged // it was deleted
	case err != nil:
		return "", err
	}
	b.clock.note(awsmiddleware.GetServerTime(out.ResultMetadata))
	return aws.ToString(out.ETag), nil
}

// responseStatus returns the status of the response that an error is about, or 0.
func responseStatus(err error) int {
	var response interface{ HTTPStatusCode() int }
	if !errors.As(err, &response) {
		return 0
	}
	return response.HTTPStatusCode()
}
