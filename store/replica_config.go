package store

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/benbjohnson/litestream/s3"
	"go.yaml.in/yaml/v3"
)

// ReplicaConfig says where the copy of the database is kept, and how. It comes
// from a file in Litestream's own format, see [ReadReplicaConfig], or from a
// replica's URL, see [ParseReplicaURL].
type ReplicaConfig struct {
	Database string // the database's path, absolute; "" when it comes from a URL
	replica  replicaSettings

	MonitorInterval     time.Duration // the log is looked at as often
	CheckpointInterval  time.Duration // the log is moved into the database at least as often
	ShutdownSyncTimeout time.Duration // how long the last sync may take
	SnapshotInterval    time.Duration
	SnapshotRetention   time.Duration
	L0Retention         time.Duration // how long each single change is kept after it was merged with others
	L0RetentionInterval time.Duration
	CompactionIntervals []time.Duration // of the levels from 1 on
}

// replicaSettings are the keys of a replica, which may stand at the top of the
// file as well.
type replicaSettings struct {
	kind, url, path              string // kind is "file" or "s3"
	bucket, region, endpoint     string
	accessKeyID, secretAccessKey string
	storageClass, sseKMSKeyID    string
	forcePathStyle, signPayload  *bool
	skipVerify                   *bool
	partSize, concurrency        int64
	syncInterval                 time.Duration
}

// maxReplicaConfig bounds the file, in bytes.
const maxReplicaConfig = 1 << 20

func defaultReplicaConfig() *ReplicaConfig {
	c := &ReplicaConfig{
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
	c.replica.syncInterval = time.Second
	return c
}

// ReadReplicaConfig reads a file in Litestream's format. ${NAME} and $NAME in its
// values stand for what getenv returns; a name that it does not know is an
// error. It returns nil when the file names no database. The keys that are not
// supported here are refused, and all that is wrong is told at once, each with
// its line, and without the values of secrets.
func ReadReplicaConfig(name string, getenv func(string) (string, bool)) (*ReplicaConfig, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxReplicaConfig+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxReplicaConfig {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxReplicaConfig)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(root.Content) == 0 {
		return nil, nil
	}
	r := &configReader{name: name, getenv: getenv}
	c := defaultReplicaConfig()
	found := r.read(c, root.Content[0])
	if len(r.faults) > 0 {
		return nil, errors.New(strings.Join(r.faults, "; "))
	}
	if !found {
		return nil, nil
	}
	return c, nil
}

// ParseReplicaURL returns the configuration of the replica at a URL as
// Litestream knows them: file:///path, or s3://bucket/path?endpoint=…&region=….
func ParseReplicaURL(raw string) (*ReplicaConfig, error) {
	c := defaultReplicaConfig()
	c.replica.url = raw
	if what := c.replica.check(); what != "" {
		return nil, errors.New(what)
	}
	return c, nil
}

// configReader walks a file and remembers what is wrong with it.
type configReader struct {
	name   string
	getenv func(string) (string, bool)
	faults []string
}

func (r *configReader) fault(n *yaml.Node, format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf("%s:%d: ", r.name, n.Line)+fmt.Sprintf(format, args...))
}

// keys are those of a mapping that are supported, by their names.
type keys map[string]func(key string, value *yaml.Node)

// mapping reads a mapping, all of whose keys must be known.
func (r *configReader) mapping(what string, n *yaml.Node, known keys) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		r.fault(n, "%s must be a mapping of keys to values", what)
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := known[key.Value]
		switch {
		case seen[key.Value]:
			r.fault(key, "%s is given twice", key.Value)
		case read == nil:
			r.fault(key, "%s is not supported here%s", key.Value, instead[key.Value])
		case value.Tag == "!!null":
			// Litestream takes an empty value for none.
		default:
			read(key.Value, value)
		}
		seen[key.Value] = true
	}
}

// instead says for some of Litestream's keys what to do.
var instead = map[string]string{
	"addr":                      "; the service's own /metrics has what there is to measure",
	"exec":                      "; Litestream runs within the service",
	"logging":                   "; --log-format and --log-level are the service's",
	"socket":                    "; Litestream runs within the service",
	"mcp-addr":                  "; Litestream runs within the service",
	"dir":                       "; the service has one database, named by path",
	"meta-path":                 "; it is always beside the database",
	"restore-if-db-not-exists":  "; the service does so by itself",
	"busy-timeout":              "; the service sets it",
	"min-checkpoint-page-count": "; the service sets it",
	"truncate-page-n":           "; the service sets it",
	"max-sync-wal-bytes":        "; the service sets it",
	"age":                       "; Litestream itself does not encrypt any more",
	"auto-recover":              "; the service recovers by itself",
}

