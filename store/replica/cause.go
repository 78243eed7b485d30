package replica

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"syscall"
)

// Cause is why a replica cannot be used, in one word that is safe to show to everyone: an error
// of the bucket may name hosts, accounts and keys.
type Cause string

// The causes.
const (
	CauseRefused     Cause = "refused"     // a wrong key, a missing permission, no such bucket
	CauseFull        Cause = "full"        // no space, or the quota is used up
	CauseSlow        Cause = "slow"        // requests time out, or the bucket asks for fewer
	CauseUnreachable Cause = "unreachable" // no connection, or the server fails
	CauseLeaseLost   Cause = "lease lost"  // another service holds the lease
)

// Causes returns all causes.
func Causes() []Cause {
	return []Cause{CauseRefused, CauseFull, CauseSlow, CauseUnreachable, CauseLeaseLost}
}

// CauseOf returns the cause of an error of a replica, "" for nil and if the bucket is not the cause.
func CauseOf(err error) Cause {
	var response interface{ HTTPStatusCode() int }
	var failed interface{ ErrorCode() string }
	var network interface{ Timeout() bool }
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errReplicaIncomplete), errors.Is(err, errBacklog), errors.Is(err, errWALTooLong), errors.As(err, new(contentError)):
		return "" // the bucket can be used
	case errors.Is(err, ErrLeaseHeld), errors.Is(err, ErrLeaseExpired), errors.Is(err, errTermEnded), errors.Is(err, ErrWriting):
		return CauseLeaseLost
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return CauseFull
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, ErrUnconditional):
		return CauseRefused
	case errors.As(err, &failed) && causeOfCode[failed.ErrorCode()] != "":
		return causeOfCode[failed.ErrorCode()]
	case errors.As(err, &response) && response.HTTPStatusCode() >= 300:
		return causeOfStatus(response.HTTPStatusCode())
	case errors.Is(err, errUploadStalled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &network) && network.Timeout():
		return CauseSlow
	}
	return CauseUnreachable
}

// causeOfCode maps the error codes of buckets whose statuses differ.
var causeOfCode = map[string]Cause{
	"QuotaExceeded": CauseFull, "InsufficientStorage": CauseFull, "InsufficientCapacity": CauseFull,
	"XMinioStorageFull": CauseFull, "XMinioAdminBucketQuotaExceeded": CauseFull,
	"SlowDown": CauseSlow, "RequestTimeout": CauseSlow, "RequestLimitExceeded": CauseSlow, "Throttling": CauseSlow,
}

// causeOfStatus returns the cause of a failed response. A status of the server itself is no
// refusal: a repetition may succeed.
func causeOfStatus(status int) Cause {
	switch {
	case status == http.StatusInsufficientStorage:
		return CauseFull
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusGatewayTimeout:
		return CauseSlow
	case status >= 500:
		return CauseUnreachable
	}
	return CauseRefused
}

// Remedy returns what the operator can do, one sentence; "" for no cause.
func (c Cause) Remedy() string {
	switch c {
	case "":
		return ""
	case CauseRefused:
		return "Check the access key, its permissions (read, write, delete, list), the name and region of the bucket, and this host's " +
			"clock; for a replica in a folder, that the service's user can write to it."
	case CauseFull:
		return "Raise the bucket's quota or free space there."
	case CauseSlow:
		return "Check the bandwidth to the bucket, and its provider's limits and status."
	case CauseLeaseLost:
		return "Check which service holds the lease, or writes to the replica without one: only that one may."
	}
	return "Check that this host reaches the bucket (DNS, firewall, proxy, certificate), and its provider's status."
}
