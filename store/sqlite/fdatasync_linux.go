//go:build cgo

package sqlite

/*
// SQLite calls fsync unless it is compiled with HAVE_FDATASYNC. A plain "go build"
// cannot pass that macro to the module that compiles SQLite, so the linker redirects
// the calls of fsync to this file.
#cgo LDFLAGS: -Wl,--wrap=fsync

#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

int __real_fsync(int fd);

// fdatasync writes what is needed to read the data back, including a new size. It
// skips timestamps, which would cost a commit of the file system's journal each time.
// Directories still need an fsync; they cannot be opened for writing. fstat would tell
// them apart too, but after it Linux gives the file a new time at the next write, which
// made each sync a third slower.
int __wrap_fsync(int fd) {
	int flags = fcntl(fd, F_GETFL);
	if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY) {
		return fdatasync(fd);
	}
	return __real_fsync(fd);
}
*/
import "C"
