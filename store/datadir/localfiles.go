package datadir

import (
	"context"
	"encoding/json"

	"service/store/schema"
	"service/store/sqlite"
)

// LocalFiles are digests of files that each machine keeps itself, though all nodes of an installation
// need the same ones.
type LocalFiles struct {
	EventTypes map[string]string `json:"event_types,omitempty"` // by file name
	CA         string            `json:"ca,omitempty"`          // of the local CA's certificate; "" unless the service hands it out
}

// PrimaryFiles returns the digests of the primary's files, from the copy. The error wraps
// [replica.ErrNoCopy] if there is no complete copy.
func (s *Standby) PrimaryFiles(ctx context.Context) (files LocalFiles, err error) {
	err = s.read(func(db *sqlite.Offline) error {
		scan, _ := sqlite.ReadsOf(ctx, db.DB)
		text, err := schema.Get(scan, schema.LocalFiles)
		if err != nil || text == nil {
			return err
		}
		return json.Unmarshal(text, &files)
	})
	return files, err
}
