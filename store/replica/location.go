package replica

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
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

// termsFolder is the folder with one subfolder per term.
const termsFolder = "terms"

// errNoTerm means that a term does not exist.
var errNoTerm = errors.New("the term does not exist")

// location is the place of a replica: a bucket or a directory. It is safe for concurrent use.
type location interface {
	// terms returns the numbers of the terms that have begun, in increasing order. It
	// may include numbers without a record.
	terms(ctx context.Context) ([]int64, error)
	// claim creates a term with a record. The error is errTermTaken if the term exists.
	claim(ctx context.Context, number int64, text []byte) error
	// read reads the record of a term or the sign of life in it, nil if there is none.
	read(ctx context.Context, number int64, name string) ([]byte, error)
	// write replaces the record or the sign of life in a term of this service.
	write(ctx context.Context, number int64, name string, text []byte) error
	// client returns a client of a term's own files, or of the files at the path itself for 0.
	client(number int64) (litestream.ReplicaClient, error)
	// copyFile copies a file from one term to another, without downloading it.
	copyFile(ctx context.Context, from, to int64, f *ltx.FileInfo) error
	// removeTerm deletes a term and its files.
	removeTerm(ctx context.Context, number int64) error
	// plain reports whether there are files of Litestream at the path itself, instead of in a
	// term, and whether the path is that of a term: it contains the record of a term.
	plain(ctx context.Context) (files, ofTerm bool, err error)
}

// location returns the location of a configuration. It does not connect.
func (cfg *Config) location(ctx context.Context) (location, error) {
	cfg.mu.Lock()
	defer cfg.mu.Unlock()
	if cfg.opened == nil {
		at, err := newLocation(ctx, cfg)
		if err != nil {
			return nil, err
		}
		cfg.opened = at
	}
	return cfg.opened, nil
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

// termPath returns the path of a term's own files, for a replica at root; root for 0.
func termPath(root string, number int64) string {
	if number == 0 {
		return root
	}
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
	client, err := l.cfg.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	c := client.(*s3.ReplicaClient)
	c.SetLogger(quiet)
	c.Path = termPath(c.Path, number)
	l.clients[number] = c
	return c, nil
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

func (l *bucketLocation) claim(ctx context.Context, number int64, text []byte) error {
	_, err := l.bucket.put(ctx, l.key(number, termName), text, new(string))
	switch {
	case errors.Is(err, errLeaseChanged):
		if found, err := l.read(ctx, number, termName); err != nil || !bytes.Equal(found, text) {
			return errTermTaken
		}
		return nil // the response to an earlier attempt of this request was lost
	case responseStatus(err) == http.StatusNotImplemented: // the bucket has no conditional writes
		if found, err := l.read(ctx, number, termName); err != nil || found != nil {
			return cmp.Or(err, errTermTaken)
		}
		return l.write(ctx, number, termName, text)
	}
	return err
}

func (l *bucketLocation) read(ctx context.Context, number int64, name string) ([]byte, error) {
	text, _, err := l.bucket.get(ctx, l.key(number, name), maxLeaseBytes)
	return text, err
}

func (l *bucketLocation) write(ctx context.Context, number int64, name string, text []byte) error {
	_, err := l.bucket.put(ctx, l.key(number, name), text, nil)
	return err
}

func (l *bucketLocation) copyFile(ctx context.Context, from, to int64, f *ltx.FileInfo) error {
	api, err := l.bucket.client(ctx)
	if err != nil {
		return err
	}
	source, key := l.key(from, objectName(f)), l.key(to, objectName(f))
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

func (l *folderLocation) dir(number int64) string {
	return filepath.FromSlash(termPath(filepath.ToSlash(l.root), number))
}

func (l *folderLocation) terms(context.Context) ([]int64, error) {
	entries, err := os.ReadDir(filepath.Join(l.root, termsFolder))
	if err != nil {
		return nil, ignoreNoFile(err)
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

func (l *folderLocation) claim(ctx context.Context, number int64, text []byte) error {
	terms := filepath.Join(l.root, termsFolder)
	if err := os.MkdirAll(terms, 0o700); err != nil {
		return err
	}
	err := os.Mkdir(l.dir(number), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return errTermTaken
	} else if err != nil {
		return err
	}
	if err := errors.Join(durable.SyncDir(terms), durable.SyncDir(l.root)); err != nil {
		return err
	}
	return l.write(ctx, number, termName, text)
}

func (l *folderLocation) read(_ context.Context, number int64, name string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(l.dir(number), name))
	return text, ignoreNoFile(err)
}

func (l *folderLocation) write(_ context.Context, number int64, name string, text []byte) error {
	return durable.WriteFile(filepath.Join(l.dir(number), name), text, 0o600)
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
