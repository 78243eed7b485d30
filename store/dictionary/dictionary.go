// Package dictionary compresses the JSON of events with the text that the events of a catalog have in
// common. It does no I/O of its own.
package dictionary

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"

	"service/webhook"
)

// Max bounds the number of dictionaries. The first byte of compressed JSON is the
// number of its dictionary; that of uncompressed JSON is a brace.
const Max = 100

// Set are the dictionaries of a database. After Read and Accept it does not change, and is safe for
// concurrent use.
type Set struct {
	all     map[byte]*s2.Dict
	current byte // compresses new events; 0 for no compression
	encoder *blockEncoder
}

// Current returns the number of the dictionary that compresses new events, 0 for none.
func (ds *Set) Current() byte { return ds.current }

// use selects the dictionary that compresses new events.
func (ds *Set) use(num byte) {
	content := ds.all[num].Bytes()
	_, before := binary.Uvarint(content) // as the encoder of package s2 does
	ds.current, ds.encoder = num, newBlockEncoder(content[before:])
}

// Propose selects the dictionary with the given content for new events. If there is none yet, it
// returns the number and the text of a new one, which the caller stores and passes to Accept. It
// returns no text if the newest dictionary stays, because the content is too small or there are too
// many dictionaries.
func (ds *Set) Propose(content []byte) (num byte, text []byte, err error) {
	if len(content) < s2.MinDictSize {
		return 0, nil, nil
	}
	d := s2.MakeDict(content[max(0, len(content)-s2.MaxDictSize):], nil)
	if d == nil {
		return 0, nil, errors.New("cannot build a dictionary from the event types")
	}
	for num = 1; ds.all[num] != nil; num++ {
		if bytes.Equal(ds.all[num].Bytes(), d.Bytes()) {
			ds.use(num)
			return num, nil, nil
		}
	}
	if num > Max {
		return 0, nil, nil
	}
	return num, d.Bytes(), nil
}

// Accept adds a stored dictionary, and selects it for new events.
func (ds *Set) Accept(num byte, text []byte) {
	ds.all[num] = s2.NewDict(text)
	ds.use(num)
}

// Read reads all dictionaries of a database. each runs a query and calls a function for every row.
func (ds *Set) Read(each func(query string, args []any, row func(scan func(...any) error) error) error) error {
	ds.all = make(map[byte]*s2.Dict)
	newest := byte(0)
	err := each("SELECT num, content FROM dictionaries ORDER BY num", nil, func(scan func(...any) error) error {
		var num byte
		var content []byte
		if err := scan(&num, &content); err != nil {
			return err
		}
		d := s2.NewDict(bytes.Clone(content))
		if d == nil {
			return fmt.Errorf("dictionary %d is unusable", num)
		}
		ds.all[num], newest = d, num
		return nil
	})
	if err == nil && newest > 0 {
		ds.use(newest)
	}
	return err
}

// The JSON of every event begins with its ID and timestamp (see
// webhook.Catalog.NewEvent). Its compressed form is the number of a dictionary, the
// timestamp and its closing quote, so that queries can compare it, and the rest as an
// S2 block. The ID is stored in its own column.
const (
	beforeID        = `{"id":"`
	beforeTimestamp = `","timestamp":"`
)

// Pack returns the stored form of an event's JSON, in the memory of buf or of the event.
func (ds *Set) Pack(buf *[]byte, e *webhook.Event) []byte {
	rest, ok := bytes.CutPrefix(e.JSON, []byte(beforeID))
	if ok {
		rest, ok = bytes.CutPrefix(rest, []byte(e.ID))
	}
	if ok {
		rest, ok = bytes.CutPrefix(rest, []byte(beforeTimestamp))
	}
	end := bytes.IndexByte(rest, '"')
	if !ok || end < 0 || ds.current == 0 {
		return e.JSON
	}
	head := append(append((*buf)[:0], ds.current), rest[:end+1]...)
	rest = rest[end+1:]
	packed := ds.encoder.encode(head, rest)
	*buf = packed
	if len(packed) < len(e.JSON) {
		return packed
	}
	return e.JSON
}

// Unpack returns the JSON of an event from its stored form. The result may share memory with
// stored.
func (ds *Set) Unpack(id string, stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] > Max {
		return stored, nil
	}
	d, end := ds.all[stored[0]], bytes.IndexByte(stored, '"')
	if d == nil || end < 0 {
		return nil, fmt.Errorf("store: event %s: its JSON cannot be read without dictionary %d", id, stored[0])
	}
	block := stored[end+1:]
	n, err := s2.DecodedLen(block)
	if err == nil && n > webhook.MaxEventBytes+1024 {
		err = s2.ErrCorrupt
	}
	if err != nil {
		return nil, fmt.Errorf("store: event %s: its JSON cannot be read: %w", id, err)
	}
	json := make([]byte, 0, len(beforeID)+len(id)+len(beforeTimestamp)+end+n)
	json = append(append(append(append(json, beforeID...), id...), beforeTimestamp...), stored[1:end+1]...)
	rest, err := d.Decode(json[len(json):cap(json)], block)
	if err != nil {
		return nil, fmt.Errorf("store: event %s: its JSON cannot be read: %w", id, err)
	}
	return append(json, rest...), nil
}
