package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"

	"service/webhook"
)

// maxDictionaries bounds the number of dictionaries. The first byte of compressed JSON is the
// number of its dictionary; that of uncompressed JSON is a brace.
const maxDictionaries = 100

// dictionaries compress the JSON of events by what the events of the catalog have in common.
// They do not change after the store is open.
type dictionaries struct {
	all     map[byte]*s2.Dict
	current byte // compresses new events; 0 for no compression
	encoder *blockEncoder
}

// use selects the dictionary that compresses new events.
func (ds *dictionaries) use(num byte) {
	content := ds.all[num].Bytes()
	_, before := binary.Uvarint(content) // as the encoder of package s2 does
	ds.current, ds.encoder = num, newBlockEncoder(content[before:])
}

// openDictionaries reads the dictionaries, and adds one with the given content unless it
// exists. Without content it uses the newest one.
func (s *core) openDictionaries(ctx context.Context, content []byte) error {
	_, each := s.reads(ctx)
	if err := s.dictionaries.read(each); err != nil {
		return err
	}
	if len(content) < s2.MinDictSize {
		return nil
	}
	d := s2.MakeDict(content[max(0, len(content)-s2.MaxDictSize):], nil)
	if d == nil {
		return errors.New("cannot build a dictionary from the event types")
	}
	num := byte(1)
	for ; s.dictionaries.all[num] != nil; num++ {
		if bytes.Equal(s.dictionaries.all[num].Bytes(), d.Bytes()) {
			s.dictionaries.use(num)
			return nil
		}
	}
	if num > maxDictionaries {
		return nil // keep the newest one
	}
	err := s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO dictionaries (num, content) VALUES (?, ?)", int64(num), d.Bytes())
	})
	if Unavailable(err) {
		return nil // for example a full disk: the next start adds it
	}
	if err == nil {
		s.dictionaries.all[num] = d
		s.dictionaries.use(num)
	}
	return err
}

// read reads all dictionaries of a database.
func (ds *dictionaries) read(each eachRow) error {
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

// The JSON of every event begins with its id and timestamp (see
// webhook.Catalog.NewEvent). Its compressed form is the number of a dictionary, the
// timestamp and its closing quote, so that queries can compare it, and the rest as an
// S2 block. The id is stored in its own column.
const (
	beforeID        = `{"id":"`
	beforeTimestamp = `","timestamp":"`
)

// pack returns the JSON of an event as it is stored, in the memory of buf or of the event.
func (ds *dictionaries) pack(buf *[]byte, e *webhook.Event) []byte {
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

// unpack returns the JSON of an event from its stored form. The result may share memory with
// stored.
func (ds *dictionaries) unpack(id string, stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] > maxDictionaries {
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
