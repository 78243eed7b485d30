package replica

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/benbjohnson/litestream/s3"
	"github.com/superfly/ltx"

	"service/internal/durable"
)

var (
	quiet  = slog.New(slog.DiscardHandler)
	noTime time.Time
)

// termsFolder is the folder with a subfolder for each term.
const termsFolder = "terms"

// errNoTerm means that a term does not exist.
var errNoTerm = errors.New("the term does not exist")

// location is where a replica is: a bucket or a directory. It is safe for concurrent use.
type location interface {
	// terms returns the numbers of the terms that have begun, in increasing order. It
	// may include numbers without a record.
	terms(ctx context.Context) ([]int64, error)
	// readTerm reads the record of a term. The error wraps errNoTerm if there is none.
	readTerm(ctx context.Context, number int64) (term, error)
	// claim creates a term. The error wraps errTermTaken if it exists.
	claim(ctx context.Context, t term) error
	// writeTerm replaces the record of a term of this service.
	writeTerm(ctx context.Context, t term) error
	// readWriter reads the sign of life in a term, nil if there is none.
	readWriter(ctx context.Context, number int64) ([]byte, error)
	// writeWriter replaces the sign of life in a term of this service.
	writeWriter(ctx context.Context, number int64, text []byte) error
	// client returns a client of a term's own files.
	client(number int64) (litestream.ReplicaClient, error)
	// copyFile copies a file from one term to another, without downloading it.
	copyFile(ctx context.Context, from, to int64, f *ltx.FileInfo) error
	// removeTerm deletes a term and its files.
	removeTerm(ctx context.Context, number int64) error
	// plain reports whether there are files of Litestream at the path itself, instead of in a
	// term, and whether the path is that of a term: it has the record of a term.
	plain(ctx context.Context) (files, ofTerm bool, err error)
	// plainClient returns a client of those files.
	plainClient() (litestream.ReplicaClient, error)
}

// openedLocation caches the location of a configuration, to keep its clients: if this
// machine's clock differs from the bucket's, the bucket rejects the first request of each
// S3 client, and the client waits before it retries.
type openedLocation struct {
	mu sync.Mutex
	at location // nil until first used
}

// location returns the location of a configuration. It does not connect.
func (cfg *Config) location(ctx context.Context) (location, error) {
	cfg.opened.mu.Lock()
	defer cfg.opened.mu.Unlock()
	if cfg.opened.at == nil {
		at, err := newLocation(ctx, cfg)
		if err != nil {
			return nil, err
		}
		cfg.opened.at = at
	}
	return cfg.opened.at, nil
}

// newLocation creates the location of a configuration.
func newLocation(ctx context.Context, cfg *Config) (location, error) {
	client, err := cfg.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	switch c := client.(type) {
	case *s3.ReplicaClient:
		bucket, err := newLeaseBucket(ctx, c)
		return &bucketLocation{
			cfg: cfg, bucket: bucket, root: c.Path, clients: make(map[int64]litestream.ReplicaClient),
		}, err
	case *file.ReplicaClient:
		return &folderLocation{c.Path()}, nil
	}
	return nil, fmt.Errorf("a replica of the type %s has no terms", client.Type())
}

// termPath returns the path of a term's own files, for a replica at root.
func termPath(root string, number int64) string {
	return path.Join(root, termsFolder, fmt.Sprintf("%04d", number))
}

// parseTerm returns the number of the term with the given folder name, or 0 if the name is
// not valid.
func parseTerm(name string) int64 {
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil || n < 1 || len(name) < 4 {
		return 0
	}
	return n
}

// bucketLocation is a location at a path in a bucket.
type bucketLocation struct {
	cfg    *Config
	bucket *leaseBucket
	root   string

	mu      sync.Mutex
	clients map[int64]litestream.ReplicaClient // by term
}

func (l *bucketLocation) client(number int64) (litestream.ReplicaClient, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.clients[number]; c != nil {
		return c, nil
	}
	client, err := l.plainClient()
	if err != nil {
		return nil, err
	}
	c := client.(*s3.ReplicaClient)
	c.Path = termPath(c.Path, number)
	l.clients[number] = c
	return c, nil
}

