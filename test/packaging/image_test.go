package packaging

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"

	"service/test/harness"
)

// descriptor names a blob of an OCI layout.
type descriptor struct {
	MediaType string
	Digest    string
	Platform  struct{ OS, Architecture string }
}

// manifest is an index or an image of an OCI layout.
type manifest struct {
	Manifests []descriptor
	Config    descriptor
	Layers    []descriptor
}

// checkImage checks the release image: its platforms, its settings, and its content. It runs the
// binary of this architecture.
func (r *release) checkImage(arches []string) {
	t := r.t
	t.Helper()
	dir := filepath.Join(r.dir, "image")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.run("tar", "--extract", "--file", filepath.Join(r.dir, "one", "service-webhooks-"+releaseVersion+"-image.tar"), "--directory", dir)
	read := func(d descriptor, into any) {
		t.Helper()
		if err := json.Unmarshal(r.blob(dir, d), into); err != nil {
			t.Fatalf("%s: %v", d.Digest, err)
		}
	}
	var layout, index manifest
	if err := json.Unmarshal(harness.Read(t, filepath.Join(dir, "index.json")), &layout); err != nil || len(layout.Manifests) != 1 {
		t.Fatalf("index.json: %+v, %v; want one index", layout, err)
	}
	read(layout.Manifests[0], &index)
	var platforms []string
	for _, d := range index.Manifests {
		platforms = append(platforms, d.Platform.Architecture)
		var image manifest
		var config imageConfig
		read(d, &image)
		read(image.Config, &config)
		if d.Platform.OS != "linux" || config.OS != "linux" || config.Architecture != d.Platform.Architecture || len(image.Layers) != 1 {
			t.Fatalf("image %+v of %+v, %+v; want one layer for its platform", d, image, config)
		}
		config.check(r)
		r.checkLayer(image.Layers[0], dir, config.Architecture == runtime.GOARCH)
	}
	if !reflect.DeepEqual(platforms, arches) {
		t.Errorf("the image is for %v, want %v", platforms, arches)
	}
}

// imageConfig contains the settings with which an image runs.
type imageConfig struct {
	OS, Architecture string
	Config           struct {
		User, WorkingDir     string
		Entrypoint, Cmd, Env []string
		Volumes              map[string]struct{}
		Healthcheck          struct{ Test []string }
	}
}

// check compares the settings with those of packaging/Dockerfile.
func (c *imageConfig) check(r *release) {
	r.t.Helper()
	dockerfile := string(harness.Read(r.t, harness.Path("packaging/Dockerfile")))
	of := &c.Config
	for _, line := range []string{
		"USER " + of.User, "WORKDIR " + of.WorkingDir, fmt.Sprintf("ENTRYPOINT [%q]", of.Entrypoint[0]), fmt.Sprintf("CMD [%q]", of.Cmd[0]),
		"ENV " + of.Env[0], fmt.Sprintf("CMD [%q, %q]", of.Healthcheck.Test[1], of.Healthcheck.Test[2]),
	} {
		if !strings.Contains(dockerfile, line+"\n") {
			r.t.Errorf("the Dockerfile has no line %s", line)
		}
	}
	if _, ok := of.Volumes["/data"]; !ok || !strings.Contains(dockerfile, "\nVOLUME /data\n") {
		r.t.Errorf("the data directory is no volume: %v", of.Volumes)
	}
}

// blob reads a blob of a layout, and checks its digest.
func (r *release) blob(dir string, d descriptor) []byte {
	r.t.Helper()
	_, sum, _ := strings.Cut(d.Digest, ":")
	b := harness.Read(r.t, filepath.Join(dir, "blobs", "sha256", sum))
	if got := sumOf(b); got != sum {
		r.t.Errorf("the blob %s has the sum %s", d.Digest, got)
	}
	return b
}

// checkLayer checks the files of an image, and runs its binary if it is for this machine.
func (r *release) checkLayer(d descriptor, dir string, runs bool) {
	t := r.t
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(r.blob(dir, d)))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for files := tar.NewReader(unzipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = fmt.Sprintf("%v %d:%d", h.FileInfo().Mode(), h.Uid, h.Gid)
		if h.Name != "service" || !runs {
			continue
		}
		binary := filepath.Join(r.dir, "in-image")
		content, err := io.ReadAll(files)
		if err == nil {
			err = os.WriteFile(binary, content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		if out := r.run(binary, "--version"); !strings.HasPrefix(string(out), "service "+releaseVersion+" (") {
			t.Errorf("the binary of the image: %s", out)
		}
		if out := r.run("go", "version", "-m", binary); !bytes.Contains(out, []byte("CGO_ENABLED=0")) {
			t.Errorf("the binary of the image needs libraries:\n%s", out)
		}
	}
	want := map[string]string{
		"data/": "drwx------ 65532:65532", "etc/": "drwxr-xr-x 0:0", "etc/ssl/": "drwxr-xr-x 0:0", "etc/ssl/certs/": "drwxr-xr-x 0:0",
		"etc/ssl/certs/ca-certificates.crt": "-rw-r--r-- 0:0", "LICENSE": "-rw-r--r-- 0:0", "THIRD_PARTY_LICENSES": "-rw-r--r-- 0:0",
		"service": "-rwxr-xr-x 0:0",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the image has the files %v, want %v", got, want)
	}
}
