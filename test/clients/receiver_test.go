package clients

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// guideReceiver describes how to install and run a program of the guide for receivers.
type guideReceiver struct {
	heading, file string
	install, run  []string
}

var receivers = []guideReceiver{
	{"### Express", "receiver.mjs", []string{"npm", "install", "--no-audit", "--no-fund", "express"}, []string{"node", "receiver.mjs"}},
	{"### Flask", "receiver.py", []string{"python3", "-c", "import flask"}, []string{"python3", "receiver.py"}},
	{"### Go", "receiver.go", []string{"go", "build", "-o", "receiver", "receiver.go"}, []string{"./receiver"}},
}

// TestReceivers runs the receivers of the guide as shown on the page, except for the port. Each
// must accept what the service sends, process an event that is sent twice only once, and refuse a
// forged delivery.
func TestReceivers(t *testing.T) {
	harness.Long(t)
	in := harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"))
	in.MustStart()
	token := in.Token("acme")
	guide := page(t, in, "/docs/receiving"+".md")
	for _, r := range receivers {
		t.Run(r.file, func(t *testing.T) { r.try(t, in, token, guide) })
	}
}

// try runs a receiver against the service.
func (r *guideReceiver) try(t *testing.T, in *harness.Instance, token, guide string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(address)
	dir := t.TempDir()
	env := append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	save(t, dir, r.file, strings.ReplaceAll(codeUnder(guide, r.heading), "9000", port))
	install := exec.CommandContext(t.Context(), harness.Tool(t, "clients", r.install[0]), r.install[1:]...)
	install.Dir, install.Env = dir, env
	if out, err := install.CombinedOutput(); err != nil {
		harness.Unavailable(t, "clients", r.file+": "+err.Error()+"\n"+string(out))
	}

	const subscriptions = "/v2/webhooks/subscriptions"
	hook := "http://" + address + "/hook"
	var created struct {
		Data struct {
			ID            string
			SigningSecret string `json:"signing_secret"`
		}
	}
	body := map[string]any{"url": hook, "events": []map[string]string{{"name": "content_published"}}}
	call(t, in, token, subscriptions, body, &created)
	path := filepath.Join(dir, "out")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.CommandContext(t.Context(), r.run[0], r.run[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(env, "SECRET="+created.Data.SigningSecret), out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait())); err != nil {
			t.Error(err)
		}
	}()
	harness.WaitFor(t, r.file+" listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})

	own := subscriptions + "/" + created.Data.ID
	in.Publish(token, map[string]any{"name": "content_published", "version": "1", "content_id": 7, "channel_ids": []int{1}})
	first := successes(t, in, token, own, 1)
	call(t, in, token, own+"/deliveries/"+first[0]+"/redeliver", nil, nil)
	successes(t, in, token, own, 2)
	forged, err := http.Post(hook, "application/json", strings.NewReader(`{"events":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	forged.Body.Close()
	if forged.StatusCode != http.StatusUnauthorized {
		t.Errorf("a forged delivery: got status %d, want 401", forged.StatusCode)
	}
	printed, err := os.ReadFile(path)
	if n := strings.Count(string(printed), "content_published "); err != nil || n != 1 {
		t.Errorf("the event was processed %d times, want once: %v\n%s", n, err, printed)
	}
}

// codeUnder returns the first block of code under a heading of the guide.
func codeUnder(guide, heading string) string {
	_, text, _ := strings.Cut(guide, "\n"+heading+"\n")
	_, text, _ = strings.Cut(text, "```")
	_, text, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, "\n```")
	return text + "\n"
}

func save(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ignoreExit returns nil for the exit status of a killed process.
func ignoreExit(err error) error {
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil
	}
	return err
}

// page returns a page of the service.
func page(t *testing.T, in *harness.Instance, path string) string {
	t.Helper()
	resp, err := in.Client.Get(in.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: status %d, %v", path, resp.StatusCode, err)
	}
	return string(text)
}

// call makes a POST that must succeed.
func call(t *testing.T, in *harness.Instance, token, path string, body, into any) {
	t.Helper()
	if status, err := in.Call(t.Context(), token, "POST", in.URL()+path, body, into); err != nil || status != http.StatusCreated {
		t.Fatalf("POST %s: status %d, %v", path, status, err)
	}
}

// successes waits for n successful deliveries of the event to a subscription, and returns their
// IDs.
func successes(t *testing.T, in *harness.Instance, token, subscription string, n int) (ids []string) {
	t.Helper()
	harness.WaitFor(t, "successful deliveries", func() bool {
		var list struct{ Data []struct{ ID string } }
		target := in.URL() + subscription + "/deliveries?filter[status]=success&filter[event]=content_published"
		if _, err := in.Call(t.Context(), token, "GET", target, nil, &list); err != nil {
			t.Fatal(err)
		}
		ids = nil
		for _, d := range list.Data {
			ids = append(ids, d.ID)
		}
		return len(ids) == n
	})
	return ids
}
