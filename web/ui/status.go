package ui

import "strconv"

// Status is the state of the service, shown in the bar of every page.
type Status struct {
	NotReady  string // why the service is not ready, "" if it is
	Trouble   string // a problem that does not affect readiness, in two or three words; "" for none
	Incidents int    // number of open incidents, in all programs
}

// summary returns the state that sets the color and symbol of the service, its word and its meaning.
func (s *Status) summary() (state, word, meaning string) {
	switch {
	case s.NotReady != "":
		return "failed", "Not ready", s.NotReady
	case s.Trouble != "":
		return "retryable", s.Trouble, "The service is ready, but needs attention."
	}
	return "success", "Ready", "The service accepts and delivers events."
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
