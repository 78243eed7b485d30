package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"time"
)

// NoRows returns instead for an error that wraps [sql.ErrNoRows], and other errors as they are.
func NoRows(err, instead error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return instead
	}
	return err
}

// Millis binds a time in Unix milliseconds; the zero time is NULL. [FromMillis] is the reverse.
func Millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// FromMillis returns the time of Unix milliseconds; NULL is the zero time.
func FromMillis(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMilli(n.Int64).UTC()
}

// Time scans a time in Unix milliseconds; NULL is the zero time. [Millis] is the reverse.
type Time time.Time

// Scan implements [sql.Scanner].
func (t *Time) Scan(v any) error {
	var n sql.NullInt64
	err := n.Scan(v)
	*t = Time(FromMillis(n))
	return err
}

// OrZero scans a value; NULL is the zero value. [OrNull] is the reverse.
func OrZero[T any](to *T) sql.Scanner { return orZero[T]{to} }

type orZero[T any] struct{ to *T }

func (z orZero[T]) Scan(v any) error {
	var n sql.Null[T]
	err := n.Scan(v)
	*z.to = n.V
	return err
}

// OrNull binds a value; the zero value is NULL.
func OrNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// Blob binds bytes; nil is NULL, which not all drivers do by themselves.
func Blob(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// JSON binds values as a JSON array; nil is NULL. It panics if the values have no JSON.
func JSON[T any](values []T) any {
	if values == nil {
		return nil
	}
	b, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// Into returns a function that appends the only value of a row to all.
func Into[T any](all *[]T) func(scan func(...any) error) error {
	return ScanInto(all, func(scan func(...any) error) (one T, err error) {
		err = scan(&one)
		return one, err
	})
}

// ScanInto returns a function that appends a row, as scanRow reads it, to all.
func ScanInto[T any](all *[]T, scanRow func(scan func(...any) error) (T, error)) func(scan func(...any) error) error {
	return func(scan func(...any) error) error {
		one, err := scanRow(scan)
		*all = append(*all, one)
		return err
	}
}

// JSONText returns a value of texts, numbers and lists or maps of them as JSON.
func JSONText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail for these
	}
	return string(b)
}