func (r *configReader) sequence(key string, n *yaml.Node, item func(*yaml.Node)) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.SequenceNode {
		r.fault(n, "%s must be a list", key)
		return
	}
	for _, value := range n.Content {
		item(value)
	}
}

// text returns a value with the environment's variables in it replaced.
func (r *configReader) text(key string, n *yaml.Node) string {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		r.fault(n, "%s must be a single value", key)
		return ""
	}
	return os.Expand(n.Value, func(name string) string {
		value, ok := r.getenv(name)
		if !ok {
			r.fault(n, "%s refers to the environment variable %s, which is not set", key, name)
		}
		return value
	})
}

func (r *configReader) string(to *string) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) { *to = r.text(key, n) }
}

func (r *configReader) bool(to **bool) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		s := r.text(key, n)
		b, err := strconv.ParseBool(s)
		if err != nil {
			r.fault(n, "%s must be true or false, not %q", key, s)
		}
		*to = &b
	}
}

// number reads a whole number of at least least.
func (r *configReader) number(to *int64, least int64) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		s := r.text(key, n)
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v < least {
			r.fault(n, "%s must be a whole number of at least %d, not %q", key, least, s)
		}
		*to = v
	}
}

// duration reads a duration of at least least.
func (r *configReader) duration(to *time.Duration, least time.Duration) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		s := r.text(key, n)
		d, err := time.ParseDuration(s)
		if err != nil || d < least || d > maxInterval {
			r.fault(n, "%s must be a duration from %s to %s, such as 1s or 24h, not %q", key, least, maxInterval, s)
		}
		*to = d
	}
}

// maxInterval bounds every duration of the file.
const maxInterval = 10 * 365 * 24 * time.Hour

// read reads the whole file, and says whether it names a database.
func (r *configReader) read(c *ReplicaConfig, root *yaml.Node) (found bool) {
	var top replicaSettings
	known := r.replicaKeys(&top)
	for _, key := range []string{"type", "url", "path"} {
		delete(known, key) // they are the replica's own
	}
	known["snapshot"] = r.snapshot(c)
	known["l0-retention"] = r.duration(&c.L0Retention, time.Second)
	known["l0-retention-check-interval"] = r.duration(&c.L0RetentionInterval, time.Second)
	known["shutdown-sync-timeout"] = r.duration(&c.ShutdownSyncTimeout, 0)
	known["levels"] = func(key string, n *yaml.Node) {
		c.CompactionIntervals = nil
		r.sequence(key, n, func(n *yaml.Node) {
			var d time.Duration
			r.mapping("a level", n, keys{"interval": r.duration(&d, time.Second)})
			c.CompactionIntervals = append(c.CompactionIntervals, d)
		})
		for i, d := range c.CompactionIntervals {
			if i > 0 && d <= c.CompactionIntervals[i-1] || d == 0 {
				r.fault(n, "each level's interval must be longer than that of the one before")
				break
			}
		}
		if len(c.CompactionIntervals) == 0 || len(c.CompactionIntervals) >= litestream.SnapshotLevel {
			r.fault(n, "levels must be 1 to %d", litestream.SnapshotLevel-1)
		}
	}
	var dbs []*yaml.Node
	known["dbs"] = func(key string, n *yaml.Node) {
		r.sequence(key, n, func(n *yaml.Node) { dbs = append(dbs, n) })
	}
	r.mapping("the file", root, known)
	if len(dbs) == 0 {
		return false
	}
	if len(dbs) > 1 {
		r.fault(dbs[1], "dbs must name one database, the service's")
	}
	r.database(c, dbs[0], top)
	return true
}

