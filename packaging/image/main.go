// Command image writes a container image as an OCI layout, from static binaries and without a
// daemon:
//
//	image -version 1.2.3 -created 1750000000 -files ../.. -out DIR amd64=service-amd64 arm64=service-arm64
//
// The same input gives the same bytes. Dockerfile builds the same image from the source.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the owner of the data directory, as which the service runs. It exists on no system.
const user = 65532

// image contains what all architectures share.
type image struct {
	version string
	created time.Time
	files   string // directory of the source
	roots   string // file of root certificates
}

func main() {
	var im image
	flag.StringVar(&im.version, "version", "", "version of the release")
	flag.StringVar(&im.files, "files", ".", "directory of the source")
	flag.StringVar(&im.roots, "roots", "/etc/ssl/certs/ca-certificates.crt", "PEM file of the root certificates")
	created := flag.Int64("created", 0, "time of all files, in seconds since 1970")
	out := flag.String("out", "", "directory to write, which must not exist")
	flag.Parse()
	im.created = time.Unix(*created, 0).UTC()
	if err := im.write(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write writes an index of one image for each ARCH=BINARY.
func (im *image) write(dir string, binaries []string) error {
	switch _, err := os.Stat(dir); {
	case im.version == "" || dir == "" || len(binaries) == 0:
		return errors.New("give -version, -out and at least one ARCH=BINARY")
	case err == nil:
		return fmt.Errorf("%s exists", dir)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		arch, binary, found := strings.Cut(b, "=")
		if !found {
			return fmt.Errorf("%q must be ARCH=BINARY", b)
		}
		one, err := im.of(arch, binary)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        one,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	// Registries use the named index, not the layout file, which only lists it.
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return p.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": im.version}))
}

// of returns the image of one architecture. Its settings are those of packaging/Dockerfile.
func (im *image) of(arch, binary string) (v1.Image, error) {
	content, err := im.tar(binary)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	config, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: im.created}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:         fmt.Sprintf("%d:%[1]d", user),
			Env:          []string{"SERVICE_LISTEN=:8443"},
			WorkingDir:   "/",
			Volumes:      map[string]struct{}{"/data": {}},
			ExposedPorts: map[string]struct{}{"8443/tcp": {}},
			StopSignal:   "SIGTERM",
			Healthcheck: &v1.HealthConfig{
				Test:     []string{"CMD", "/service", "healthcheck"},
				Interval: 30 * time.Second, Timeout: 6 * time.Second, StartPeriod: time.Minute, Retries: 3,
			},
			Entrypoint: []string{"/service"},
			Cmd:        []string{"serve"},
			Labels: map[string]string{
				"org.opencontainers.image.version":  im.version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(mutate.ConfigMediaType(mutate.MediaType(config, types.OCIManifestSchema1), types.OCIConfigJSON), mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: im.created}, CreatedBy: "packaging/image"},
	})
}

// tar returns the files of the image as a tar archive: the binary, the root certificates that verify
// partners' servers and the ACME server, the licenses, and an empty data directory.
func (im *image) tar(binary string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) error {
		h.ModTime, h.Size, h.Format = im.created, int64(len(content)), tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	for _, h := range []tar.Header{
		{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: user, Gid: user},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/ssl/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/ssl/certs/", Typeflag: tar.TypeDir, Mode: 0o755},
	} {
		if err := add(h, nil); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		name, from string
		mode       int64
	}{
		{"etc/ssl/certs/ca-certificates.crt", im.roots, 0o644},
		{"LICENSE", filepath.Join(im.files, "LICENSE"), 0o644},
		{"THIRD_PARTY_LICENSES", filepath.Join(im.files, "packaging", "THIRD_PARTY_LICENSES"), 0o644},
		{"service", binary, 0o755},
	} {
		content, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		if err := add(tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: f.mode}, content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
