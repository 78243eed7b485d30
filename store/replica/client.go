package replica

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/benbjohnson/litestream/s3"
)

// settings are the configuration keys of a replica. All except type, url and path may
// also be at the top level of the file.
type settings struct {
	kind, url, path              string // kind is "file" or "s3"
	bucket, region, endpoint     string
	accessKeyID, secretAccessKey string
	storageClass, sseKMSKeyID    string
	forcePathStyle, signPayload  *bool
	skipVerify                   *bool
	partSize, concurrency        int64
	syncInterval                 time.Duration
	syncIntervalSet              bool // the configuration sets syncInterval
}

// validate sets kind when it is empty, and returns the first problem of the
// settings.
func (p *settings) validate() error {
	if p.url != "" {
		if p.path != "" || p.bucket != "" {
			return errors.New("a replica must have either a url, or a path and a bucket")
		}
		kind := litestream.ReplicaTypeFromURL(p.url)
		if kind != "file" && kind != "s3" {
			return errors.New("the url of a replica must begin with file:// or s3://")
		}
		if p.kind != "" && p.kind != kind {
			return fmt.Errorf("the type of the replica is %q, but its url has the type %q", p.kind, kind)
		}
		p.kind = kind
	}
	if p.kind == "" {
		switch {
		case p.bucket != "":
			p.kind = "s3"
		case p.path != "":
			p.kind = "file"
		}
	}
	switch {
	case p.kind == "":
		return errors.New("a replica must have a url, or a type (file or s3) with a path or a bucket")
	case p.kind != "file" && p.kind != "s3":
		return fmt.Errorf("the type of a replica must be file or s3, not %q", p.kind)
	case litestream.IsURL(p.path):
		return errors.New("the path of a replica must not be a URL; use url instead")
	case p.kind == "file" && p.path == "" && p.url == "":
		return errors.New("a replica of the type file must have a path")
	case p.kind == "s3" && p.bucket == "" && p.url == "":
		return errors.New("a replica of the type s3 must have a bucket")
	case (p.accessKeyID == "") != (p.secretAccessKey == ""):
		return errors.New("access-key-id and secret-access-key must be set together")
	}
	_, err := p.newClient(nil)
	return err
}

// newClient returns a client of the replica. It does not connect.
func (p *settings) newClient(r *litestream.Replica) (litestream.ReplicaClient, error) {
	if p.kind == "file" {
		path := p.path
		if p.url != "" {
			_, _, fromURL, err := litestream.ParseReplicaURL(p.url)
			if err != nil {
				return nil, err
			}
			path = fromURL
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		c := file.NewReplicaClient(path)
		c.Replica = r
		return c, nil
	}
	c := s3.NewReplicaClient()
	if p.url != "" {
		fromURL, err := litestream.NewReplicaClientFromURL(p.url)
		if err != nil {
			return nil, fmt.Errorf("the url of the replica: %w", err)
		}
		c = fromURL.(*s3.ReplicaClient)
	}
	set := func(to *string, value string) {
		if value != "" {
			*to = value
		}
	}
	set(&c.Bucket, p.bucket)
	set(&c.Path, p.path)
	set(&c.Region, p.region)
	set(&c.AccessKeyID, p.accessKeyID)
	set(&c.SecretAccessKey, p.secretAccessKey)
	set(&c.StorageClass, p.storageClass)
	set(&c.SSEKMSKeyID, p.sseKMSKeyID)
	if p.endpoint != "" {
		c.Endpoint, c.ForcePathStyle = p.endpoint, true // AWS itself needs no endpoint
	}
	if p.forcePathStyle != nil {
		c.ForcePathStyle = *p.forcePathStyle
	}
	if p.signPayload != nil {
		c.SignPayload = *p.signPayload
	}
	if p.skipVerify != nil {
		c.SkipVerify = *p.skipVerify
	}
	if p.partSize > 0 {
		c.PartSize = p.partSize
	}
	if p.concurrency > 0 {
		c.Concurrency = int(p.concurrency)
	}
	return c, nil
}
