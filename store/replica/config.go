package replica

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/benbjohnson/litestream/s3"
	"go.yaml.in/yaml/v3"
)

// Config is the configuration of a replica. It comes from a file in Litestream's format,
// see [ReadConfig], or from a URL, see [ParseURL].
type Config struct {
	Database string // absolute path of the database; "" if the configuration comes from a URL
	settings settings
	// gone is the mark of the writer that was seen to be gone, nil for none, see writerState. The
	// services of a process share it: the mark stays valid until the sign of life changes.
	gone atomic.Pointer[string]

	// opened is nil until first used. Its clients are kept: if this machine's clock differs from
	// the bucket's, the bucket rejects the first request of each S3 client, and the client waits
	// before it retries.
	opened location
	mu     sync.Mutex // held while opened is set

	MonitorInterval     time.Duration // time between two checks of the WAL
	CheckpointInterval  time.Duration // maximum time between two checkpoints
	ShutdownSyncTimeout time.Duration // timeout of the last upload, in Close
	SnapshotInterval    time.Duration
	SnapshotRetention   time.Duration
	L0Retention         time.Duration // how long a file of level 0 is kept after its compaction
	L0RetentionInterval time.Duration
	CompactionIntervals []time.Duration // of level 1 and the following levels
}

// maxConfigBytes is the largest file that ReadConfig accepts.
const maxConfigBytes = 1 << 20

func defaultConfig() *Config {
	c := &Config{
		MonitorInterval:     500 * time.Millisecond,
		CheckpointInterval:  litestream.DefaultCheckpointInterval,
		ShutdownSyncTimeout: 8 * time.Second,
		SnapshotInterval:    litestream.DefaultSnapshotInterval,
		SnapshotRetention:   litestream.DefaultSnapshotRetention,
		L0Retention:         litestream.DefaultL0Retention,
		L0RetentionInterval: litestream.DefaultL0RetentionCheckInterval,
	}
	for _, l := range litestream.DefaultCompactionLevels[1:] {
		c.CompactionIntervals = append(c.CompactionIntervals, l.Interval)
	}
	c.settings.syncInterval = time.Second
	return c
}

// ReadConfig reads a file in Litestream's format. It replaces ${NAME} and $NAME in
// values by the result of getenv; a name that is not set is an error. It rejects
// unsupported keys. The error lists every problem with its line, and never contains the
// value of a secret. ReadConfig returns nil if the file names no database.
func ReadConfig(name string, getenv func(string) (string, bool)) (*Config, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxConfigBytes)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(root.Content) == 0 {
		return nil, nil
	}
	r := &configReader{name: name, getenv: getenv}
	c := defaultConfig()
	found := r.read(c, root.Content[0])
	if len(r.errs) > 0 {
		return nil, errors.New(strings.Join(r.errs, "; "))
	}
	if !found {
		return nil, nil
	}
	return c, nil
}

// ParseURL returns the configuration of the replica at a URL in Litestream's
// format: file:///path, or s3://bucket/path?endpoint=…&region=….
func ParseURL(raw string) (*Config, error) {
	c := defaultConfig()
	c.settings.url = raw
	if err := c.settings.validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// Target returns the location of the replica without secrets: file:///path or
// s3://bucket/path.
func (c *Config) Target() string {
	switch client, err := c.settings.newClient(nil); x := client.(type) {
	case *file.ReplicaClient:
		return (&url.URL{Scheme: "file", OmitHost: false, Path: x.Path()}).String()
	case *s3.ReplicaClient:
		target := (&url.URL{Scheme: "s3", Host: x.Bucket, Path: "/" + strings.TrimPrefix(x.Path, "/")}).String()
		if e, parseErr := url.Parse(x.Endpoint); parseErr == nil && e.Host != "" {
			target += " at " + e.Host
		}
		return target
	default:
		return fmt.Sprint(err) // does not happen: see validate
	}
}

// IsS3 reports whether the replica is in a bucket, not in a directory.
func (c *Config) IsS3() bool { return c.settings.kind == "s3" }

// CheckDatabase returns an error if the configuration is for a database other than the
// one at path. The directory of path must exist.
func (c *Config) CheckDatabase(path string) error {
	if c.Database == "" {
		return nil
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	named, err := os.Stat(filepath.Dir(c.Database))
	if err != nil || !os.SameFile(dir, named) || filepath.Base(c.Database) != filepath.Base(path) {
		return fmt.Errorf("the replica's configuration is for the database %s, and this one is %s: set path under dbs to this one",
			c.Database, path)
	}
	return nil
}
