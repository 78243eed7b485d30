package clock

import (
	"time"

	"service/store/sqlite"
)

// The newest mark up to a time, else the oldest.
const selectMarkSince = "SELECT counted, at FROM retention_marks WHERE counted <= max(?, (SELECT min(counted) FROM retention_marks)) " +
	"ORDER BY counted DESC LIMIT 1"

// Difference returns how much more the wall clock has advanced than the counted time, since the mark
// that is one retention old, else the oldest, and the time of that mark; zero if there is none.
func Difference(scan sqlite.ScanRow, wall time.Time, counted time.Duration,
	keep time.Duration) (more time.Duration, since time.Time, err error) {
	var then int64
	err = scan(selectMarkSince, []any{(counted - keep).Milliseconds()}, &then, (*sqlite.Time)(&since))
	if err != nil {
		return 0, time.Time{}, sqlite.NoRows(err, nil)
	}
	return wall.Sub(since) - counted + time.Duration(then)*time.Millisecond, since, nil
}
