//go:build !race

package dispatcher

const defaultPlans = 500
