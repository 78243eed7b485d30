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

// networkBinary is the environment variable that names the binary under test. It is
// set only inside the network namespace of TestEgress.
const networkBinary = "SERVICE_TEST_NETWORK_BINARY"

// caFile is the name of the file with the certificates that the service trusts.
const caFile = "ca.pem"

// TestEgress runs TestInNetwork in a network namespace in which this machine has
// public addresses and no other machine exists. A firewall counts the packets that the
// service sends to each kind of address.
//
// With -short it leaves out the names that are never resolved, whose attempts take a minute in all.
func TestEgress(t *testing.T) {
	harness.Drill(t, 1, 1)
	binary := harness.Build(t)
	if os.Geteuid() != 0 {
		harness.Unavailable(t, "netns", "only root can create a network namespace")
	}
	for _, tool := range []string{"ip", "nft", "mount", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			harness.Unavailable(t, "netns", err)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestInNetwork$", "-test.timeout=10m", fmt.Sprintf("-test.v=%v", testing.Verbose()),
		fmt.Sprintf("-test.short=%v", testing.Short()))
	cmd.Env = append(os.Environ(), networkBinary+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, syscall.EPERM):
		harness.Unavailable(t, "netns", err)
	case errors.As(err, &exit), err == nil && !bytes.Contains(out, []byte("PASS")):
		t.Errorf("in a network namespace: %v\n%s", err, out)
	case err != nil:
		t.Fatal(err)
	default:
		t.Logf("%s", out)
	}
}

// TestInNetwork tries every URL of dispatcher/client/testdata/destinations.txt with the built
// binary, a name server, sockets and certificates. It sends to each URL in every way: two pings, an
// event, a redelivery and a replay.
func TestInNetwork(t *testing.T) {
	binary := os.Getenv(networkBinary)
	if binary == "" {
		t.Skip("runs only inside TestEgress, which creates a network namespace for it")
	}
	d := readDestinations(t)
	if testing.Short() {
		d.cases = slices.DeleteFunc(d.cases, func(c destinationCase) bool { return slices.Contains(c.attempts, "timeout") })
	}
	n := newNetwork(t, d)
	n.binary = binary
	t.Run("only public addresses", n.testPublic)
	t.Run("every address allowed", n.testAllowed)
}

// serviceGroup is the group ID of the service, by which the firewall recognizes its
// packets.
const serviceGroup = 4711

// network is the inside of a network namespace.
type network struct {
	*destinations
	binary string
	good   []netip.Addr // addresses to which the service may send
	caDir  string       // directory of the receivers' CA certificate

	mu     sync.Mutex
	turns  map[string]int // DNS queries so far, by type and name
	hits   map[string]int // requests by receiver address
	strays []string       // requests to forbidden addresses
}

// goodAddrs returns the literal addresses in the URLs to which the service may send.
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

// newNetwork sets up the namespace of this process: addresses, routes, firewall, files,
// name server and receivers.
func newNetwork(t *testing.T, d *destinations) *network {
	n := &network{destinations: d, good: d.goodAddrs(), caDir: t.TempDir(), turns: make(map[string]int), hits: make(map[string]int)}
	if len(n.good) < 30 {
		t.Fatalf("got only %d good addresses from the list", len(n.good))
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
	// The default route leads to an interface without another end.
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

// counters are numbers of packets that the firewall has counted.
type counters struct{ good, forbidden, own int }

// count returns the firewall's counters, and the addresses of the forbidden packets.
func (n *network) count(t *testing.T) (c counters, seen string) {
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

// serveNames runs the name server, over UDP and TCP, until the test ends.
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

// answerStream answers one query over TCP. It returns false if there is no answer.
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

// answer returns the answer to a query, or nil.
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
				a.Answers = append(a.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET},
					Body: body})
			}
		}
	}
	for range 8 { // aliases may form a loop
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

// turn returns the next answer for a name, or nil if the name does not exist.
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

// certificate makes the certificate of the good addresses and configures the service
// to trust it.
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

// serveReceivers serves on every address of this machine, and records the requests that
// arrive at forbidden ones. It closes the connection after each request.
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

// start starts the service in its own group and waits until it is ready.
func (n *network) start(t *testing.T, flags ...string) *harness.Instance {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	in := harness.NewInstance(t, n.binary, data)
	in.Client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // its CA does not exist yet
	cmd := exec.Command("setpriv", append([]string{"--regid", strconv.Itoa(serviceGroup), "--clear-groups", n.binary, "serve", "--data", data,
		"--allow-http", "--rate-limit", "0", "--max-subscriptions", "0", "--failing-after", "0", "--rejecting-after", "0", "--log-level", "warn",
		"--attempt-timeout", attemptTime.String(), "--retry-schedule", "200ms,1h,1h,1h", "--retry-jitter", "0"}, flags...)...)
	cmd.Env = append(harness.Environment(), "SSL_CERT_FILE="+filepath.Join(n.caDir, caFile))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		cmd.Env = append(cmd.Env, name+"=http://10.1.2.3:3128")
	}
	r := in.Launch(cmd)
	t.Cleanup(func() {
		if t.Failed() {
			r.Signal(syscall.SIGQUIT)
			<-r.Exited
		}
	})
	if !in.AwaitReady(r) {
		t.Fatalf("the service did not start: exit status %d\n%s", r.Status, &r.Log)
	}
	return in
}

// attemptTime is the attempt timeout: more than responding receivers need even on a slow machine.
// It is shorter than the timeout of a DNS query, so that an attempt ends with a timeout and not
// with a DNS error.
const attemptTime = 10 * time.Second

