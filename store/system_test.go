package store

import "testing"

func TestSystem(t *testing.T) {
	s := openProgram(t)
	publish(t, s, "p", "content_updated")
	y, err := s.Figures().System(t.Context())
	version, _ := SQLiteVersion()
	if err != nil || y.SQLite != version || y.Schema < 6 || y.Database == 0 || y.WAL == 0 || y.Commits < 2 || y.Writes < 1 ||
		y.Seconds <= 0 || y.Failures != 0 {
		t.Errorf("got %+v, %v", y, err)
	}
}
