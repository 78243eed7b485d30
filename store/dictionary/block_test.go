package dictionary

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/s2"

	"service/webhook"
)

// Package s2 decodes all blocks of blockEncoder.
func TestBlocks(t *testing.T) {
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	common, types := catalog.Dictionary(), catalog.Types()
	r := rand.New(rand.NewPCG(1, 2))
	for _, text := range [][]byte{common, bytes.Repeat(common, 30)[:s2.MaxDictSize], common[:s2.MinDictSize]} {
		e, d := newBlockEncoder(text), s2.MakeDict(text, nil)
		for i := range 3000 {
			src := bytes.Clone(types[r.IntN(len(types))].Example)
			switch i % 4 {
			case 1:
				src = src[:r.IntN(len(src))]
			case 2: // with parts of the dictionary, up to its end
				src = append(src, text[r.IntN(len(text)):]...)
			case 3:
				if i%100 == 3 {
					src = bytes.Repeat(src, r.IntN(700))
				}
				for range r.IntN(5) {
					src = append(src, byte(r.IntN(256)))
				}
			}
			block := e.encode(nil, src)
			if got, err := d.Decode(nil, block); err != nil || !bytes.Equal(got, src) {
				t.Fatalf("decoded %d bytes to %d, %v", len(src), len(got), err)
			}
		}
	}
}
