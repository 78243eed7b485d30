package store

import (
	"context"
	"service/store/sqlite"
	"time"
)

// pace is the share of the writer's time that steps take.
type pace struct {
	target time.Duration // of one step, during which it occupies the writer
	most   int           // records in one step
	rest   int           // the pause after a step, in multiples of it
}

var (
	// sweepPace uses at most a fifth of the writer's time.
	sweepPace  = pace{target: 2 * time.Millisecond, most: 256, rest: 4}
	importPace = pace{target: 2 * time.Millisecond, most: 256, rest: 2}
	// The longer the first parts of a move take, the more changes there are to transfer while the
	// program is frozen.
	movePace = pace{target: 2 * time.Millisecond, most: 256, rest: 1}
	// While the program of an import is frozen, commits must be few.
	frozenPace = pace{target: 20 * time.Millisecond, most: 4096}
)

// firstStep is the number of records of the first step of each kind.
const firstStep = 8

// steps divides work that grows with the stored records into short writes, so that other writes
// do not wait long.
type steps struct {
	s       *core
	ctx     context.Context
	pace    pace
	size    int           // records in the next step
	longest time.Duration // longest step
}

// newSteps returns steps at a pace until ctx ends, which start with a small one.
func (s *core) newSteps(ctx context.Context, p pace) steps {
	return steps{s: s, ctx: ctx, pace: p, size: firstStep}
}

// write runs one step, rests, and adapts the size of the next step to the pace. fn may be called
// again if its write was rolled back.
func (w *steps) write(fn func(*tx) error) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	var took time.Duration
	err := w.s.writer.doRepeatable(func(t *tx) error {
		began := time.Now()
		err := fn(t)
		took = time.Since(began)
		return err
	})
	w.longest = max(w.longest, took)
	if w.s.afterStep != nil {
		w.s.afterStep()
	}
	switch {
	case took > w.pace.target:
		w.size = max(w.size/2, 1)
	case took < w.pace.target/3:
		w.size = min(w.size*2, w.pace.most)
	}
	_ = sleep(w.ctx, time.Duration(w.pace.rest)*took) // the next step returns this error
	return err
}

// each runs the parts of some work, each beginning with a small step.
func (w *steps) each(parts ...func() error) error {
	for _, part := range parts {
		w.size = firstStep
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// inSteps calls fn for all elements, in steps of the current size.
func inSteps[T any](w *steps, all []T, fn func(t *tx, some []T) error) error {
	for len(all) > 0 {
		some := all[:min(len(all), w.size)]
		all = all[len(some):]
		if err := w.write(func(t *tx) error { return fn(t, some) }); err != nil {
			return err
		}
	}
	return nil
}

// repeat calls fn in steps until it handles fewer records than the size, and returns how many it
// handled.
func (w *steps) repeat(fn func(t *tx, size int) (n int64, err error)) (all int64, err error) {
	for more := true; more && err == nil; {
		var n int64
		size := w.size
		err = w.write(func(t *tx) (err error) {
			n, err = fn(t, size)
			return err
		})
		if err == nil {
			all += n
		}
		more = n >= int64(size)
	}
	return all, err
}

// until calls fn in steps until it reports the end.
func (w *steps) until(fn func(t *tx, size int) (end bool, err error)) (err error) {
	for end := false; !end && err == nil; {
		err = w.write(func(t *tx) (err error) {
			end, err = fn(t, w.size)
			return err
		})
	}
	return err
}

// remove removes with a query, whose last argument limits the rows, until none is left.
func (w *steps) remove(query string, args ...any) error {
	_, err := w.repeat(func(t *tx, size int) (int64, error) { return t.Affected(query, append(args, size)...) })
	return err
}

// removeFound removes the records whose keys find selects by an argument and a limit. Each query
// takes the found keys as its argument, a JSON array. Use it for keys that are expensive to find,
// since find runs outside the writer.
func (w *steps) removeFound(find string, which any, queries ...string) error {
	for {
		var keys []any
		err := w.s.db.Each(w.ctx, find, []any{which, w.size}, func(scan func(...any) error) error {
			var key any
			err := scan(&key)
			if text, ok := key.([]byte); ok { // one of the drivers returns bytes
				key = string(text)
			}
			keys = append(keys, key)
			return err
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		list := sqlite.JSON(keys)
		err = w.write(func(t *tx) error {
			for _, query := range queries {
				if err := t.Exec(query, list); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// sleep waits for a time, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
