package bench

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// bucketLatency is the minimum duration of a request to the bucket.
	bucketLatency = 20 * time.Millisecond
	bucketName    = "bench"
	// uploadPrice is the list price of a PUT in Amazon S3 Standard (us-east-1), in dollars.
	uploadPrice = 0.005 / 1000
	// month is the length of a month for prices.
	month = 30 * 24 * time.Hour
)

// bucket is an S3 server with one bucket that supports what a replica needs. Its objects are
// files in a directory. It does not check credentials.
type bucket struct {
	dir    string
	server *http.Server
	url    string

	mu      sync.Mutex
	objects map[string]bucketObject
	files   int             // number of files created so far
	uploads []time.Duration // durations of uploads of changes
}

type bucketObject struct {
	file     string
	size     int64
	tag      string
	modified time.Time
}

// startBucket starts a server with a new directory. The caller must call close.
func startBucket(dir string) (*bucket, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &bucket{dir: dir, url: "http://" + l.Addr().String(), objects: make(map[string]bucketObject)}
	b.server = &http.Server{Handler: b}
	go b.server.Serve(l) // until close
	return b, nil
}

func (b *bucket) close() error { return b.server.Close() }

// litestream returns the configuration of a replica in the bucket.
func (b *bucket) litestream(database string) string {
	return fmt.Sprintf(`dbs:
  - path: %q
    replica:
      type: s3
      bucket: %s
      path: service
      endpoint: %s
      region: us-east-1
      access-key-id: bench
      secret-access-key: bench
`, database, bucketName, b.url)
}

// takeUploads returns the durations of uploads of changes since the last call.
func (b *bucket) takeUploads() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.uploads
	b.uploads = nil
	return all
}

// errNoKey is the error of a request for an object that does not exist.
var errNoKey = errors.New("NoSuchKey")

// ServeHTTP implements [http.Handler].
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+bucketName), "/")
	query := r.URL.Query()
	err := b.serve(w, r, key, query, func() { <-time.After(time.Until(began.Add(bucketLatency))) })
	switch {
	case errors.Is(err, errNoKey):
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, xml.Header, "<Error><Code>NoSuchKey</Code></Error>")
	case errors.Is(err, fs.ErrExist):
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprint(w, xml.Header, "<Error><Code>PreconditionFailed</Code></Error>")
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, xml.Header, "<Error><Code>InternalError</Code></Error>")
	case r.Method == http.MethodPut && strings.Contains(key, "/0000/"):
		b.mu.Lock()
		b.uploads = append(b.uploads, time.Since(began))
		b.mu.Unlock()
	}
}

// serve handles one request. It calls wait before the first byte of the response.
func (b *bucket) serve(w http.ResponseWriter, r *http.Request, key string, query url.Values, wait func()) error {
	switch {
	case r.Method == http.MethodPut && key != "":
		return b.put(w, r, key, query, wait)
	case r.Method == http.MethodPost && query.Has("delete"):
		return b.deleteAll(w, r, wait)
	case r.Method == http.MethodPost && query.Has("uploads"):
		wait()
		b.mu.Lock()
		b.files++
		id := b.files
		b.mu.Unlock()
		return writeXML(w, struct {
			XMLName     xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key string
			UploadId    int
		}{Bucket: bucketName, Key: key, UploadId: id})
	case r.Method == http.MethodPost && query.Has("uploadId"):
		return b.complete(w, key, query.Get("uploadId"), wait)
	case r.Method == http.MethodDelete:
		b.remove(key)
		wait()
		w.WriteHeader(http.StatusNoContent)
		return nil
	case key == "":
		wait()
		return b.list(w, query)
	}
	f, o, err := b.open(key)
	wait()
	if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Etag", o.tag)
	http.ServeContent(w, r, "", o.modified, f)
	return nil
}

// open opens the file of an object. The caller must close it.
func (b *bucket) open(key string) (*os.File, bucketObject, error) {
	b.mu.Lock()
	o, ok := b.objects[key]
	b.mu.Unlock()
	if !ok {
		return nil, o, errNoKey
	}
	f, err := os.Open(o.file)
	return f, o, err
}

