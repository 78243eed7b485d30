package web

import (
	"embed"
	"encoding/base64"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"service/web/ui"
	"service/webhook"
)

// verifySources are programs that verify a delivery, with @…@ for its values. They print whether
// the delivery is valid.
//
//go:embed verify/*.txt
var verifySources embed.FS

// verifyLanguage is a language of the programs.
type verifyLanguage struct {
	name, source string // the source is verify/SOURCE.txt
	file, run    string // the file's name, and the command that runs it
	short, long  string // the body of the example: from base64 in place of %, or from body.json
}

var verifyLanguages = []verifyLanguage{
	{"Python", "python", "verify.py", "python3 verify.py", `base64.b64decode("%")`, `open("body.json", "rb").read()`},
	{"JavaScript", "javascript", "verify.mjs", "node verify.mjs", `Buffer.from("%", "base64")`, `(await import("node:fs")).readFileSync("body.json")`},
	{"Go", "go", "verify.go", "go run verify.go", `base64.StdEncoding.DecodeString("%")`, `os.ReadFile("body.json")`},
	{"PHP", "php", "verify.php", "php verify.php", `base64_decode('%')`, `file_get_contents('body.json')`},
	{"Ruby", "ruby", "verify.rb", "ruby verify.rb", `"%".unpack1("m")`, `File.binread("body.json")`},
	{"Java", "java", "Verify.java", "java Verify.java", `Base64.getDecoder().decode("%")`, `java.nio.file.Files.readAllBytes(java.nio.file.Path.of("body.json"))`},
}

// maxVerifyBody is the maximum size of a delivery body within the programs, in bytes; the programs
// read a longer body from a file.
const maxVerifyBody = 4 << 10

// verifyExample is the delivery that the programs verify.
type verifyExample struct {
	id, timestamp, signature string
	body                     []byte
}

// program returns the program in a language.
func (e *verifyExample) program(l *verifyLanguage) string {
	body := l.long
	if !e.long() {
		body = strings.Replace(l.short, "%", base64.StdEncoding.EncodeToString(e.body), 1)
	}
	filled := strings.NewReplacer("@ID@", e.id, "@TIMESTAMP@", e.timestamp, "@SIGNATURE@", e.signature, "@BODY@", body)
	return filled.Replace(verifySource(l.source))
}

// verifySource returns one of verifySources.
func verifySource(name string) string {
	source, err := verifySources.ReadFile("verify/" + name + ".txt")
	if err != nil {
		panic(err) // embedded files can always be read
	}
	return string(source)
}

func (e *verifyExample) long() bool { return len(e.body) > maxVerifyBody }

// madeUpExample is shown while there is no delivery. Its signature belongs to no subscription.
func madeUpExample(r *request) *verifyExample {
	id, now := webhook.NewID(), r.clock.Now
	body := webhook.AppendBody(nil, id, webhook.NewID(), r.program, [][]byte{webhook.PingEvent(webhook.NewID(), now)})
	return &verifyExample{id: id, timestamp: strconv.FormatInt(now.Unix(), 10), signature: webhook.NewSigningSecret().Sign(id, now, body),
		body: body}
}

// verifyView is the page that shows how to verify a signature.
type verifyView struct {
	delivery *deliveryRecord // the last one, nil for none
	example  *verifyExample
	receiver string // program that receives deliveries

	loopback bool // deliveries to this computer are permitted

	checklist []string // of the guide for receivers
}

// recentForVerify is how many recent deliveries are searched for one that was sent.
const recentForVerify = 20

// verify shows how to verify a signature, with the last delivery of the program or of one of its
// subscriptions as the example.
func (h *portalPages) verify(r *request) (response, error) {
	values := url.Values{"page[size]": {strconv.Itoa(recentForVerify)}}
	if id := r.URL.Query().Get("subscription"); webhook.IsID(id) {
		values.Set("filter[subscription_id]", id)
	}
	q, invalid := webhook.ProgramDeliveryList.Parse(values)
	if invalid != nil {
		return response{}, invalid
	}
	page, _, err := h.store.Deliveries().PageProgram(r.Context(), r.program, &q)
	if err != nil {
		return response{}, asProblem(err)
	}
	v := verifyView{
		example: madeUpExample(r), receiver: verifySource("receiver"), checklist: h.cfg.Receiving.Checklist(),
		loopback: h.cfg.Rules.AllowHTTP && h.cfg.Rules.Destinations.Allows(netip.AddrFrom4([4]byte{127, 0, 0, 1})),
	}
	for i := range page {
		if page[i].AttemptsMade == 0 {
			continue
		}
		if v.delivery, err = h.exampleOf(r, page[i].ID, v.example); err != nil {
			return response{}, err
		}
		if v.delivery != nil {
			break
		}
	}
	return response{page: verifyPage(h.frame(r, "Verify signatures"), &v)}, nil
}

// exampleOf sets the example to a delivery. It returns nil if the delivery can no longer be signed.
func (h *portalPages) exampleOf(r *request, id string, e *verifyExample) (*deliveryRecord, error) {
	view, err := h.store.Deliveries().View(r.Context(), id)
	if isCallerError(err) || err == nil && (!r.mine(view.ProgramID) || view.EventJSON == nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	withoutResponses(view.Attempts)
	d := &deliveryRecord{DeliveryView: view, attempts: attemptRecords(id, view.Attempts)}
	d.body = webhook.AppendBody(nil, d.ID, d.SubscriptionID, d.ProgramID, d.EventJSON)
	at := d.sentAt()
	signature, err := h.store.Subscriptions().Sign(r.Context(), d.ProgramID, d.SubscriptionID, d.ID, at, d.body)
	if isCallerError(err) || at.IsZero() {
		return nil, nil // the subscription is deleted
	}
	if err != nil {
		return nil, err
	}
	*e = verifyExample{id: d.ID, timestamp: strconv.FormatInt(at.Unix(), 10), signature: signature, body: d.body}
	return d, nil
}

// subscriptionName is the display name of a delivery's subscription.
func (d *deliveryRecord) subscriptionName() string {
	if name := firstLineOf(d.Subscription.Description); name != "" {
		return ui.Visible(name)
	}
	host, path, _ := webhook.Endpoint(d.Subscription.URL)
	return ui.Visible(host + path)
}
