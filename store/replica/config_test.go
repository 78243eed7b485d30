package replica

import (
	"strings"
	"testing"
	"time"
)

// TestConfig reads files in Litestream's format.
func TestConfig(t *testing.T) {
	cfg := mustParseConfig(t, `
access-key-id: AK
secret-access-key: ${SECRET}
snapshot: {interval: 12h, retention: 168h}
l0-retention: 1h
levels: [{interval: 10s}, {interval: 1m}]
dbs:
  - path: /data/service.db
    monitor-interval: 250ms
    replicas:
      - type: s3
        bucket: $BUCKET
        path: copies/service
        endpoint: http://127.0.0.1:9000
        region: eu-central-1
        sync-interval: 2s
`)
	if cfg.Database != "/data/service.db" || cfg.Target() != "s3://b/copies/service at 127.0.0.1:9000" ||
		cfg.settings.secretAccessKey != "s3cr3t: #x" || cfg.SnapshotInterval != 12*time.Hour ||
		cfg.SnapshotRetention != 168*time.Hour || cfg.L0Retention != time.Hour || len(cfg.CompactionIntervals) != 2 ||
		cfg.MonitorInterval != 250*time.Millisecond || cfg.settings.syncInterval != 2*time.Second {
		t.Errorf("got %+v, target %s, want the values of the file", cfg, cfg.Target())
	}
	for _, text := range []string{"", "# nothing\n", "dbs:\n", "dbs: []\n", "snapshot:\n  interval: 1h\n"} {
		if cfg, err := parseConfig(t, text); cfg != nil || err != nil {
			t.Errorf("%q: got %v, %v; want nil, nil without a database", text, cfg, err)
		}
	}
	for text, want := range map[string]string{
		"dbs:\n  - path: a\n    replica:\n      urk: x\n": "litestream.yml:4: urk is not supported here",
		"addr: ':9090'\n": "litestream.yml:1: addr is not supported here; use the service's own /metrics",
		"dbs: [{path: a, replica: {path: r}}, {path: b, replica: {path: r}}]": "dbs must have one entry",
		"dbs: [{path: a}]": "one replica, not 0",
		"dbs: [{path: a, replicas: [{path: r}, {path: q}]}]":            "one replica, not 2",
		"dbs: [{replica: {path: r}}]":                                   "path must be set to the database",
		"dbs: [{path: a, replica: {type: sftp, path: r}}]":              `must be file or s3, not "sftp"`,
		"dbs: [{path: a, replica: {url: 'gs://b/p'}}]":                  "must begin with file:// or s3://",
		"dbs: [{path: a, replica: {url: 's3://b/p', path: x}}]":         "either a url, or a path",
		"dbs: [{path: a, replica: {path: 's3://b/p'}}]":                 "must not be a URL; use url instead",
		"dbs: [{path: a, replica: {type: s3}}]":                         "must have a bucket",
		"dbs: [{path: a, replica: {bucket: b, access-key-id: hidden}}]": "must be set together",
		"dbs: [{path: a, replica: {path: r, sync-interval: 1}}]":        "sync-interval must be a duration from 10ms",
		"dbs: [{path: a, replica: {path: r, skip-verify: maybe}}]":      `skip-verify must be true or false, not "maybe"`,
		"dbs: [{path: a, monitor-interval: 0s, replica: {path: r}}]":    "monitor-interval must be a duration from 10ms",
		"dbs: [{path: a, replica: {path: '${NO_SUCH}'}}]":               "environment variable NO_SUCH, which is not set",
		"dbs: [{path: a, path: b, replica: {path: r}}]":                 "path is set twice",
		"dbs: {path: a}":                         "dbs must be a list",
		"dbs: [{path: [a], replica: {path: r}}]": "path must be a single value",
		"levels: [{interval: 1m}, {interval: 1m}]\ndbs: [{path: a, replica: {path: r}}]": "longer than that of the previous level",
		"dbs: [\n": "litestream.yml: yaml:",
		"- 1\n":    "the file must be a mapping",
	} {
		_, err := parseConfig(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
	// One error lists all problems.
	_, err := parseConfig(t, "exec: x\ndbs: [{path: a, monitor-interval: x, replica: {nope: 1, path: r}}]")
	if err == nil || strings.Count(err.Error(), "litestream.yml:") != 3 {
		t.Errorf("got %v, want 3 problems", err)
	}
	if _, err := ParseURL("s3://bucket/path?endpoint=http://127.0.0.1:9000"); err != nil {
		t.Error(err)
	}
	if _, err := ParseURL("/some/path"); err == nil {
		t.Error("path instead of a URL: got no error")
	}
}
