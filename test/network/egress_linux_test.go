package network

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"service/test/harness"
	"service/webhook"
)

// networkBinary tells TestInNetwork that it is in a network of its own, and which
// binary it tests there.
const networkBinary = "SERVICE_TEST_NETWORK_BINARY"

// caFile is the name of the file with the certificates that the service trusts.
const caFile = "ca.pem"

// TestEgress runs TestInNetwork in a network namespace, where this machine has
// public addresses, everything else leads nowhere, and a firewall counts what
// the service sends and to whom. The namespace ends with the process.
func TestEgress(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	if os.Geteuid() != 0 {
		harness.Unavailable(t, "netns", "only root can have a network of its own")
	}
	for _, tool := range []string{"ip", "nft", "mount", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			harness.Unavailable(t, "netns", err)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestInNetwork$", "-test.timeout="+harness.Scale(5*time.Minute).String(), fmt.Sprintf("-test.v=%v", testing.Verbose()))
	cmd.Env = append(os.Environ(), networkBinary+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, syscall.EPERM):
		harness.Unavailable(t, "netns", err)
	case errors.As(err, &exit), err == nil && !bytes.Contains(out, []byte("PASS")):
		t.Errorf("in a network of its own: %v\n%s", err, out)
	case err != nil:
		t.Fatal(err)
	default:
		t.Logf("%s", out)
	}
}

// TestInNetwork tries dispatcher/client/testdata/destinations.txt: every URL is
// subscribed, and pinged twice, has an event published to it, a delivery sent
// again, and the log replayed, by the built binary, with real name servers,
// sockets and certificates.
func TestInNetwork(t *testing.T) {
	binary := os.Getenv(networkBinary)
	if binary == "" {
		t.Skip("runs within TestEgress, which gives it a network of its own")
	}
	n := newNetwork(t, readDestinations(t))
	n.binary = binary
	t.Run("public alone", n.testPublic)
	t.Run("all named", n.testAllNamed)
}

// serviceGroup is the group that the service runs as, by which the firewall
// knows what it sends.
const serviceGroup = 4711

// network is the inside of a network namespace.
type network struct {
	*destinations
	binary string
	good   []netip.Addr // where receivers may be called
	caDir  string       // of the receivers' certificates

	mu     sync.Mutex
	turns  map[string]int // questions so far, by kind and name
	hits   map[string]int // requests at receivers, by their address
	strays []string       // requests to receivers on addresses that are not good
}

// goodAddrs are the literal addresses in the URLs that are delivered to.
func (d *destinations) goodAddrs() []netip.Addr {
	var good []netip.Addr
	host := regexp.MustCompile(`^(?i:https?)://\[?([0-9a-f.:]*?)\]?(:\d+)?(/.*)?$`)
	for _, c := range d.cases {
		if m := host.FindStringSubmatch(c.url); m != nil && slices.Contains(c.attempts, "200") {
			if a, err := netip.ParseAddr(m[1]); err == nil && !slices.Contains(good, a) {
				good = append(good, a)
			}
		}
	}
	return good
}