func (l *bucketLocation) plainClient() (litestream.ReplicaClient, error) {
	client, err := l.cfg.settings.newClient(nil)
	if err == nil {
		client.SetLogger(quiet)
	}
	return client, err
}

func (l *bucketLocation) key(number int64, name string) string {
	return path.Join(termPath(l.root, number), name)
}

func (l *bucketLocation) terms(ctx context.Context) ([]int64, error) {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return nil, err
	}
	prefix := path.Join(l.root, termsFolder) + "/"
	pages := awss3.NewListObjectsV2Paginator(api, &awss3.ListObjectsV2Input{
		Bucket: &l.bucket.name, Prefix: &prefix, Delimiter: aws.String("/"),
	})
	var numbers []int64
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range page.CommonPrefixes {
			if n := parseTerm(path.Base(aws.ToString(p.Prefix))); n > 0 {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (l *bucketLocation) readTerm(ctx context.Context, number int64) (t term, err error) {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return t, err
	}
	key := l.key(number, termName)
	out, err := api.GetObject(ctx, &awss3.GetObjectInput{Bucket: &l.bucket.name, Key: &key})
	var none *types.NoSuchKey
	if errors.As(err, &none) {
		return t, errNoTerm
	} else if err != nil {
		return t, err
	}
	defer out.Body.Close()
	return t, json.NewDecoder(io.LimitReader(out.Body, 1<<16)).Decode(&t)
}

func (l *bucketLocation) claim(ctx context.Context, t term) error {
	return l.put(ctx, t, aws.String("*"))
}

func (l *bucketLocation) writeTerm(ctx context.Context, t term) error { return l.put(ctx, t, nil) }

// put writes the record of a term, with the precondition If-None-Match unless that is nil.
func (l *bucketLocation) put(ctx context.Context, t term, ifNoneMatch *string) error {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	key := l.key(t.Number, termName)
	_, err = api.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: &l.bucket.name, Key: &key, Body: bytes.NewReader(text), ContentType: aws.String("application/json"), IfNoneMatch: ifNoneMatch,
	})
	var response interface{ HTTPStatusCode() int }
	if errors.As(err, &response) {
		switch response.HTTPStatusCode() {
		case 409, 412: // another process wrote it at the same time or before
			// Or the response to an earlier attempt of this request was lost.
			if found, err := l.readTerm(ctx, t.Number); err == nil && found.Nonce == t.Nonce {
				return nil
			}
			return errTermTaken
		case 501: // the bucket has no conditional writes
			if ifNoneMatch == nil {
				return err
			}
			if _, err := l.readTerm(ctx, t.Number); !errors.Is(err, errNoTerm) {
				return cmp.Or(err, errTermTaken)
			}
			return l.put(ctx, t, nil)
		}
	}
	return err
}

func (l *bucketLocation) readWriter(ctx context.Context, number int64) ([]byte, error) {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return nil, err
	}
	out, err := api.GetObject(ctx, &awss3.GetObjectInput{Bucket: &l.bucket.name, Key: aws.String(l.key(number, writerName))})
	var none *types.NoSuchKey
	if errors.As(err, &none) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	return io.ReadAll(io.LimitReader(out.Body, maxNodeBytes))
}

func (l *bucketLocation) writeWriter(ctx context.Context, number int64, text []byte) error {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return err
	}
	_, err = api.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: &l.bucket.name, Key: aws.String(l.key(number, writerName)), Body: bytes.NewReader(text),
		ContentType: aws.String("application/json"),
	})
	return err
}

func (l *bucketLocation) copyFile(ctx context.Context, from, to int64, f *ltx.FileInfo) error {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%04x/%s", f.Level, ltx.FormatFilename(f.MinTXID, f.MaxTXID))
	source, key := l.key(from, name), l.key(to, name)
	_, err = api.CopyObject(ctx, &awss3.CopyObjectInput{
		Bucket: &l.bucket.name, Key: &key, CopySource: aws.String(copySource(l.bucket.name, source)),
	})
	return err
}

