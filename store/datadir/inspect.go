package datadir

import (
	"context"
	"errors"
	"fmt"
	"time"

	"service/store/keyring"
	"service/store/schema"
	"service/store/sqlite"
)

// Contents counts the records in a copy of a database.
type Contents struct {
	Schema        int       `json:"schema"`
	Programs      int       `json:"programs"`
	Subscriptions int       `json:"subscriptions"` // not deleted
	Events        int       `json:"events"`
	Deliveries    int       `json:"deliveries"`
	Incomplete    int       `json:"unended"` // deliveries that have not completed and would be sent, possibly again
	Newest        time.Time `json:"newest"`  // when the newest event was accepted; zero if there is none
}

// ErrUnusable reports that a copy of a database cannot be used: it is damaged, has a schema that this
// binary does not support, or is encrypted with another key.
var ErrUnusable = errors.New("the database cannot be used")

// Inspect checks the integrity of a copy of a database, however long that takes, and counts its
// records. If keys, the content of a secret.key, is not nil, it also checks that they decrypt
// its secrets. The error wraps [ErrUnusable] if the copy is unusable. Inspect changes nothing; no
// process may have the file open.
func Inspect(ctx context.Context, path string, keys []byte) (c Contents, err error) {
	unfit := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", ErrUnusable, fmt.Errorf(format, args...))
	}
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	scan := func(query string, args []any, dest ...any) error {
		err := db.QueryRowContext(ctx, query, args...).Scan(dest...)
		if err != nil && sqlite.IsCorrupt(err) {
			return unfit("it is damaged: %w", err)
		}
		return err
	}
	var found string
	if err := scan("PRAGMA integrity_check(1)", nil, &found); err != nil {
		return c, err
	}
	if found != "ok" {
		return c, unfit("it is damaged: %s", found)
	}
	if err := scan("PRAGMA user_version", nil, &c.Schema); err != nil {
		return c, err
	}
	if err := schema.Current.Check("it", c.Schema); err != nil {
		return c, unfit("%w", err)
	}
	for query, dest := range map[string]any{
		"SELECT count(*) FROM programs":                                                      &c.Programs,
		"SELECT count(*) FROM subscriptions WHERE deleted_at IS NULL":                        &c.Subscriptions,
		"SELECT count(*) FROM events":                                                        &c.Events,
		"SELECT count(*) FROM deliveries":                                                    &c.Deliveries,
		"SELECT count(*) FROM deliveries WHERE status <> 'success' AND completed_at IS NULL": &c.Incomplete,
		"SELECT max(received_at) FROM events":                                                (*sqlite.Time)(&c.Newest),
	} {
		if err := scan(query, nil, dest); err != nil {
			return c, err
		}
	}
	if keys == nil {
		return c, nil
	}
	ring, err := keyring.OfContent(keys)
	if err != nil {
		return c, unfit("%w", err)
	}
	check, err := schema.Get(scan, keyring.CheckPlace)
	if err != nil || check == nil { // nothing has been encrypted yet
		return c, err
	}
	if !ring.Fits(check) {
		return c, unfit("its secrets are encrypted with another key")
	}
	return c, nil
}