// newNetwork sets up the namespace that the process is in: addresses, routes,
// firewall, files, name server and receivers.
func newNetwork(t *testing.T, d *destinations) *network {
	n := &network{destinations: d, good: d.goodAddrs(), caDir: t.TempDir(), turns: make(map[string]int), hits: make(map[string]int)}
	if len(n.good) < 30 {
		t.Fatalf("only %d good addresses were found in the list", len(n.good))
	}

	run := func(stdin string, command ...string) {
		t.Helper()
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	run("", "mount", "--make-rprivate", "/")
	for path, text := range map[string]string{
		"/etc/resolv.conf": "nameserver 127.0.0.1\nsearch corp.test\noptions attempts:1 timeout:30\n",
		"/etc/hosts": "127.0.0.1 localhost localhost.localdomain\n::1 ip6-localhost ip6-loopback\n" +
			"10.0.0.5 fileserver\n10.0.0.6 in-hosts.bad.test\n93.184.216.34 named-in-hosts.test\n",
	} {
		file := filepath.Join(t.TempDir(), filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		run("", "mount", "--bind", file, path)
	}
	// Every packet has a way out, to a wire that nobody listens on.
	setup := "link set lo up\nlink add eth0 type veth peer name eth1\nlink set eth0 arp off up\nlink set eth1 arp off up\n"
	var good4, good6 []string
	for _, a := range n.good {
		if a.Is4() {
			setup += fmt.Sprintf("addr add %s/32 dev eth0\n", a)
			good4 = append(good4, a.String())
		} else {
			setup += fmt.Sprintf("addr add %s/128 dev eth0 nodad\n", a)
			good6 = append(good6, a.String())
		}
	}
	run(setup+"route add default dev eth0\nroute add ::/0 dev eth0\n", "ip", "-batch", "-")
	run(fmt.Sprintf(`table inet egress {
		counter good { }
		counter forbidden { }
		counter own { }
		set good4 { type ipv4_addr; elements = { %s } }
		set good6 { type ipv6_addr; elements = { %s } }
		set seen4 { type ipv4_addr . inet_service; flags dynamic; }
		set seen6 { type ipv6_addr . inet_service; flags dynamic; }
		chain service {
			udp dport 53 ip daddr 127.0.0.1 return
			tcp dport 53 ip daddr 127.0.0.1 return
			tcp flags & (syn | ack) != syn return
			tcp dport 8443 counter name own
			ip daddr @good4 counter name good return
			ip6 daddr @good6 counter name good return
			counter name forbidden
			add @seen4 { ip daddr . tcp dport }
			add @seen6 { ip6 daddr . tcp dport }
		}
		chain datagrams {
			udp dport 53 ip daddr 127.0.0.1 return
			counter name forbidden
			add @seen4 { ip daddr . udp dport }
			add @seen6 { ip6 daddr . udp dport }
		}
		chain out {
			type filter hook output priority 0;
			meta skgid %d meta l4proto tcp jump service
			meta skgid %[3]d meta l4proto udp jump datagrams
		}
	}`, strings.Join(good4, ","), strings.Join(good6, ","), serviceGroup), "nft", "-f", "-")

	n.serveNames(t)
	n.serveReceivers(t)
	return n
}

// counted are the packets that the firewall has counted.
type counted struct{ good, forbidden, own int }

// count reads the firewall's counters, and to whom the forbidden packets went.
func (n *network) count(t *testing.T) (c counted, seen string) {
	t.Helper()
	out, err := exec.Command("nft", "list", "table", "inet", "egress").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]*int{"good": &c.good, "forbidden": &c.forbidden, "own": &c.own} {
		m := regexp.MustCompile(`counter ` + name + ` \{\s*packets (\d+)`).FindSubmatch(out)
		if m == nil {
			t.Fatalf("the firewall has no counter %s:\n%s", name, out)
		}
		*to, _ = strconv.Atoi(string(m[1]))
	}
	for _, m := range regexp.MustCompile(`(?s)set seen[46] \{.*?\n\t\}`).FindAllString(string(out), -1) {
		if _, elements, ok := strings.Cut(m, "elements = "); ok {
			seen += strings.Join(strings.Fields(elements), " ")
		}
	}
	return c, seen
}

// serveNames is the name server, over UDP and TCP, until the test ends.
func (n *network) serveNames(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 1500)
		for {
			size, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := n.answer(t, buf[:size], false); answer != nil {
				udp.WriteTo(answer, from)
			}
		}
	})
	closed := make(chan struct{})
	serving.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				if !n.answerStream(t, c) {
					<-closed
				}
			})
		}
	})
	t.Cleanup(func() { close(closed); udp.Close(); tcp.Close(); serving.Wait() })
}

// answerStream answers one question over TCP. It returns false if the question
// has no answer.
func (n *network) answerStream(t *testing.T, c net.Conn) bool {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return true
	}
	question := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, question); err != nil {
		return true
	}
	answer := n.answer(t, question, true)
	if answer == nil {
		return false
	}
	c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return true
}

