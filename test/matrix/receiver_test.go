//go:build linux

package matrix

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// arrival is a request that reached the receiver.
type arrival struct {
	at       time.Time
	sender   string // name of the machine, or "" if its process had exited already
	delivery string
	events   []string
}

// receiver is a subscriber that responds 200 at once.
type receiver struct {
	url string

	mu       sync.Mutex
	senders  map[int]string // machines by process ID
	arrivals []arrival
	arrived  map[string]bool // events
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{url: "http://" + l.Addr().String(), senders: make(map[int]string), arrived: make(map[string]bool)}
	s := &http.Server{Handler: r, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		sender := make(chan string, 1) // before the process can end
		go func() { sender <- r.sender(c) }()
		return context.WithValue(ctx, senderKey{}, sync.OnceValue(func() string { return <-sender }))
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return r
}

type senderKey struct{}

// know records that a process belongs to a machine.
func (r *receiver) know(pid int, machine string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.senders[pid] = machine
}

// sender returns the machine at the other end of a connection, or "".
func (r *receiver) sender(c net.Conn) string {
	inode, err := socketInode(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr))
	if err != nil {
		return ""
	}
	r.mu.Lock()
	senders := maps.Clone(r.senders)
	r.mu.Unlock()
	want := "socket:[" + inode + "]"
	for pid, machine := range senders {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // none after the process exited
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == want {
				return machine
			}
		}
	}
	return ""
}

// socketInode returns the inode of the socket on this host that is bound to local and
// connected to remote. It uses the kernel's socket diagnosis, because /proc/net/tcp
// lists every socket, which takes too long.
func socketInode(local, remote *net.TCPAddr) (string, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	const headerLen, requestLen = 16, 56 // struct nlmsghdr, struct inet_diag_req_v2
	b := binary.NativeEndian.AppendUint32(nil, headerLen+requestLen)
	b = binary.NativeEndian.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence, port
	b = append(b, unix.AF_INET, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 0xffffffff) // of any state
	b = binary.BigEndian.AppendUint16(b, uint16(local.Port))
	b = binary.BigEndian.AppendUint16(b, uint16(remote.Port))
	for _, ip := range []net.IP{local.IP, remote.IP} {
		b = append(append(b, ip.To4()...), make([]byte, 12)...)
	}
	b = append(b, make([]byte, 4)...) // any interface
	b = binary.NativeEndian.AppendUint64(b, math.MaxUint64)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	const inode = headerLen + 68 // in struct inet_diag_msg
	if err != nil || n < inode+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.SOCK_DIAG_BY_FAMILY {
		return "", errors.Join(err, os.ErrNotExist)
	}
	return fmt.Sprint(binary.NativeEndian.Uint32(answer[inode:])), nil
}

// ServeHTTP receives a delivery.
func (r *receiver) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	a := arrival{at: time.Now(), sender: req.Context().Value(senderKey{}).(func() string)()}
	var body struct {
		ID     string `json:"delivery_id"`
		Events []struct{ ID string }
	}
	if err := json.NewDecoder(req.Body).Decode(&body); err == nil {
		a.delivery = body.ID
		for _, e := range body.Events {
			a.events = append(a.events, e.ID)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrivals = append(r.arrivals, a)
	for _, id := range a.events {
		r.arrived[id] = true
	}
}

// all returns the arrivals so far.
func (r *receiver) all() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]arrival(nil), r.arrivals...)
}

// has reports whether all events of a set have arrived.
func (r *receiver) has(events map[string]bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range events {
		if !r.arrived[id] {
			return false
		}
	}
	return true
}
