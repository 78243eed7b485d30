package replica

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/benbjohnson/litestream"
	"go.yaml.in/yaml/v3"
)

// configReader reads a file in Litestream's format and collects its errors.
type configReader struct {
	name   string
	getenv func(string) (string, bool)
	errs   []string
}

func (r *configReader) errorf(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Sprintf("%s:%d: ", r.name, n.Line)+fmt.Sprintf(format, args...))
}

// keys maps the supported keys of a mapping to the functions that read their
// values.
type keys map[string]func(key string, value *yaml.Node)

// mapping reads a mapping. A key that is not in known is an error.
func (r *configReader) mapping(what string, n *yaml.Node, known keys) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		r.errorf(n, "%s must be a mapping of keys to values", what)
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := known[key.Value]
		switch {
		case seen[key.Value]:
			r.errorf(key, "%s is set twice", key.Value)
		case read == nil:
			r.errorf(key, "%s is not supported here%s", key.Value, instead[key.Value])
		case value.Tag == "!!null":
			// Litestream treats an empty value as an absent key.
		default:
			read(key.Value, value)
		}
		seen[key.Value] = true
	}
}

// instead is appended to the error about some of Litestream's keys that are not supported.
var instead = map[string]string{
	"addr":                      "; use the service's own /metrics",
	"exec":                      "; Litestream runs inside the service",
	"logging":                   "; use --log-format and --log-level",
	"socket":                    "; Litestream runs inside the service",
	"mcp-addr":                  "; Litestream runs inside the service",
	"dir":                       "; the service has one database, set by path",
	"meta-path":                 "; it is always next to the database",
	"restore-if-db-not-exists":  "; the service always does this",
	"busy-timeout":              "; the service sets it",
	"min-checkpoint-page-count": "; the service sets it",
	"truncate-page-n":           "; the service sets it",
	"max-sync-wal-bytes":        "; the service sets it",
	"age":                       "; Litestream no longer supports encryption",
	"auto-recover":              "; the service recovers by itself",
}

func (r *configReader) sequence(key string, n *yaml.Node, item func(*yaml.Node)) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.SequenceNode {
		r.errorf(n, "%s must be a list", key)
		return
	}
	for _, value := range n.Content {
		item(value)
	}
}

// text returns the value of a scalar, with environment variables expanded.
func (r *configReader) text(key string, n *yaml.Node) string {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		r.errorf(n, "%s must be a single value", key)
		return ""
	}
	return os.Expand(n.Value, func(name string) string {
		value, ok := r.getenv(name)
		if !ok {
			r.errorf(n, "%s refers to the environment variable %s, which is not set", key, name)
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
			r.errorf(n, "%s must be true or false, not %q", key, s)
		}
		*to = &b
	}
}

// number reads an integer of at least lowest.
func (r *configReader) number(to *int64, lowest int64) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		s := r.text(key, n)
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v < lowest {
			r.errorf(n, "%s must be a whole number of at least %d, not %q", key, lowest, s)
		}
		*to = v
	}
}

// duration reads a duration from lowest to maxInterval.
func (r *configReader) duration(to *time.Duration, lowest time.Duration) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		s := r.text(key, n)
		d, err := time.ParseDuration(s)
		if err != nil || d < lowest || d > maxInterval {
			r.errorf(n, "%s must be a duration from %s to %s, such as 1s or 24h, not %q", key, lowest, maxInterval, s)
		}
		*to = d
	}
}

// maxInterval is the maximum duration in a file.
const maxInterval = 10 * 365 * 24 * time.Hour

// read reads the whole file into c and reports whether it names a database.
func (r *configReader) read(c *Config, root *yaml.Node) (found bool) {
	var top settings
	known := r.replicaKeys(&top)
	for _, key := range []string{"type", "url", "path"} {
		delete(known, key) // not allowed at the top level
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
				r.errorf(n, "the interval of each level must be longer than that of the previous level")
				break
			}
		}
		if len(c.CompactionIntervals) == 0 || len(c.CompactionIntervals) >= litestream.SnapshotLevel {
			r.errorf(n, "levels must be 1 to %d", litestream.SnapshotLevel-1)
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
		r.errorf(dbs[1], "dbs must have one entry, the service's database")
	}
	r.database(c, dbs[0], top)
	return true
}

// database reads the only entry of dbs. top contains the replica's keys from the top level;
// the replica's own keys override them.
func (r *configReader) database(c *Config, n *yaml.Node, top settings) {
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
		r.errorf(n, "path must be set to the database, which is service.db in the data directory")
	} else if abs, err := filepath.Abs(c.Database); err != nil {
		r.errorf(n, "path: %v", err)
	} else {
		c.Database = abs
	}
	if len(replicas) != 1 {
		r.errorf(n, "a database must have one replica, not %d", len(replicas))
		return
	}
	interval := c.settings.syncInterval
	c.settings = top
	r.mapping("a replica", replicas[0], r.replicaKeys(&c.settings))
	if c.settings.syncIntervalSet = c.settings.syncInterval != 0; !c.settings.syncIntervalSet {
		c.settings.syncInterval = interval
	}
	if len(r.errs) == 0 {
		if err := c.settings.validate(); err != nil {
			r.errorf(replicas[0], "%v", err)
		}
	}
}

func (r *configReader) snapshot(c *Config) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		r.mapping(key, n, keys{
			"interval":  r.duration(&c.SnapshotInterval, time.Second),
			"retention": r.duration(&c.SnapshotRetention, time.Second),
		})
	}
}

// replicaKeys returns the keys of a replica. Their values are read into to.
func (r *configReader) replicaKeys(to *settings) keys {
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
