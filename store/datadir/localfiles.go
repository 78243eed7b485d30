package datadir

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

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
		var text []byte
		err := db.QueryRowContext(ctx, "SELECT value FROM settings WHERE name = ?", schema.LocalFiles).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		return json.Unmarshal(text, &files)
	})
	return files, err
}
