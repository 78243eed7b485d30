package store

// deliveryIndex is a pair of indexes of the deliveries of a subscription: by its num and, for
// deliveries from before schema 13, by its id.
type deliveryIndex struct{ num, id string }

var (
	byCreation   = deliveryIndex{"deliveries_of_subscription", "deliveries_by_subscription"}
	byCompletion = deliveryIndex{"deliveries_completed", "deliveries_by_completion"}
)

// query returns a query of the deliveries d of the subscription whose id is the expression
// subscriptionID. where continues its WHERE clause, and tail follows, for example an ORDER BY
// in the order of the index, by column numbers.
func (x deliveryIndex) query(columns, subscriptionID, where, tail string) string {
	return "SELECT " + columns + " FROM deliveries d INDEXED BY " + x.num + " WHERE d.subscription = (SELECT num FROM subscriptions " +
		"WHERE id = " + subscriptionID + ")" + where +
		"\n\tUNION ALL SELECT " + columns + " FROM deliveries d " +
		"INDEXED BY " + x.id + " WHERE d.subscription_id = " + subscriptionID + " AND d.subscription IS NULL" + where + tail
}
