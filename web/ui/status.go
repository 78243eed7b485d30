package ui

import "strconv"

// Status is the state of the service, which the bar of every page shows.
type Status struct {
	NotReady  string // why it is not ready, "" when it is ready
	Trouble   string // what is not well although it is ready, in two or three words; "" for nothing
	Incidents int    // number of open ones, in all programs
}

// incidents formats the number of open incidents.
func (s *Status) incidents() string {
	switch s.Incidents {
	case 0:
		return "No incidents"
	case 1:
		return "1 incident"
	}
	return strconv.Itoa(s.Incidents) + " incidents"
}
