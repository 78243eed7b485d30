package replica

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"service/test/harness"
)

// TestDamagedBucket damages objects in a bucket, one at a time. A restore must name the damaged
// object if the restore needs it. It must restore the same events from other objects, or print the
// command for the newest state that they contain.
func TestDamagedBucket(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	gateway := harness.NewGateway(t)
	data := t.TempDir()
	config := writeReplica(t, data, "50ms", gateway.Replica(gateway.Address, "service")...)
	text := append(harness.Read(t, config), "levels:\n  - interval: 1s\n  - interval: 2s\nsnapshot:\n  interval: 4s\n  retention: 1h\n"...)
	overwrite(t, config, text)
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", config)
	token := in.Token("acme")
	run := in.MustStart()
	published := 0
	objects := func(level string) []string { return objectsOf(t, gateway, level) }
	harness.WaitFor(t, "objects of every level", func() bool {
		in.Publish(token, harness.AppendEvent(nil, published))
		published++
		awaitReplica(in, "running")
		return len(objects("0001")) > 2 && len(objects("0002")) > 0 && len(objects("0009")) > 1
	})
	in.MustStop(run)

	restore := func(args ...string) (out string, events int, err error) { return restoreEvents(in, config, args...) }
	command := regexp.MustCompile(` restore --at (\S+?);`)
	damages := map[string]func([]byte) []byte{
		"flipped":   func(b []byte) []byte { b = slices.Clone(b); b[len(b)/2] ^= 1; return b },
		"truncated": func(b []byte) []byte { return b[:len(b)-7] },
		"empty":     func([]byte) []byte { return nil },
	}
	// An object of level 0 contains the events of one monitor interval.
	const perObject = 50
	named := map[string]int{}
	for _, level := range []string{"0000", "0001", "0002", "0009"} {
		for name, damage := range damages {
			all := objects(level)
			path := all[len(all)-1]
			what := fmt.Sprintf("the newest object of level %s, %s", level, name)
			content := harness.Read(t, path)
			overwrite(t, path, damage(content))
			out, events, err := restore()
			if strings.Contains(out, filepath.Base(path)) {
				named[level]++
			}
			switch at := command.FindStringSubmatch(out); {
			case err == nil && events != published:
				t.Errorf("%s: restored %d events, want %d", what, events, published)
			case err == nil:
			case at == nil || !strings.Contains(out, filepath.Base(path)):
				t.Errorf("%s: want an error that names it and a command: %s", what, out)
			default:
				out, events, err := restore("--at", at[1])
				if err != nil || events < published-perObject {
					t.Errorf("%s: restored %d of %d events with the command: %v, %s", what, events, published, err, out)
				}
			}
			overwrite(t, path, content)
		}
	}
	t.Logf("restores that named the damaged object, by level: %v", named)
	if len(named) < 2 {
		t.Error("hardly any restore used a damaged object: the test checked nothing")
	}
}

// restoreEvents restores the replica and counts the restored events.
func restoreEvents(in *harness.Instance, config string, args ...string) (out string, events int, err error) {
	in.TB.Helper()
	to := filepath.Join(in.TB.TempDir(), "restored")
	out, err = in.Command(append([]string{"restore", "--data", to, "--litestream", config}, args...)...)
	if err != nil {
		return out, 0, err
	}
	for row := range harness.Rows(in.TB, to) {
		if strings.HasPrefix(row, "event ") {
			events++
		}
	}
	return out, events, nil
}

// objectsOf returns the paths of the objects of a level, oldest first.
func objectsOf(t *testing.T, gateway *harness.Gateway, level string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(gateway.Dir, "bucket"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Base(filepath.Dir(path)) == level && strings.HasSuffix(path, ".ltx") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// overwrite replaces the content of a file and keeps its attributes.
func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
