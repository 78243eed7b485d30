//go:build race

package dispatcher

// defaultPlans is smaller with the race detector: each bubble of testing/synctest leaks memory of
// its runtime. The same plans and more are played without it.
const defaultPlans = 100
