package web

// andDeliveries tells of deliveries that wait beside events.
func andDeliveries(n int) string {
	if n == 1 {
		return "and 1 delivery"
	}
	return "and " + counted(n) + " deliveries"
}
