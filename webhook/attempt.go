package webhook

import "time"

// Result is what an attempt came to (spec, sections 2.2 and 3).
type Result string

const (
	ResultSuccess   Result = "success"
	ResultFailed    Result = "failed"
	ResultRetryable Result = "retryable"
)

// ErrorCode says why an attempt had no usable answer.
type ErrorCode string

const (
	ErrorNone        ErrorCode = ""
	ErrorTimeout     ErrorCode = "timeout"     // no answer within the attempt's time
	ErrorDNS         ErrorCode = "dns"         // the name has no address
	ErrorConnect     ErrorCode = "connect"     // no connection, or it broke before an answer
	ErrorTLS         ErrorCode = "tls"         // no trustworthy encrypted connection
	ErrorBlocked     ErrorCode = "blocked"     // the address is not one the service may call
	ErrorProtocol    ErrorCode = "protocol"    // what came back is not an HTTP answer
	ErrorInterrupted ErrorCode = "interrupted" // the service itself stopped during the attempt
)

var errorDetails = map[ErrorCode]string{
	ErrorTimeout:     "The server did not answer within the time an attempt has.",
	ErrorDNS:         "The host name of the URL could not be resolved.",
	ErrorConnect:     "The connection could not be made, or broke before an answer came.",
	ErrorTLS:         "A secure connection could not be made; the server's certificate may be expired, for another name, or not publicly trusted.",
	ErrorBlocked:     "The URL leads to an address that deliveries may not be sent to.",
	ErrorProtocol:    "The server's answer was not a valid HTTP/1.1 response.",
	ErrorInterrupted: "The service was stopped during this attempt; whether the server received it is not known.",
}

// ErrorCodes returns every error code but ErrorNone.
func ErrorCodes() []ErrorCode {
	return []ErrorCode{ErrorTimeout, ErrorDNS, ErrorConnect, ErrorTLS, ErrorBlocked, ErrorProtocol, ErrorInterrupted}
}

// Detail is a sentence about the error for partners. It is one of our own, the
// same for every cause of one code, so that it tells nothing of the network
// the service runs in.
func (c ErrorCode) Detail() string { return errorDetails[c] }

// MaxKeptBody is how much of the body of an answer is kept for admins, in bytes.
const MaxKeptBody = 16 << 10

// Attempt is one HTTP request made for a delivery, and what came of it.
type Attempt struct {
	Number         int // 1 to MaxAttempts
	StartedAt      time.Time
	Duration       time.Duration
	Result         Result
	ResponseStatus int       // 0 when there was no answer
	Error          ErrorCode // ErrorNone when there was one

	// ErrorFact is the fact behind Error, for admins: "connection refused". "" when
	// no more is known than the code.
	ErrorFact string

	// Phases are where the time went, for admins.
	Phases Phases

	// For admins alone: what a partner could read back of a server's answer
	// would make every URL field a way to look into a network.
	ResponseHeader    string // as received, a line each
	ResponseBody      []byte // the first MaxKeptBody bytes
	ResponseTruncated bool   // the body was longer
	ResponseRemoved   bool   // there was a response, and its header and body are no longer stored

	// RetryAfter is the wait that a 429 or 503 asked for, 0 if none.
	RetryAfter time.Duration
}

// Phases are how long the parts of an attempt took, one after the other; zero
// for what there was none of. The first three are zero on a connection that was
// open already. What is left of the attempt's duration went into reading the
// rest of the answer, or into what failed.
type Phases struct {
	DNS       time.Duration // until the host's addresses were known
	Connect   time.Duration // until one of them was connected to
	TLS       time.Duration // until the connection was secure
	FirstByte time.Duration // from then until the first byte of the answer
}

// Classify says what an attempt came to (spec, section 3). Where the spec is
// silent: the lack of an answer is retryable like a 5xx, and a forbidden address
// is final.
func Classify(status int, err ErrorCode) Result {
	switch {
	case err == ErrorBlocked:
		return ResultFailed
	case err != ErrorNone:
		return ResultRetryable
	case status >= 200 && status <= 299:
		return ResultSuccess
	case status >= 500 && status <= 599:
		return ResultRetryable
	default:
		return ResultFailed
	}
}
