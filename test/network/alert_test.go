package network

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"service/test/harness"
)

// alertRun is a service whose alert channels an admin creates and tests.
type alertRun struct {
	*testing.T
	in       *harness.Instance
	browser  *http.Client
	password string // for the admin and for the mail server
}

func newAlertRun(t *testing.T, flags ...string) *alertRun {
	t.Helper()
	r := &alertRun{T: t, password: "correct horse battery"}
	r.in = harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"), flags...)
	r.in.Create()
	cmd := exec.Command(r.in.Binary, "admin", "create", "--email", "ana@example.com",
		"--password-file", r.passwordFile(r.password), "--data", r.in.Data)
	cmd.Env = harness.Environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

func (r *alertRun) passwordFile(password string) string {
	r.Helper()
	file := filepath.Join(r.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		r.Fatal(err)
	}
	return file
}

// start starts the service and signs the admin in.
func (r *alertRun) start() *harness.Process {
	r.Helper()
	p := r.in.MustStart()
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.Fatal(err)
	}
	r.browser = &http.Client{Jar: jar, Timeout: harness.Timeout()}
	if page := r.page("POST", "/sign-in", "email", "ana@example.com", "password", r.password); !strings.Contains(page, "Sign out") {
		r.Fatalf("not signed in:\n%s", page)
	}
	return p
}

// page requests a page, submits the fields as a form if there are any, and follows
// redirects.
func (r *alertRun) page(method, path string, fields ...string) string {
	r.Helper()
	form := make(url.Values)
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	req, err := http.NewRequestWithContext(r.Context(), method, r.in.URL()+path, strings.NewReader(form.Encode()))
	if err != nil {
		r.Fatal(err)
	}
	if method == "POST" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := r.browser.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return string(body)
}

var channelLink = regexp.MustCompile(`/alerts/[0-9a-f-]{36}`)

// create creates a channel and returns the path of its page.
func (r *alertRun) create(fields ...string) string {
	r.Helper()
	page := r.page("POST", "/alerts/new", append(fields, "alert", "subscription_failing")...)
	path := channelLink.FindString(page)
	if path == "" {
		r.Fatalf("got no channel:\n%s", page)
	}
	return path
}

// test sends a test alert to a channel and waits for its result.
func (r *alertRun) test(path, want string) {
	r.Helper()
	r.page("POST", path+"/test")
	harness.WaitFor(r, fmt.Sprintf("%q on page %s", want, path), func() bool { return strings.Contains(r.page("GET", path), want) })
}

// TestAlertsByEmail sends alerts to a mail server over STARTTLS and over implicit TLS.
// After a wrong password the channel's page must show the reason.
func TestAlertsByEmail(t *testing.T) {
	harness.Long(t)
	const password = "mail-password-7f31"
	for name, addr := range map[string]string{"STARTTLS": "127.0.0.1:0", "implicit TLS": "127.0.0.9:465"} {
		t.Run(name, func(t *testing.T) {
			server, err := harness.ListenSMTP(t, addr, "alerts", password, name != "STARTTLS")
			if err != nil {
				harness.Unavailable(t, "netns", err) // only root may listen on the port of implicit TLS
			}
			r := newAlertRun(t)
			good := []string{"--smtp-host", server.Addr, "--smtp-from", "service@operator.example", "--smtp-user", "alerts"}
			r.in.Wrapper = []string{"env", "SSL_CERT_FILE=" + server.CAFile}
			r.in.Flags = append(good, "--smtp-password-file", r.passwordFile("wrong"))
			p := r.start()
			path := r.create("name", "On call", "kind", "email", "to", "ana@operator.example")
			r.test(path, "535: the mail server rejected the user name or password")
			if status := r.in.Stop(p); status != harness.ExitOK {
				t.Errorf("exit status %d", status)
			}
			if strings.Contains(p.Log.String(), "wrong password") {
				t.Error("the log contains the mail server's reply")
			}
			r.in.Flags = append(good, "--smtp-password-file", r.passwordFile(password))
			r.start()
			r.test(path, "Accepted by the mail server")
			m := <-server.Messages
			if !m.TLS || m.User != "alerts" || m.From != "service@operator.example" ||
				len(m.To) != 1 || m.To[0] != "ana@operator.example" || !strings.Contains(m.Text, "Subject:") {
				t.Errorf("the mail server got %+v", m)
			}
		})
	}
}

// TestAlertsToSlack checks that alerts to a Slack-compatible webhook cannot reach
// forbidden addresses, neither when a channel is created nor when an alert is sent.
func TestAlertsToSlack(t *testing.T) {
	harness.Long(t)
	got := make(chan string, 10)
	server := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got <- string(body)
	}))
	r := newAlertRun(t)
	r.in.Flags = []string{"--allow-destination", "10.77.0.0/16"}
	p := r.start()
	r.test(r.create("name", "Chat", "kind", "slack", "url", server+"/services/T0/B0/x"), "200 OK")
	if body := harness.Receive(t, "the alert", got); !strings.Contains(body, `"text":`) {
		t.Errorf("the webhook got %s", body)
	}
	private := r.create("name", "Inside", "kind", "slack", "url", "http://10.77.1.2/hook")
	if status := r.in.Stop(p); status != harness.ExitOK {
		t.Errorf("exit status %d", status)
	}
	r.in.Flags = nil
	r.start()
	r.test(private, "Address not allowed")
	page := r.page("POST", "/alerts/new", "name", "Metadata", "kind", "slack", "url", "http://169.254.169.254/",
		"alert", "subscription_failing")
	if !strings.Contains(page, "leads to an address that deliveries may not be sent to") {
		t.Errorf("a forbidden address: got no error in the form:\n%s", page)
	}
}
