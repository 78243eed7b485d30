package datadir

const (
	MovingOut   = movingOut
	MovingIn    = movingIn
	NewFiles    = newFiles
	OldFiles    = oldFiles
	AsidePrefix = replaced
	Restoring   = restoring
	PrimaryFile = primaryFile
	MaxPrimary  = maxPrimary
)

// Folder returns the directory that a restoration fills.
func Folder(r *Restoration) string { return r.folder }

// Unlock unlocks the data directory of a restoration, as when its process ends.
func Unlock(r *Restoration) error { return r.lock.Close() }

// Dir returns the data directory of a standby, and CopyPath the database that it copies.
func Dir(s *Standby) string      { return s.dir }
func CopyPath(s *Standby) string { return s.path }

// ForgetReader ends the pause before the copy is opened for an unknown token.
func ForgetReader(s *Standby) { s.reader = metricsReader{} }
