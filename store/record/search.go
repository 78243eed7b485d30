package record

import (
	"context"
	"strings"

	"service/store/list"
	"service/store/sqlite"
)

// Found is a record that an ID prefix matched. An event ID is unique only within its program.
type Found struct {
	Kind      FoundKind
	ID        string
	ProgramID string
}

// FoundKind is the kind of a found record.
type FoundKind string

// The kinds of records that Find looks for.
const (
	FoundSubscription FoundKind = "subscription" // including deleted ones
	FoundDelivery     FoundKind = "delivery"
	FoundEvent        FoundKind = "event"
	FoundToken        FoundKind = "token"
)

// Each reads a range of IDs from an index; the upper bound is exclusive, except that of deliveries.
const (
	findSubscriptions = "SELECT id, program_id FROM subscriptions WHERE id >= ? AND id < ? AND program_id" + list.CanBeUsed +
		" ORDER BY id LIMIT ?"
	findDeliveries = "SELECT id, program_id FROM deliveries WHERE id >= ? AND id <= ? AND length(id) = 22 AND program_id" +
		list.CanBeUsed + " ORDER BY id LIMIT ?"
	findTokens = "SELECT id, coalesce(program_id, '') FROM tokens WHERE id >= ? AND id < ? AND coalesce(program_id, '')" +
		list.CanBeUsed + " ORDER BY id LIMIT ?"
	findEvents = "SELECT e.id, p.id FROM programs p CROSS JOIN events e WHERE e.program_id = p.id AND e.id >= ? AND e.id < ? AND p.id" +
		list.CanBeUsed + " LIMIT ?"
)

// Prefix returns the records of all programs whose ID begins with prefix, at most limit of each
// kind. It costs one index lookup per kind, and for events one per program. An empty prefix
// finds nothing.
func (s Search) Prefix(ctx context.Context, prefix string, limit int) ([]Found, error) {
	prefix = strings.ToLower(prefix)
	if prefix == "" || strings.Trim(prefix, "0123456789abcdef-") != "" {
		return nil, nil // no ID contains such characters
	}
	var all []Found
	err := s.view(ctx, func(v *view) error {
		for _, of := range []struct {
			kind  FoundKind
			query string
		}{
			{FoundSubscription, findSubscriptions}, {FoundDelivery, findDeliveries}, {FoundEvent, findEvents}, {FoundToken, findTokens},
		} {
			n := 0
			args := []any{prefix, prefix + "g", limit}
			if of.kind == FoundDelivery {
				first, last := idRange(prefix)
				args = []any{first, last, limit}
			}
			err := v.Each(of.query, args, func(scan func(...any) error) error {
				f := Found{Kind: of.kind}
				if err := scan((*DeliveryID)(&f.ID), &f.ProgramID); err != nil {
					return err
				}
				if all, n = append(all, f), n+1; n == limit {
					return sqlite.ErrStop
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

const selectProgramIDs = "SELECT id FROM programs ORDER BY id LIMIT ?"
