//go:build race

package dispatcher

// defaultPlans is smaller with the race detector: each bubble of testing/synctest leaks memory of
// its runtime, and a plan takes much longer.
const defaultPlans = 50
