package webhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AuditHash is the hash of an entry of the audit log. The zero value precedes the first entry.
type AuditHash [sha256.Size]byte

// String returns the hash in hexadecimal.
func (h AuditHash) String() string { return hex.EncodeToString(h[:]) }

// ParseAuditHash parses a hash in hexadecimal.
func ParseAuditHash(text string) (h AuditHash, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) || strings.ToLower(text) != text {
		return h, fmt.Errorf("must be 64 lower-case hexadecimal digits, not %q", text)
	}
	return AuditHash(b), nil
}

// AuditSaltSize is the length of [AuditEntry.Salt], in bytes.
const AuditSaltSize = 16

// PersonalDigest returns the hash of the parts of an entry that erasing its program removes.
// The salt is removed with them, so that they cannot be found by guessing.
func (e *AuditEntry) PersonalDigest() AuditHash {
	return hashOf(hex.EncodeToString(e.Salt), e.Admin, e.Address, e.Detail)
}

// ChainHash returns the hash of an entry over the one before.
func (e *AuditEntry) ChainHash() AuditHash {
	return hashOf(e.Previous.String(), strconv.FormatInt(e.Num, 10), e.ID, FormatTime(e.At), e.Actor, e.RequestID,
		string(e.Action), e.ProgramID, e.SubjectID, e.Digest.String())
}

func hashOf(parts ...string) AuditHash { return sha256.Sum256(netstrings(parts)) }

// netstrings encodes each string as its length in bytes, a colon, the string and a comma. No two lists
// of strings have the same encoding.
func netstrings(parts []string) (b []byte) {
	for _, p := range parts {
		b = fmt.Appendf(b, "%d:%s,", len(p), p)
	}
	return b
}

// Erased reports whether the personal parts of an entry have been erased.
func (e *AuditEntry) Erased() bool { return len(e.Salt) == 0 }

// TokenID returns the ID of the access token that an entry names as its actor, "" for none.
func (e *AuditEntry) TokenID() string {
	id, ok := strings.CutPrefix(e.Actor, ActorToken)
	if !ok {
		return ""
	}
	return id
}

// AuditFault is the error about an entry that does not fit into the chain.
type AuditFault struct {
	Num     int64
	ID      string
	At      time.Time
	Reason  string
	Missing bool // instead of ID and At
}

func (f *AuditFault) Error() string {
	if f.Missing {
		return fmt.Sprintf("entry %d is missing: %s", f.Num, f.Reason)
	}
	return fmt.Sprintf("entry %d (%s, %s) does not match: %s", f.Num, f.ID, FormatTime(f.At), f.Reason)
}

// AuditVerifier checks a sequence of entries of the audit log. The zero value is ready to use.
type AuditVerifier struct {
	// Expect is a hash that an entry, or the one before the first entry, must have; zero for
	// none.
	Expect AuditHash
	// Suffix is set if the entries are the end of a log, so that the first of them need not
	// follow the entries that retention removed.
	Suffix bool

	seen     AuditSummary
	first    AuditEntry
	pruned   *AuditEntry // the newest entry about retention
	expected bool
	erased   map[string]*AuditFault // the first erased entry of a program, until one deletes it
}

// AuditSummary describes verified entries.
type AuditSummary struct {
	Entries     int64
	Erased      int64     // entries whose personal parts were erased with their program
	First, Last int64     // numbers
	Anchor      AuditHash // of the entry before First; zero for the beginning of the log
	Newest      AuditHash // of Last
	FirstAt     time.Time
	LastAt      time.Time
	Pruned      AuditPrune // the range in the newest entry about retention; zero for none
	PrunedAt    time.Time  // when that entry was recorded
	Gaps        []AuditGap // where the log continues after a restore or a takeover
}

// Add checks the next entry. The error is an *[AuditFault].
func (v *AuditVerifier) Add(e *AuditEntry) error {
	if reason := v.check(e); reason != "" {
		return e.Fault(reason)
	}
	s := &v.seen
	if s.Entries == 0 {
		v.first = *e
		s.First, s.FirstAt, s.Anchor = e.Num, e.At, e.Previous
		v.expected = e.Previous == v.Expect && v.Expect != AuditHash{}
	}
	s.Entries++
	s.Last, s.LastAt, s.Newest = e.Num, e.At, e.Hash
	v.expected = v.expected || e.Hash == v.Expect
	switch {
	case e.Action == ActionAuditPrune:
		entry := *e
		v.pruned, s.PrunedAt = &entry, e.At
		s.Pruned, _ = e.Pruned()
	case e.Action == ActionAuditContinue:
		gap, _ := e.Gap()
		s.Gaps = append(s.Gaps, gap)
	case e.Action == ActionProgramDelete:
		delete(v.erased, e.ProgramID)
	case e.Erased():
		s.Erased++
		if v.erased == nil {
			v.erased = make(map[string]*AuditFault)
		}
		if v.erased[e.ProgramID] == nil {
			v.erased[e.ProgramID] = e.Fault("its details were erased, but no later entry deletes its program")
		}
	}
	return nil
}

