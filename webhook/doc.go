// Package webhook holds the words and the rules of the service: its records,
// what an answer of a subscriber means, what happens after an attempt, how a
// delivery is signed, which events exist, and which addresses may be dialled.
//
// It does no I/O and reads no clock: every rule is a pure function of its
// arguments, so that each stands in one place and is tested in full.
package webhook
