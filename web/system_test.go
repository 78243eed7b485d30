package web

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"service/store/doctor"
	"service/web/ui"
)

func TestSystemPage(t *testing.T) {
	w := testWeb(t, func(c *Config) {
		c.Settings = []Setting{{"retention", "30d", "default"}, {"retention-delivered", "3d", "flag"}, {"alert-url", "set", "SERVICE_ALERT_URL"},
			{"allow-destination", "", "default"}}
		c.Certificates = func() []Certificate {
			return []Certificate{
				{Names: []string{"localhost"}, Issuer: "our CA", Ends: time.Now().Add(48 * time.Hour)},
				{Names: []string{"hooks.example"}, Failing: time.Now().Add(-time.Hour), Fault: "the issuer <is> down"},
			}
		}
		c.Checks = func(context.Context) []doctor.Finding {
			return []doctor.Finding{{Check: "the moon", Level: doctor.LevelOK, Detail: "it is up"}, {Check: "the tide", Level: doctor.LevelWarn,
				Detail: "it is <low>", Advice: "Wait."}}
		}
	})
	v := visit(t, w)
	v.do("GET", "/system").want(t, 401, "")
	v.signIn(w)
	p := v.do("GET", "/system")
	p.want(t, 200, "SQLite 3.", "Forecast", "available one day after the first event", "Space for a copy",
		"available a day after the first event", "v1.2.3", "Write-ahead log", "localhost", "our CA",
		"hooks.example: the certificate could not be obtained or renewed",
		"the issuer &lt;is&gt; down", "none yet", "--retention", "30d", "3 d for successful deliveries", "--alert-url", "SERVICE_ALERT_URL",
		"ready", "the moon", "it is &lt;low&gt;", "Wait.", "WARN the tide")
	w.cfg.Ready = func(context.Context) error { return errors.New("the store is on fire") }
	v.do("GET", "/system").want(t, 200, "the store is on fire")
}

// The forecast shows rows for several kinds of databases.
func TestForecastDetails(t *testing.T) {
	at := time.Date(2027, 3, 4, 5, 6, 0, 0, time.UTC)
	for _, c := range []struct {
		f         doctor.Forecast
		want, not []string
	}{
		{doctor.Forecast{KnownAt: at}, []string{"available from", "2027-03-04"}, []string{"Disk full"}},
		{doctor.Forecast{Known: true}, []string{"No growth"}, []string{"Disk full"}},
		{doctor.Forecast{Known: true, EventsPerDay: 1000, Size: 3 << 30, DayBytes: 1 << 20, Copy: 1 << 30},
			[]string{"3.0 GiB", "1,000 events per day", "Not at this rate", "1.0 MiB", "1.0 GiB"}, []string{"./service compact"}},
		{doctor.Forecast{Known: true, EventsPerDay: 1, FullAt: at, Stuck: 5 << 30}, []string{"2027-03-04", "5.0 GiB", "service compact"}, nil},
		{doctor.Forecast{Known: true, EventsPerDay: 1, Full: true}, []string{"now"}, nil},
	} {
		f := ui.Frame{Clock: ui.Clock{Now: at.Add(-time.Hour)}, Binary: "./service"}
		contains(t, fmt.Sprintf("%+v", c.f), rendered(t, forecastDetails(f, &c.f)), c.want, c.not)
	}
}