// answer returns the answer to a question, nil for none.
func (n *network) answer(t *testing.T, question []byte, tcp bool) []byte {
	var q dnsmessage.Message
	if err := q.Unpack(question); err != nil {
		t.Errorf("name server: %v", err)
		return nil
	}
	a := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true, RCode: dnsmessage.RCodeNameError},
		Questions: q.Questions,
	}
	name, kind := q.Questions[0].Name, q.Questions[0].Type
	add := func(name dnsmessage.Name, addrs []netip.Addr) {
		for _, addr := range addrs {
			var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: addr.As16()}
			of := dnsmessage.TypeAAAA
			if addr.Is4() {
				body, of = &dnsmessage.AResource{A: addr.As4()}, dnsmessage.TypeA
			}
			if of == kind {
				a.Answers = append(a.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: body})
			}
		}
	}
	for range 8 { // aliases may lead in a circle
		turn := n.turn(name, kind, tcp)
		if turn == nil {
			break
		}
		if turn.cut {
			if !tcp {
				a.Truncated = true
			} else if turn = turn.then; turn == nil {
				break
			}
		}
		a.RCode = dnsmessage.RCodeSuccess
		if turn.silent {
			return nil
		}
		if turn.fails {
			a.RCode = dnsmessage.RCodeServerFailure
		}
		add(name, turn.addrs)
		add(dnsmessage.MustNewName("elsewhere.test."), turn.alone)
		if turn.alias == "" {
			break
		}
		next := dnsmessage.MustNewName(turn.alias + ".")
		a.Answers = append(a.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.CNAMEResource{CNAME: next},
		})
		name, a.RCode = next, dnsmessage.RCodeNameError
	}
	packet, err := a.Pack()
	if err != nil {
		t.Errorf("name server: %v", err)
	}
	return packet
}

// turn is what is said of a name now; nil when there is no such name.
func (n *network) turn(name dnsmessage.Name, kind dnsmessage.Type, tcp bool) *dnsTurn {
	turns := n.zone[strings.TrimSuffix(strings.ToLower(name.String()), ".")]
	if len(turns) == 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := kind.String() + name.String()
	turn := &turns[min(n.turns[key], len(turns)-1)]
	if !turn.cut || tcp {
		n.turns[key]++
	}
	return turn
}

