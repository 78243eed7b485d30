package store

// deliveryIndex is a pair of indexes of the deliveries of a subscription: by its num,
// and, for deliveries of before schema 13, by its id.
type deliveryIndex struct{ num, id string }

var (
	byCreation   = deliveryIndex{"deliveries_of_subscription", "deliveries_by_subscription"}
	byCompletion = deliveryIndex{"deliveries_completed", "deliveries_by_completion"}
)

// query returns the query of the deliveries d of a subscription, whose id is an
// expression: where continues its WHERE, and tail is what comes after, such as an
// ORDER BY of the index's order, by the numbers of the columns.
func (x deliveryIndex) query(columns, subscriptionID, where, tail string) string {
	return "SELECT " + columns + " FROM deliveries d INDEXED BY " + x.num + " WHERE d.subscription = (SELECT num FROM subscriptions WHERE id = " + subscriptionID + ")" + where +
		"\n\tUNION ALL SELECT " + columns + " FROM deliveries d INDEXED BY " + x.id + " WHERE d.subscription_id = " + subscriptionID + " AND d.subscription IS NULL" + where + tail
}