// sent contains the fields of a delivery that show where it went.
type sent struct {
	ID        string
	Status    webhook.Status
	CreatedAt time.Time `json:"created_at"`
	Attempts  []struct {
		StartedAt      time.Time `json:"started_at"`
		DurationMS     int64     `json:"duration_ms"`
		Result         webhook.Result
		ResponseStatus int `json:"response_status"`
		Error          *struct {
			Code   webhook.ErrorCode
			Detail string
		}
	}
}

// settled waits until a subscription has count deliveries, each of which has ended or is due in an
// hour, and returns them, newest first.
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
			return nil, fmt.Errorf("timed out: got %d deliveries, some of them active; want %d", len(list), count)
		}
	}
}

// publicRun subscribes every URL of the list at a service that may only send to public
// addresses.
type publicRun struct {
	*network
	t     *testing.T
	in    *harness.Instance
	token string
	ids   []string // subscription ID of each case; "" if the service refused it
	pings []string // ID of one delivery of each case

	made    int            // number of attempts
	unnamed map[string]int // error texts of attempts to names without addresses or with forbidden ones
	slowest time.Duration  // duration of the slowest of these attempts
}

// testPublic checks that by default the service sends only to public addresses.
func (n *network) testPublic(t *testing.T) {
	in := n.start(t, "--listen", "127.0.0.1:0", "--tls", "off")
	r := &publicRun{
		network: n, t: t, in: in, token: in.Token("acme"),
		ids: make([]string, len(n.cases)), pings: make([]string, len(n.cases)), unnamed: make(map[string]int),
	}
	r.each(r.subscribe)
	// An event, a redelivered ping, and a replay.
	before := time.Now()
	in.Publish(r.token, map[string]any{"name": "channel_updated", "version": "1", "channel_id": 7})
	r.each(func(i int, c *destinationCase) error { return r.deliver(i, c, before) })
	r.check()
}

// each calls do for every case, 16 in parallel.
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

// call calls the API and checks the status.
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

// deliver redelivers a ping, replays the log, and checks the results of all attempts
// of a subscription.
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
	got := outcomes(list, r.unnamed, &r.slowest)
	r.made += len(got)
	for j, g := range got {
		if want := c.attempts[min(j, len(c.attempts)-1)]; g != want {
			r.t.Errorf("%s: got results %s, want %s", c, strings.Join(got, ","), strings.Join(c.attempts, ","))
			break
		}
	}
	return nil
}

// check checks what the firewall and the receivers have seen.
func (r *publicRun) check() {
	r.t.Helper()
	packets, seen := r.count(r.t)
	if packets.forbidden != 0 {
		r.t.Errorf("got %d packets to forbidden addresses, want none: %s", packets.forbidden, seen)
	}
	if packets.good == 0 {
		r.t.Error("got no connection to a good address")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.strays {
		r.t.Errorf("got a request to a forbidden address: %s", s)
	}
	for _, a := range r.good {
		if r.hits[a.String()] == 0 {
			r.t.Errorf("got no request to %s", a)
		}
	}
	if len(r.unnamed) != 1 {
		r.t.Errorf("names that do not exist, and names with forbidden addresses: got different results: %v", r.unnamed)
	}
	r.t.Logf("%d URLs, %d attempts (%v, the slowest in %v); %d SYNs to good addresses, %d packets to forbidden ones",
		len(r.cases), r.made, r.unnamed, r.slowest, packets.good, packets.forbidden)
}

// outcomes returns the results of the attempts of deliveries, in their order. It counts
// the results and error texts of attempts that failed for the host name, and finds the slowest.
func outcomes(list []sent, unnamed map[string]int, slowest *time.Duration) []string {
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
			if is == string(webhook.ErrorDNS) {
				unnamed[fmt.Sprintf("%s: %s", a.Result, a.Error.Detail)]++
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

// testAllowed is the control: if the operator allows every address, the firewall does see packets.
// Only the service's own listener is still refused, on each of its addresses.
func (n *network) testAllowed(t *testing.T) {
	before, _ := n.count(t)
	in := n.start(t, "--listen", "[::]:8443", "--allow-destination", "0.0.0.0/0", "--allow-destination", "::/0")
	token := in.Token("acme")
	base := in.URL()

	outcome := func(url string) string {
		var created struct{ Data struct{ ID string } }
		status, err := in.Call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions", harness.Subscription{URL: url,
			Events: harness.Events("channel_updated")}, &created)
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
		if status, err := in.Call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions/"+id+"/ping", nil, &answer); err != nil ||
			status != 200 {
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
		{"http://10.0.0.1/", "timeout"}, // no machine has this address
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
		{"http://good.test:8443/", "dns"},
		{"https://bad.test:8443/v2/events", "dns"},
	} {
		g.Go(func() error {
			if got := outcome(tt.url); got != tt.want {
				t.Errorf("%s: got %s, want %s", tt.url, got, tt.want)
			}
			return nil
		})
	}
	g.Wait()
	after, seen := n.count(t)
	if after.forbidden <= before.forbidden || !strings.Contains(seen, "169.254.169.254") {
		t.Errorf("packets to forbidden addresses: got %d before and %d after, want more after: the firewall sees none",
			before.forbidden, after.forbidden)
	}
	if after.own != 0 {
		t.Errorf("got %d connections to the service's own listener, want none", after.own)
	}
	t.Logf("%d packets to addresses that are forbidden by default: %s", after.forbidden-before.forbidden, seen)
}