// certificate makes the certificate of the good addresses, which the service is
// told to trust.
func (n *network) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"good.test", "both.good.test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, a := range n.good {
		template.IPAddresses = append(template.IPAddresses, a.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(n.caDir, caFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serveReceivers serves every address of this machine, the forbidden ones too:
// what arrives there is noted. Each request has a connection of its own.
func (n *network) serveReceivers(t *testing.T) {
	certificate := n.certificate(t)
	server := &http.Server{Handler: http.HandlerFunc(n.receive), ErrorLog: log.New(io.Discard, "", 0)}
	server.SetKeepAlivesEnabled(false)
	var serving sync.WaitGroup
	for _, port := range []string{":80", ":8080", ":443"} {
		l, err := net.Listen("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		if port == ":443" {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate}})
		}
		serving.Go(func() { server.Serve(l) })
	}
	t.Cleanup(func() { server.Close(); serving.Wait() })
}

func (n *network) receive(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	to, _ := netip.ParseAddrPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	addr := to.Addr().Unmap()
	n.mu.Lock()
	n.hits[addr.String()]++
	if !slices.Contains(n.good, addr) {
		n.strays = append(n.strays, fmt.Sprintf("%s: %s %s", to, r.Host, r.URL))
	}
	n.mu.Unlock()
	if dir, code := filepath.Split(r.URL.Path); dir == "/status/" || dir == "/redirect/" {
		w.Header().Set("Location", r.URL.RawQuery)
		w.Header().Set("Refresh", "0; url="+r.URL.RawQuery)
		w.Header().Set("Content-Location", r.URL.RawQuery)
		status, _ := strconv.Atoi(code)
		w.WriteHeader(status)
	}
}

// start starts the service as its own group, and waits until it is ready.
func (n *network) start(t *testing.T, flags ...string) *harness.Instance {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	in := harness.NewInstance(t, n.binary, data)
	in.Client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // its CA is yet to be made
	cmd := exec.Command("setpriv", append([]string{"--regid", strconv.Itoa(serviceGroup), "--clear-groups", n.binary, "serve", "--data", data,
		"--allow-http", "--rate-limit", "0", "--max-subscriptions", "0", "--failing-after", "0", "--rejecting-after", "0", "--log-level", "warn",
		"--attempt-timeout", attemptTime.String(), "--retry-schedule", "200ms,1h,1h,1h", "--retry-jitter", "0"}, flags...)...)
	cmd.Env = append(harness.Environment(), "SSL_CERT_FILE="+filepath.Join(n.caDir, caFile))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		cmd.Env = append(cmd.Env, name+"=http://10.1.2.3:3128")
	}
	r := in.Launch(cmd)
	t.Cleanup(func() {
		if t.Failed() { // then the log shows what it was doing
			r.Signal(syscall.SIGQUIT)
			<-r.Exited
		}
	})
	if !in.AwaitReady(r) {
		t.Fatalf("the service ended at its start, with status %d:\n%s", r.Status, &r.Log)
	}
	return in
}

// attemptTime is time enough for what answers, also while others wait for a
// silent name server, and short for what does not. It is shorter than what a
// name server is given, even on a slow machine: else an attempt ends with an
// error of the name server in place of its timeout.
var attemptTime = harness.Scale(1500 * time.Millisecond)

// sent is a delivery, as far as it tells where it went.
type sent struct {
	ID        string
	Status    webhook.Status
	CreatedAt time.Time `json:"created_at"`
	Attempts  []struct {
		StartedAt      time.Time `json:"started_at"`
		DurationMS     int64     `json:"duration_ms"`
		ResponseStatus int       `json:"response_status"`
		Error          *struct {
			Code   webhook.ErrorCode
			Detail string
		}
	}
}

// settled waits until a subscription has so many deliveries, each of which has
// ended or waits an hour, and returns them, newest first.
func (n *network) settled(t *testing.T, in *harness.Instance, token, id string, count int) ([]sent, error) {
	path := "/v2/webhooks/subscriptions/" + id + "/deliveries"
	tick := time.NewTicker(100 * time.Millisecond) // 16 of these run at once
	defer tick.Stop()
	for deadline := time.Now().Add(harness.Timeout()); ; <-tick.C {
		list, err := harness.Feed[sent](in, token, path)
		if err != nil {
			return nil, err
		}
		rest := len(list) == count
		for i := 0; rest && i < len(list); i++ {
			if list[i], _, err = harness.Get[sent](in, token, path+"/"+list[i].ID); err != nil {
				return nil, err
			}
			d := &list[i]
			rest = d.Status == webhook.StatusSuccess || d.Status == webhook.StatusFailed ||
				d.Status == webhook.StatusRetryable && len(d.Attempts) == 2
		}
		if rest {
			return list, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d deliveries, not all at rest, in time; want %d", len(list), count)
		}
	}
}

// publicRun subscribes every URL of the list at a service for which no private
// network is named.
type publicRun struct {
	*network
	t     *testing.T
	in    *harness.Instance
	token string
	ids   []string // of subscriptions, by case; "" for those that were refused
	pings []string // a delivery of each

	made    int            // attempts
	blocked map[string]int // what is said of blocked attempts
	slowest time.Duration  // of the blocked attempts
}

// testPublic: with nothing named, the public internet is reached and nothing else.
func (n *network) testPublic(t *testing.T) {
	in := n.start(t, "--listen", "127.0.0.1:0", "--tls", "off")
	r := &publicRun{
		network: n, t: t, in: in, token: in.Token("acme"),
		ids: make([]string, len(n.cases)), pings: make([]string, len(n.cases)), blocked: make(map[string]int),
	}
	r.each(r.subscribe)
	// An event, a ping again, and a span of the log.
	before := time.Now()
	in.Publish(r.token, map[string]any{"name": "channel_updated", "version": "1", "channel_id": 7})
	r.each(func(i int, c *destinationCase) error { return r.deliver(i, c, before) })
	r.check()
}

// each calls do for every case, 16 at a time.
func (r *publicRun) each(do func(int, *destinationCase) error) {
	r.t.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range r.cases {
		g.Go(func() error {
			if err := do(i, &r.cases[i]); err != nil {
				return fmt.Errorf("%s: %w", &r.cases[i], err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		r.t.Fatal(err)
	}
}

// call calls the API, and wants a status.
func (r *publicRun) call(method, path string, body any, want int) error {
	if status, err := r.in.Call(r.t.Context(), r.token, method, r.in.URL()+path, body, nil); err != nil || status != want {
		return fmt.Errorf("%s %s: status %d, %w", method, path, status, err)
	}
	return nil
}

// subscribe subscribes a URL, which may be refused, and pings it.
func (r *publicRun) subscribe(i int, c *destinationCase) error {
	var answer struct{ Data struct{ ID string } }
	status, err := r.in.Call(r.t.Context(), r.token, "POST", r.in.URL()+"/v2/webhooks/subscriptions",
		harness.Subscription{URL: c.url, Events: harness.Events("channel_updated")}, &answer)
	if want := map[bool]int{true: 400, false: 201}[c.refused]; err != nil || status != want {
		r.t.Errorf("%s: subscribing: status %d, %v; want %d", c, status, err, want)
	}
	id := answer.Data.ID
	if id == "" {
		return nil
	}
	r.ids[i] = id
	if _, err := r.settled(r.t, r.in, r.token, id, 1); err != nil {
		return err
	}
	if err := r.call("POST", "/v2/webhooks/subscriptions/"+id+"/ping", nil, 200); err != nil {
		return err
	}
	list, err := r.settled(r.t, r.in, r.token, id, 2)
	if err == nil {
		r.pings[i] = list[0].ID
	}
	return err
}

// deliver has a ping sent again and the log replayed, and checks what all
// attempts of a subscription came to.
func (r *publicRun) deliver(i int, c *destinationCase, since time.Time) error {
	id := r.ids[i]
	if id == "" {
		return nil
	}
	subscription := "/v2/webhooks/subscriptions/" + id
	if err := r.call("POST", subscription+"/deliveries/"+r.pings[i]+"/redeliver", nil, 201); err != nil {
		return err
	}
	replay := map[string]any{"from": since.Add(-time.Minute).Format(time.RFC3339), "only": "all"}
	if err := r.call("POST", subscription+"/replays", replay, 202); err != nil {
		return err
	}
	list, err := r.settled(r.t, r.in, r.token, id, 5)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	got := outcomes(list, r.blocked, &r.slowest)
	r.made += len(got)
	for j, g := range got {
		if want := c.attempts[min(j, len(c.attempts)-1)]; g != want {
			r.t.Errorf("%s: attempts came to %s, want %s", c, strings.Join(got, ","), strings.Join(c.attempts, ","))
			break
		}
	}
	return nil
}

// check checks what the firewall has seen, and the receivers.
func (r *publicRun) check() {
	r.t.Helper()
	packets, seen := r.count(r.t)
	if packets.forbidden != 0 {
		r.t.Errorf("%d packets went to forbidden addresses: %s", packets.forbidden, seen)
	}
	if packets.good == 0 {
		r.t.Error("the firewall has seen no connection to a good address")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.strays {
		r.t.Errorf("a receiver inside was called: %s", s)
	}
	for _, a := range r.good {
		if r.hits[a.String()] == 0 {
			r.t.Errorf("%s was not called", a)
		}
	}
	if len(r.blocked) != 1 {
		r.t.Errorf("blocked destinations are told apart by what is said of them: %v", r.blocked)
	}
	r.t.Logf("%d URLs, %d attempts (%v blocked, the slowest in %v); %d SYNs to good addresses, %d packets to forbidden ones",
		len(r.cases), r.made, r.blocked, r.slowest, packets.good, packets.forbidden)
}

// outcomes renders what the attempts of deliveries came to, in their order. It
// counts what is said of the blocked ones, and finds the slowest of them.
func outcomes(list []sent, blocked map[string]int, slowest *time.Duration) []string {
	type attempt struct {
		at time.Time
		is string
	}
	var all []attempt
	for _, d := range list {
		for _, a := range d.Attempts {
			is := strconv.Itoa(a.ResponseStatus)
			if a.Error != nil {
				is = string(a.Error.Code)
			}
			if is == string(webhook.ErrorBlocked) {
				blocked[fmt.Sprintf("%s: %s", d.Status, a.Error.Detail)]++
				*slowest = max(*slowest, time.Duration(a.DurationMS)*time.Millisecond)
			}
			all = append(all, attempt{a.StartedAt, is})
		}
	}
	slices.SortFunc(all, func(a, b attempt) int { return a.at.Compare(b.at) })
	var is []string
	for _, a := range all {
		is = append(is, a.is)
	}
	return is
}

// testAllNamed is the control, in which the operator has named every address:
// now the firewall does see packets. Only the service's own listener is still
// refused, on whatever address it would be reached.
func (n *network) testAllNamed(t *testing.T) {
	before, _ := n.count(t)
	in := n.start(t, "--listen", "[::]:8443", "--allow-destination", "0.0.0.0/0", "--allow-destination", "::/0")
	token := in.Token("acme")
	base := in.URL()

	outcome := func(url string) string {
		var created struct{ Data struct{ ID string } }
		status, err := in.Call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions", harness.Subscription{URL: url, Events: harness.Events("channel_updated")}, &created)
		if err == nil && status == http.StatusBadRequest {
			return "refused"
		}
		if err != nil || status != http.StatusCreated {
			t.Errorf("create a subscription to %s: status %d, %v", url, status, err)
			return ""
		}
		id := created.Data.ID
		var answer struct {
			Data struct {
				Delivery struct {
					ResponseStatus int `json:"response_status"`
					Error          *struct{ Code webhook.ErrorCode }
				}
			}
		}
		if status, err := in.Call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions/"+id+"/ping", nil, &answer); err != nil || status != 200 {
			t.Fatalf("ping %s: status %d, %v", url, status, err)
		}
		if e := answer.Data.Delivery.Error; e != nil {
			return string(e.Code)
		}
		return strconv.Itoa(answer.Data.Delivery.ResponseStatus)
	}
	var g errgroup.Group
	for _, tt := range []struct{ url, want string }{
		{"http://127.0.0.1/", "200"},
		{"http://[::1]:8080/", "200"},
		{"http://bad.test/", "200"},
		{"http://10.0.0.1/", "timeout"}, // nobody is there
		{"http://169.254.169.254/", "timeout"},
		{"http://[fd00:ec2::254]/", "timeout"},
		{"https://93.184.216.34:8443/", "blocked"},
		{"https://127.0.0.1:8443/", "refused"},
		{"https://127.1.2.3:8443/", "refused"},
		{"https://0.0.0.0:8443/", "refused"},
		{"https://[::1]:8443/", "refused"},
		{"https://[::ffff:127.0.0.1]:8443/", "refused"},
		{"https://[2606:4700:4700::1111]:8443/", "blocked"},
		{"https://localhost:8443/", "refused"},
		{"http://good.test:8443/", "blocked"},
		{"https://bad.test:8443/v2/events", "blocked"},
	} {
		g.Go(func() error {
			if got := outcome(tt.url); got != tt.want {
				t.Errorf("%s came to %s, want %s", tt.url, got, tt.want)
			}
			return nil
		})
	}
	g.Wait()
	after, seen := n.count(t)
	if after.forbidden <= before.forbidden || !strings.Contains(seen, "169.254.169.254") {
		t.Errorf("the firewall counts %d packets to forbidden addresses before and %d after: it would see none", before.forbidden, after.forbidden)
	}
	if after.own != 0 {
		t.Errorf("%d connections to the service's own listener were begun", after.own)
	}
	t.Logf("%d packets to addresses that are forbidden by default: %s", after.forbidden-before.forbidden, seen)
}