// copySource returns the value of the header x-amz-copy-source for a key.
func copySource(bucket, key string) string {
	parts := strings.Split(bucket+"/"+key, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

func (l *bucketLocation) removeTerm(ctx context.Context, number int64) error {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return err
	}
	prefix := termPath(l.root, number) + "/"
	pages := awss3.NewListObjectsV2Paginator(api, &awss3.ListObjectsV2Input{Bucket: &l.bucket.name, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			if _, err := api.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &l.bucket.name, Key: o.Key}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *bucketLocation) plain(ctx context.Context) (files, ofTerm bool, err error) {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return false, false, err
	}
	prefix := l.root + "/" // their keys begin with a slash if the root is empty
	page, err := api.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{
		Bucket: &l.bucket.name, Prefix: &prefix, Delimiter: aws.String("/"),
	})
	if err != nil {
		return false, false, err
	}
	files = slices.ContainsFunc(page.CommonPrefixes, func(p types.CommonPrefix) bool {
		name := path.Base(aws.ToString(p.Prefix)) // of a level, in four digits
		level, err := strconv.ParseUint(name, 16, 16)
		return err == nil && level <= litestream.SnapshotLevel && len(name) == 4
	})
	ofTerm = slices.ContainsFunc(page.Contents, func(o types.Object) bool { return path.Base(aws.ToString(o.Key)) == termName })
	return files, ofTerm, nil
}

// folderLocation is a location in a directory.
type folderLocation struct{ root string }

func (l *folderLocation) client(number int64) (litestream.ReplicaClient, error) {
	c := file.NewReplicaClient(l.dir(number))
	c.SetLogger(quiet)
	return c, nil
}

func (l *folderLocation) plainClient() (litestream.ReplicaClient, error) {
	c := file.NewReplicaClient(l.root)
	c.SetLogger(quiet)
	return c, nil
}

func (l *folderLocation) dir(number int64) string {
	return filepath.FromSlash(termPath(filepath.ToSlash(l.root), number))
}

func (l *folderLocation) terms(context.Context) ([]int64, error) {
	entries, err := os.ReadDir(filepath.Join(l.root, termsFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var numbers []int64
	for _, e := range entries {
		n := parseTerm(e.Name())
		if n == 0 {
			continue
		}
		// A folder without a record is being claimed, or the process that claimed it
		// has died.
		if _, err := os.Stat(filepath.Join(l.dir(n), termName)); err == nil {
			numbers = append(numbers, n)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (l *folderLocation) readTerm(_ context.Context, number int64) (t term, err error) {
	text, err := os.ReadFile(filepath.Join(l.dir(number), termName))
	if errors.Is(err, fs.ErrNotExist) {
		return t, errNoTerm
	} else if err != nil {
		return t, err
	}
	return t, json.Unmarshal(text, &t)
}

func (l *folderLocation) claim(ctx context.Context, t term) error {
	terms := filepath.Join(l.root, termsFolder)
	if err := os.MkdirAll(terms, 0o700); err != nil {
		return err
	}
	err := os.Mkdir(l.dir(t.Number), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return errTermTaken
	} else if err != nil {
		return err
	}
	if err := errors.Join(durable.SyncDir(terms), durable.SyncDir(l.root)); err != nil {
		return err
	}
	return l.writeTerm(ctx, t)
}

func (l *folderLocation) writeTerm(_ context.Context, t term) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(l.dir(t.Number), termName), append(text, '\n'), 0o600)
}

func (l *folderLocation) readWriter(_ context.Context, number int64) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(l.dir(number), writerName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

func (l *folderLocation) writeWriter(_ context.Context, number int64, text []byte) error {
	return durable.WriteFile(filepath.Join(l.dir(number), writerName), text, 0o600)
}

func (l *folderLocation) copyFile(_ context.Context, from, to int64, f *ltx.FileInfo) error {
	target := file.NewReplicaClient(l.dir(to)).LTXFilePath(f.Level, f.MinTXID, f.MaxTXID)
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	err := os.Link(file.NewReplicaClient(l.dir(from)).LTXFilePath(f.Level, f.MinTXID, f.MaxTXID), target)
	if errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(target))
}

func (l *folderLocation) removeTerm(_ context.Context, number int64) error {
	return os.RemoveAll(l.dir(number))
}

func (l *folderLocation) plain(context.Context) (files, ofTerm bool, err error) {
	for name, found := range map[string]*bool{"ltx": &files, termName: &ofTerm} {
		_, err := os.Stat(filepath.Join(l.root, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, false, err
		}
		*found = err == nil
	}
	return files, ofTerm, nil
}