// put stores an object, a part of one, or a copy of another object.
func (b *bucket) put(w http.ResponseWriter, r *http.Request, key string, query url.Values, wait func()) error {
	if id := query.Get("uploadId"); id != "" {
		number, err := strconv.Atoi(query.Get("partNumber"))
		if err != nil {
			return err
		}
		key = partKey(id, number)
	}
	var source io.Reader = r.Body
	from := r.Header.Get("X-Amz-Copy-Source")
	if from != "" {
		name, err := url.PathUnescape(strings.TrimPrefix(strings.TrimPrefix(from, "/"), bucketName+"/"))
		if err != nil {
			return err
		}
		f, _, err := b.open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		source = f
	}
	o, err := b.store(key, source, r.Header.Get("If-None-Match") == "*", r.Header.Get("If-Match"))
	wait()
	if err != nil {
		return err
	}
	w.Header().Set("Etag", o.tag)
	if from == "" {
		return nil
	}
	return writeXML(w, struct {
		XMLName      xml.Name `xml:"CopyObjectResult"`
		ETag         string
		LastModified time.Time
	}{ETag: o.tag, LastModified: o.modified})
}

// store stores an object. If create is set, the key must not exist. If match is not empty, the
// existing object must have that tag.
func (b *bucket) store(key string, content io.Reader, create bool, match string) (o bucketObject, err error) {
	b.mu.Lock()
	b.files++
	o.file = filepath.Join(b.dir, strconv.Itoa(b.files))
	o.tag = fmt.Sprintf("%q", strconv.Itoa(b.files))
	b.mu.Unlock()
	f, err := os.Create(o.file)
	if err != nil {
		return o, err
	}
	o.size, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err != nil {
		return o, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	there, ok := b.objects[key]
	if create && ok || match != "" && there.tag != match {
		return o, fs.ErrExist
	}
	o.modified = time.Now().UTC()
	b.objects[key] = o
	if ok {
		os.Remove(there.file)
	}
	return o, nil
}

// partKey returns the key of a part. The keys of objects do not begin with a slash.
func partKey(upload string, number int) string { return fmt.Sprintf("/%s/%05d", upload, number) }

// complete assembles an object from its parts.
func (b *bucket) complete(w http.ResponseWriter, key, upload string, wait func()) error {
	var parts []io.Reader
	for number := 1; ; number++ {
		b.mu.Lock()
		o, ok := b.objects[partKey(upload, number)]
		b.mu.Unlock()
		if !ok {
			break
		}
		defer b.remove(partKey(upload, number))
		f, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer f.Close()
		parts = append(parts, f)
	}
	o, err := b.store(key, io.MultiReader(parts...), false, "")
	wait()
	if err != nil {
		return err
	}
	return writeXML(w, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: bucketName, Key: key, ETag: o.tag})
}

// remove removes an object, if it exists.
func (b *bucket) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o, ok := b.objects[key]; ok {
		delete(b.objects, key)
		os.Remove(o.file)
	}
}

// deleteAll removes the objects that the request lists.
func (b *bucket) deleteAll(w http.ResponseWriter, r *http.Request, wait func()) error {
	var request struct {
		Object []struct{ Key string }
	}
	if err := xml.NewDecoder(r.Body).Decode(&request); err != nil {
		return err
	}
	for _, o := range request.Object {
		b.remove(o.Key)
	}
	wait()
	return writeXML(w, struct {
		XMLName xml.Name `xml:"DeleteResult"`
	}{})
}

// list lists the objects whose keys begin with a prefix.
func (b *bucket) list(w http.ResponseWriter, query url.Values) error {
	type content struct {
		Key, ETag    string
		LastModified time.Time
		Size         int64
	}
	type prefixes struct{ Prefix string }
	var result struct {
		XMLName        xml.Name `xml:"ListBucketResult"`
		Name, Prefix   string
		KeyCount       int
		IsTruncated    bool
		Contents       []content
		CommonPrefixes []prefixes
	}
	result.Name, result.Prefix = bucketName, query.Get("prefix")
	b.mu.Lock()
	for key, o := range b.objects {
		rest, ok := strings.CutPrefix(key, result.Prefix)
		if !ok || strings.HasPrefix(key, "/") || key <= query.Get("start-after") {
			continue
		}
		if folder, _, ok := strings.Cut(rest, "/"); ok && query.Get("delimiter") == "/" {
			if p := (prefixes{result.Prefix + folder + "/"}); !slices.Contains(result.CommonPrefixes, p) {
				result.CommonPrefixes = append(result.CommonPrefixes, p)
			}
			continue
		}
		result.Contents = append(result.Contents, content{key, o.tag, o.modified, o.size})
	}
	b.mu.Unlock()
	slices.SortFunc(result.Contents, func(a, b content) int { return strings.Compare(a.Key, b.Key) })
	slices.SortFunc(result.CommonPrefixes, func(a, b prefixes) int { return strings.Compare(a.Prefix, b.Prefix) })
	result.KeyCount = len(result.Contents) + len(result.CommonPrefixes)
	return writeXML(w, result)
}

func writeXML(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/xml")
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	return xml.NewEncoder(w).Encode(v)
}