func (r *configReader) database(c *ReplicaConfig, n *yaml.Node, top replicaSettings) {
	var replicas []*yaml.Node
	r.mapping("a database", n, keys{
		"path":                r.string(&c.Database),
		"snapshot":            r.snapshot(c),
		"monitor-interval":    r.duration(&c.MonitorInterval, 10*time.Millisecond),
		"checkpoint-interval": r.duration(&c.CheckpointInterval, time.Second),
		"replica":             func(_ string, n *yaml.Node) { replicas = append(replicas, n) },
		"replicas": func(key string, n *yaml.Node) {
			r.sequence(key, n, func(n *yaml.Node) { replicas = append(replicas, n) })
		},
	})
	if c.Database == "" {
		r.fault(n, "path must name the database, service.db in the data directory")
	} else if abs, err := filepath.Abs(c.Database); err != nil {
		r.fault(n, "path: %v", err)
	} else {
		c.Database = abs
	}
	if len(replicas) != 1 {
		r.fault(n, "a database must have one replica, not %d", len(replicas))
		return
	}
	wait := c.replica.syncInterval
	c.replica = top
	if c.replica.syncInterval == 0 {
		c.replica.syncInterval = wait
	}
	r.mapping("a replica", replicas[0], r.replicaKeys(&c.replica))
	if len(r.faults) == 0 {
		if what := c.replica.check(); what != "" {
			r.fault(replicas[0], "%s", what)
		}
	}
}

func (r *configReader) snapshot(c *ReplicaConfig) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		r.mapping(key, n, keys{
			"interval":  r.duration(&c.SnapshotInterval, time.Second),
			"retention": r.duration(&c.SnapshotRetention, time.Second),
		})
	}
}

func (r *configReader) replicaKeys(to *replicaSettings) keys {
	return keys{
		"type":              r.string(&to.kind),
		"url":               r.string(&to.url),
		"path":              r.string(&to.path),
		"bucket":            r.string(&to.bucket),
		"region":            r.string(&to.region),
		"endpoint":          r.string(&to.endpoint),
		"access-key-id":     r.string(&to.accessKeyID),
		"secret-access-key": r.string(&to.secretAccessKey),
		"storage-class":     r.string(&to.storageClass),
		"sse-kms-key-id":    r.string(&to.sseKMSKeyID),
		"force-path-style":  r.bool(&to.forcePathStyle),
		"sign-payload":      r.bool(&to.signPayload),
		"skip-verify":       r.bool(&to.skipVerify),
		"part-size":         r.number(&to.partSize, 5<<20),
		"concurrency":       r.number(&to.concurrency, 1),
		"sync-interval":     r.duration(&to.syncInterval, 10*time.Millisecond),
	}
}

// check says what is wrong with the settings of a replica, "" for nothing, and
// fills the kind in.
func (p *replicaSettings) check() string {
	if p.url != "" {
		if p.path != "" || p.bucket != "" {
			return "a replica has either a url, or a path and a bucket"
		}
		kind := litestream.ReplicaTypeFromURL(p.url)
		if kind != "file" && kind != "s3" {
			return "the url of a replica must begin with file:// or s3://"
		}
		if p.kind != "" && p.kind != kind {
			return fmt.Sprintf("a replica's type is %q, and its url is of the type %q", p.kind, kind)
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
		return "a replica needs a url, or a type (file or s3) with a path or a bucket"
	case p.kind != "file" && p.kind != "s3":
		return fmt.Sprintf("the type of a replica must be file or s3, not %q", p.kind)
	case litestream.IsURL(p.path):
		return "the path of a replica is a URL: that belongs into url"
	case p.kind == "file" && p.path == "" && p.url == "":
		return "a file replica needs a path"
	case p.kind == "s3" && p.bucket == "" && p.url == "":
		return "an s3 replica needs a bucket"
	case (p.accessKeyID == "") != (p.secretAccessKey == ""):
		return "access-key-id and secret-access-key belong together"
	}
	if _, err := p.client(nil); err != nil {
		return err.Error()
	}
	return ""
}

// client returns a new client for the replica. It does not connect.
func (p *replicaSettings) client(r *litestream.Replica) (litestream.ReplicaClient, error) {
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
		c.Endpoint, c.ForcePathStyle = p.endpoint, true // but for AWS itself, which needs no endpoint
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

// Target says where the replica is, without secrets: file:///path or
// s3://bucket/path.
func (c *ReplicaConfig) Target() string {
	switch client, err := c.replica.client(nil); x := client.(type) {
	case *file.ReplicaClient:
		return (&url.URL{Scheme: "file", OmitHost: false, Path: x.Path()}).String()
	case *s3.ReplicaClient:
		target := (&url.URL{Scheme: "s3", Host: x.Bucket, Path: "/" + strings.TrimPrefix(x.Path, "/")}).String()
		if e, parseErr := url.Parse(x.Endpoint); parseErr == nil && e.Host != "" {
			target += " at " + e.Host
		}
		return target
	default:
		return fmt.Sprint(err) // check has made sure that there is none
	}
}

// Bucket says whether the replica is in a bucket, and not in a folder.
func (c *ReplicaConfig) Bucket() bool { return c.replica.kind == "s3" }
