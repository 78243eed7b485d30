// Package webhook is the domain of the service: its records, and the rules for
// classifying responses, retrying, signing, the circuit breaker, the event catalog,
// and the addresses that deliveries may be sent to.
//
// It does no I/O and reads no clock. Every rule is a pure function of its
// arguments, so it is written once and can be tested exhaustively.
package webhook
