package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// foreignPragmas configure the connection to a database of unknown origin.
var foreignPragmas = []string{
	"PRAGMA query_only = ON",
	"PRAGMA trusted_schema = OFF",
	"PRAGMA cell_size_check = ON",
	"PRAGMA cache_size = -4000",
}

// foreignLimits bound the resources of a statement over a database of unknown origin, by the numbers
// of https://sqlite.org/c3ref/c_limit_attached.html.
var foreignLimits = map[int]int{
	0:  64 << 20, // bytes of a value or a row; the longest that the service writes are a few MiB
	1:  64 << 10, // bytes of a statement, those in the schema included
	2:  100,      // columns
	3:  100,      // depth of an expression
	4:  8,        // terms of a compound SELECT
	5:  50_000,   // instructions of a program
	6:  16,       // arguments of a function
	7:  0,        // attached databases
	8:  1000,     // bytes of a LIKE pattern
	9:  100,      // parameters
	10: 1,        // depth of triggers
	11: 0,        // worker threads
}

// OpenForeign opens a database of unknown origin for reading. No process may have it open. The error
// wraps unfit unless the database has exactly the tables, indexes and triggers of a new database of
// the schema, so that no view stands in for a table, and is undamaged. The pool has one connection.
// The caller closes it.
func OpenForeign(ctx context.Context, path string, schema *Schema, unfit error) (_ *sql.DB, err error) {
	want, err := schema.objects(ctx)
	if err != nil {
		return nil, err
	}
	db, err := openPool(path, modeImmutable, foreignPragmas, foreignLimits)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{unfit}, args...)...)
	}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return nil, refuse("it is damaged: %w", err)
	}
	if err := schema.Check("it", version); err != nil {
		return nil, refuse("%w", err)
	}
	if version != schema.Version {
		return nil, refuse("it has schema %d, and must have schema %d: export it with the same version of the service", version, schema.Version)
	}
	have, err := objects(ctx, db)
	if err != nil {
		return nil, refuse("it is damaged: %w", err)
	}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(want))) { // tables before their indexes
		if have[key] != want[key] {
			return nil, refuse("its %s is not the one of schema %d", key, version)
		}
	}
	for key := range have {
		if _, ok := want[key]; !ok {
			return nil, refuse("schema %d has no %s", version, key)
		}
	}
	var found string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil || found != "ok" {
		return nil, refuse("it is damaged: %w", errors.Join(err, errors.New(found)))
	}
	return db, nil
}

// objects returns the text of each object of a database by its type and name.
func objects(ctx context.Context, db *sql.DB) (map[string]string, error) {
	all := make(map[string]string)
	rows, err := db.QueryContext(ctx, "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema")
	if err != nil {
		return nil, err
	}
	return all, Drain(rows, func(scan func(...any) error) error {
		var kind, name, table, text string
		err := scan(&kind, &name, &table, &text)
		all[kind+" "+name] = table + ": " + text
		return err
	})
}

// schemaObjects are the objects of new databases, by schema.
var schemaObjects sync.Map // of *Schema to map[string]string

// objects returns the objects of a new database of the schema.
func (s *Schema) objects(ctx context.Context) (all map[string]string, err error) {
	if known, ok := schemaObjects.Load(s); ok {
		return known.(map[string]string), nil
	}
	dir, err := os.MkdirTemp("", "schema")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := OpenPrivate(ctx, filepath.Join(dir, "new.db"), s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if all, err = objects(ctx, db); err == nil {
		schemaObjects.Store(s, all)
	}
	return all, err
}
