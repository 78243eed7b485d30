//go:build cgo

package sqlite

/*
// The SQLite library calls fsync for what it wrote, unless it is compiled with
// HAVE_FDATASYNC. A plain "go build" cannot pass that to the module that compiles it,
// but the linker can send its calls here.
#cgo LDFLAGS: -Wl,--wrap=fsync

#define _GNU_SOURCE
#include <sys/stat.h>
#include <unistd.h>

int __real_fsync(int fd);

// fdatasync writes what is needed to read the data back, a new size included. It leaves
// out the times, which cost a commit of the file system's journal each. A directory
// is synced for its entries: that stays an fsync.
int __wrap_fsync(int fd) {
	struct stat st;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		return fdatasync(fd);
	}
	return __real_fsync(fd);
}
*/
import "C"