// Fault returns the error for an entry that does not match, with the reason.
func (e *AuditEntry) Fault(reason string) *AuditFault {
	return &AuditFault{Num: e.Num, ID: e.ID, At: e.At, Reason: reason}
}

// check returns why an entry does not match, "" if it does.
func (v *AuditVerifier) check(e *AuditEntry) string {
	first := v.seen.Entries == 0
	switch {
	case first && (e.Num == 1) != (e.Previous == AuditHash{}):
		return "entries before it are missing"
	case !first && e.Num != v.seen.Last+1:
		return fmt.Sprintf("it follows entry %d", v.seen.Last)
	case !first && e.Previous != v.seen.Newest:
		return "it was hashed over another entry than the one before"
	case e.Hash == AuditHash{}:
		return "its hash is missing"
	case e.Erased() && (e.Admin != "" || e.Address != "" || e.Detail != ""):
		return "its salt is missing"
	case e.Erased() && (e.ProgramID == "" || e.Action == ActionProgramDelete):
		return "its details are missing"
	case !e.Erased() && e.PersonalDigest() != e.Digest:
		return "admin, address or detail was changed, or their salt or digest"
	case e.ChainHash() != e.Hash:
		return "its hash is not that of its content and the entry before"
	}
	if _, ok := e.Gap(); e.Action == ActionAuditContinue && !ok {
		return "it says that the log continues after a restore, and does not name the entry before it"
	}
	return ""
}

// End returns a summary of the entries. The error is an *[AuditFault], or reports that Expect
// was not found.
func (v *AuditVerifier) End() (AuditSummary, error) {
	if !v.Suffix && v.seen.Entries > 0 {
		if f := PruneFault(&v.first, v.pruned); f != nil {
			return v.seen, f
		}
	}
	if len(v.erased) > 0 {
		return v.seen, slices.MinFunc(slices.Collect(maps.Values(v.erased)), func(a, b *AuditFault) int { return cmp.Compare(a.Num, b.Num) })
	}
	if v.Expect != (AuditHash{}) && !v.expected {
		return v.seen, fmt.Errorf("no entry has the hash %s: the log was changed, or it ends before that entry", v.Expect)
	}
	return v.seen, nil
}

// AuditRecord is an entry of the audit log in JSON. It contains what is necessary to verify
// the entry; null and "" are hashed alike.
type AuditRecord struct {
	Number       int64   `json:"number"`
	ID           string  `json:"id"`
	At           string  `json:"at"`
	Actor        string  `json:"actor"`
	Admin        *string `json:"admin"`
	Address      *string `json:"address"`
	RequestID    *string `json:"request_id"`
	Action       Action  `json:"action"`
	ProgramID    *string `json:"program_id"`
	SubjectID    *string `json:"subject_id"`
	Detail       *string `json:"detail"`
	Salt         *string `json:"salt"`
	Digest       string  `json:"digest"`
	PreviousHash string  `json:"previous_hash"`
	Hash         string  `json:"hash"`
}

// NewAuditRecord returns the record of an entry.
func NewAuditRecord(e *AuditEntry) AuditRecord {
	return AuditRecord{
		Number: e.Num, ID: e.ID, At: FormatTime(e.At), Actor: e.Actor, Admin: OrNull(e.Admin), Address: OrNull(e.Address),
		RequestID: OrNull(e.RequestID), Action: e.Action,
		ProgramID: OrNull(e.ProgramID), SubjectID: OrNull(e.SubjectID), Detail: OrNull(e.Detail),
		Salt: OrNull(hex.EncodeToString(e.Salt)), Digest: e.Digest.String(), PreviousHash: e.Previous.String(), Hash: e.Hash.String(),
	}
}

// Entry returns the entry of a record.
func (r *AuditRecord) Entry() (AuditEntry, error) {
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	e := AuditEntry{
		Num: r.Number, ID: r.ID, Actor: r.Actor, Admin: text(r.Admin), Address: text(r.Address), RequestID: text(r.RequestID),
		Action: r.Action, ProgramID: text(r.ProgramID), SubjectID: text(r.SubjectID), Detail: text(r.Detail),
	}
	var err error
	if e.At, err = time.Parse(timeLayout, r.At); err != nil || FormatTime(e.At) != r.At {
		return e, fmt.Errorf("at: must be a time like %s, not %q", timeLayout, r.At)
	}
	if e.Salt, err = hex.DecodeString(text(r.Salt)); err != nil || hex.EncodeToString(e.Salt) != text(r.Salt) {
		return e, fmt.Errorf("salt: must have lower-case hexadecimal digits, not %q", text(r.Salt))
	}
	for _, part := range []struct {
		name, text string
		hash       *AuditHash
	}{{"digest", r.Digest, &e.Digest}, {"previous_hash", r.PreviousHash, &e.Previous}, {"hash", r.Hash, &e.Hash}} {
		if *part.hash, err = ParseAuditHash(part.text); err != nil {
			return e, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return e, nil
}
