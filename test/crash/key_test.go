package crash

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

const (
	keySubscriptions = 200
	keyKills         = 8
)

// keyRotation replaces the secret key of a service. The authorization header of a
// subscription shows whether the service can still decrypt its secrets.
type keyRotation struct {
	t       *testing.T
	in      *harness.Instance
	file    string // path of the secret key
	token   string
	pinged  string // ID of the subscription
	headers chan string
}

// TestKeyKilled kills the process that replaces the key, the server or the command: the next start
// can decrypt every secret and completes the rotation.
func TestKeyKilled(t *testing.T) {
	harness.Long(t)
	k := newKeyRotation(t)
	both, before := 0, k.keys()[0]
	for kill := range keyKills {
		// Every other time no server runs, and the command itself replaces the key.
		run := k.in.Last()
		if serverRuns := kill%2 == 0; serverRuns {
			if kill > 0 {
				run = k.in.MustStart()
			}
			k.rotate(kill%4 == 0, func(*exec.Cmd) { k.in.Kill(run) })
		} else {
			k.in.MustStop(run)
			k.rotate(false, func(cmd *exec.Cmd) { cmd.Process.Kill() })
		}
		if len(k.keys()) == 2 {
			both++
		}
		run = k.in.MustStart() // the service starts only if it can decrypt every secret
		if after := k.keys(); len(after) != 1 || after[0] == before {
			t.Errorf("kill %d: got %d keys in the file, want only the new one", kill, len(after))
		} else {
			before = after[0]
		}
		if left, err := filepath.Glob(k.file + "?*"); err != nil || len(left) > 0 {
			t.Errorf("kill %d: got temporary files %v, %v; want none", kill, left, err)
		}
		k.ping()
		if kill%2 == 1 {
			k.in.MustStop(run)
		}
	}
	t.Logf("%d of %d kills left two keys in the file", both, keyKills)
	if both < keyKills/4 {
		t.Error("the server replaced the key while the database was locked")
	}
}

func newKeyRotation(t *testing.T) *keyRotation {
	data := t.TempDir()
	k := &keyRotation{t: t, file: filepath.Join(data, "secret.key"), headers: make(chan string, 1)}
	receiver := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/pinged" {
			k.headers <- r.Header.Get("Authorization")
		}
	}))
	k.in = harness.NewInstance(t, harness.Build(t), data, "--max-subscriptions", "0", "--log-level", "warn")
	k.token = k.in.Token("acme")
	k.in.MustStart()
	for i := range keySubscriptions {
		url := receiver
		if i == 0 {
			url += "/pinged"
		}
		var answer struct{ Data struct{ ID string } }
		body := map[string]any{"url": url, "events": harness.Events("content_updated"), "authorization_header": fmt.Sprint("Bearer canary-", i)}
		if status, err := k.in.Call(t.Context(), k.token, "POST", k.in.URL()+"/v2/webhooks/subscriptions", body, &answer); err != nil ||
			status != http.StatusCreated {
			t.Fatalf("create: status %d, %v", status, err)
		}
		if i == 0 {
			k.pinged = answer.Data.ID
			harness.Receive(t, "the first ping", k.headers)
		}
	}
	return k
}

// keys returns the keys in the file: two while the key is being replaced.
func (k *keyRotation) keys() []string {
	k.t.Helper()
	return strings.Fields(string(harness.Read(k.t, k.file)))
}

// rotate runs `key rotate` and calls kill once the new key is in the file and after a random number
// of commits, or with hold before the first commit.
func (k *keyRotation) rotate(hold bool, kill func(*exec.Cmd)) {
	k.t.Helper()
	db := harness.OpenDatabase(k.t, k.in.Data)
	defer db.Close()
	commits := func() (version int) {
		if err := db.QueryRow("PRAGMA data_version").Scan(&version); err != nil {
			k.t.Fatal(err)
		}
		return version
	}
	after := rand.IntN(20)
	if hold {
		after = 0
		if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
			k.t.Fatal(err)
		}
	}
	before := commits()
	cmd := exec.Command(k.in.Binary, "key", "rotate", "--yes", "--data", k.in.Data)
	cmd.Env = harness.Environment()
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }()
	harness.WaitFor(k.t, "a part of the rotation", func() bool {
		select {
		case <-ended:
			return true
		default:
			return len(k.keys()) == 2 && commits() >= before+after
		}
	})
	kill(cmd)
	<-ended
}

// ping pings the subscription. The ping must contain the header that the subscription was created
// with.
func (k *keyRotation) ping() {
	k.t.Helper()
	if status, err := k.in.Call(k.t.Context(), k.token, "POST", k.in.URL()+"/v2/webhooks/subscriptions/"+k.pinged+"/ping", nil,
		nil); err != nil || status != http.StatusOK {
		k.t.Errorf("ping: status %d, %v", status, err)
	} else if got := harness.Receive(k.t, "the ping", k.headers); got != "Bearer canary-0" {
		k.t.Error("the receiver got a different authorization header")
	}
}
