package webhook_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"service/webhook"
)

// pack returns texts in gzip format, each as a member of its own.
func pack(texts ...string) []byte {
	var b bytes.Buffer
	for _, text := range texts {
		z := gzip.NewWriter(&b)
		io.WriteString(z, text)
		z.Close()
	}
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	full := strings.Repeat("x", webhook.MaxStoredBody)
	ok := pack(`{"ok":true}`)
	damaged := bytes.Clone(ok)
	damaged[len(damaged)-8] ^= 1 // the checksum
	bomb := pack(strings.Repeat("\x00", 10<<20))
	for _, tt := range []struct {
		name string
		body []byte
		want string
		cut  bool
	}{
		{"nothing", nil, "", false},
		{"text", []byte("ok"), "", false},
		{"gzip", ok, `{"ok":true}`, false},
		{"gzip twice", pack("a", "b"), "ab", false},
		{"gzip, then text", append(pack("a"), "text"...), "a", true},
		{"gzip of nothing", pack(""), "", false},
		{"half a header", ok[:5], "", false},
		{"no data", ok[:10], "", false},
		{"without its end", ok[:len(ok)-4], `{"ok":true}`, true},
		{"damaged", damaged, `{"ok":true}`, true},
		{"as much as is stored", pack(full), full, false},
		{"one byte more", pack(full + "y"), full, true},
		{"a bomb", bomb[:min(len(bomb), webhook.MaxStoredBody)], strings.Repeat("\x00", webhook.MaxStoredBody), true},
	} {
		if text, cut := webhook.Unpack(tt.body); string(text) != tt.want || cut != tt.cut {
			t.Errorf("%s: got %.40q, %t; want %.40q, %t", tt.name, text, cut, tt.want, tt.cut)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack("a", "b"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if text, cut := webhook.Unpack(body); len(text) > webhook.MaxStoredBody || text == nil && cut {
			t.Errorf("got %d bytes, %t", len(text), cut)
		}
	})
}
