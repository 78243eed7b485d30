package erasure

import (
	"bytes"
	"encoding/json"

	"service/store/keyring"
	"service/store/sqlite"
)

// Answers removes events from stored answers to requests, which have the records of what they
// created. The answers stay, with the records of these events as they are now: without them, a
// request that is repeated would publish its events again.
type Answers struct {
	keys    *keyring.Keyring
	records map[string][]byte // of the erased events, by their IDs
}

// The record of an event begins with recordHead and its ID, which has idBytes.
const (
	recordHead = `{"id":"`
	idBytes    = 36
)

// NewAnswers returns what removes some events.
func NewAnswers(keys *keyring.Keyring, events []Pending) *Answers {
	a := &Answers{keys, make(map[string][]byte)}
	for i := range events {
		if e := &events[i].Event; e.ID != "" {
			a.records[e.ID] = e.AppendLogged(nil, "")
		}
	}
	return a
}

// SelectAnswers reads at most ?3 answers after the row ?2 that requests in the program ?1 got, with
// what [Answers.Erase] needs.
const SelectAnswers = `SELECT rowid, 'answer of ' || token_id || ' ' || key, body FROM idempotency_keys
	WHERE rowid > ?2 AND (program_id = ?1 OR token_id IN (SELECT id FROM tokens WHERE program_id = ?1)) ORDER BY rowid LIMIT ?3`

// Answer is a stored answer that had an erased event.
type Answer struct {
	Row         int64
	Place       string // the associated data of its encryption
	body, found []byte // without the events; as it was found, encrypted
}

// Erase returns the answer without the erased events, nil if it has none. One that no key decrypts has
// no events that can be read.
func (a *Answers) Erase(row int64, place string, encrypted []byte) *Answer {
	body, err := a.keys.Decrypt(encrypted, place)
	if err != nil {
		return nil
	}
	var erased []byte
	copied := 0 // of body
	for at := 0; ; {
		i := bytes.Index(body[at:], []byte(recordHead))
		if i < 0 {
			break
		}
		at += i
		record, length := a.record(body[at:])
		if length == 0 {
			at += len(recordHead)
			continue
		}
		erased = append(append(erased, body[copied:at]...), record...)
		at += length
		copied = at
	}
	if copied == 0 {
		return nil
	}
	body = append(erased, body[copied:]...)
	return &Answer{row, place, body, bytes.Clone(encrypted)}
}

// record returns the record of an erased event that takes the place of what text begins with, and the
// length of that, 0 if there is nothing to replace.
func (a *Answers) record(text []byte) (record []byte, length int) {
	id := text[len(recordHead):]
	record = a.records[string(id[:min(len(id), idBytes)])]
	var old json.RawMessage
	if record == nil || json.NewDecoder(bytes.NewReader(text)).Decode(&old) != nil || bytes.Equal(old, record) {
		return nil, 0
	}
	return record, len(old)
}

// Store stores an answer. If the row has changed since, because its key was replaced or it has
// expired, it does nothing and reports that it must be read again.
func (a *Answers) Store(t *sqlite.Tx, answer *Answer) (again bool, err error) {
	encrypted := a.keys.Encrypt(answer.body, answer.Place)
	if err := t.Overwrite(); err != nil {
		return false, err
	}
	var token string
	err = sqlite.NoRows(t.Scan("UPDATE idempotency_keys SET body = ?3 WHERE rowid = ?1 AND body = ?2 RETURNING token_id",
		[]any{answer.Row, answer.found, encrypted}, &token), nil)
	if err != nil || token == "" {
		return token == "", err
	}
	return false, t.Exec("UPDATE idempotency_use SET bytes = bytes + ? WHERE token_id = ?", len(encrypted)-len(answer.found), token)
}
