package web

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// rogue is an OpenID Connect provider that breaks the rules as a test requires. Initially it
// follows them, and signs in every visitor.
type rogue struct {
	t      *testing.T
	server *httptest.Server

	mu      sync.Mutex
	keys    map[string]*rsa.PrivateKey // published, by ID
	signer  string                     // ID of the key that signs
	private map[string]*rsa.PrivateKey // all, by ID
	claims  map[string]any             // of the next ID token, over the defaults
	info    map[string]any             // of UserInfo; nil for no endpoint
	meta    map[string]any             // over the defaults of the metadata
	alg     string                     // of the header; "" for RS256
	big     string                     // path whose response is too large
	broken  string                     // path that responds 500
	asked   map[string]url.Values      // by path: the last request
	count   map[string]int             // by path
}

const rogueClient, rogueSecret = "webhooks", "canary-of-the-client-secret"

func newRogue(t *testing.T) *rogue {
	t.Helper()
	p := &rogue{t: t, keys: make(map[string]*rsa.PrivateKey), private: make(map[string]*rsa.PrivateKey), claims: make(map[string]any),
		meta: make(map[string]any), asked: make(map[string]url.Values), count: make(map[string]int)}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	p.addKey("one")
	return p
}

// rogueKeys are generated once because that takes a while.
var rogueKeys = sync.OnceValue(func() [2]*rsa.PrivateKey {
	var all [2]*rsa.PrivateKey
	for i := range all {
		all[i], _ = rsa.GenerateKey(rand.Reader, 2048)
	}
	return all
})

// addKey publishes a key and signs with it.
func (p *rogue) addKey(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := rogueKeys()[len(p.private)%2]
	p.keys[id], p.private[id], p.signer = k, k, id
}

func (p *rogue) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *rogue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := r.ParseForm(); err != nil {
		p.t.Error(err)
	}
	p.asked[r.URL.Path] = r.Form
	p.count[r.URL.Path]++
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case p.broken:
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	case p.big:
		fmt.Fprintf(w, `{"x":"%s"}`, strings.Repeat("a", 2<<20))
		return
	}
	base := p.server.URL
	var answer any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		m := map[string]any{"issuer": base, "authorization_endpoint": base + "/auth", "token_endpoint": base + "/token",
			"jwks_uri": base + "/keys", "id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
			"response_types_supported": []string{"code"}, "scopes_supported": []string{"openid", "groups"}}
		if p.info != nil {
			m["userinfo_endpoint"] = base + "/info"
		}
		for k, v := range p.meta {
			m[k] = v
		}
		answer = m
	case "/keys":
		var set []map[string]string
		for id, k := range p.keys {
			set = append(set, map[string]string{"kty": "RSA", "use": "sig", "kid": id, "n": b64(k.N.Bytes()),
				"e": b64(big.NewInt(int64(k.E)).Bytes())})
		}
		answer = map[string]any{"keys": set}
	case "/token":
		id, secret, _ := r.BasicAuth()
		sum := sha256.Sum256([]byte(r.Form.Get("code_verifier")))
		if id != rogueClient || secret != rogueSecret || b64(sum[:]) != p.asked["/auth"].Get("code_challenge") {
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]string{"error": "invalid_grant"}
			break
		}
		answer = map[string]any{"access_token": "access", "token_type": "Bearer", "id_token": p.token()}
	case "/info":
		answer = p.info
	default:
		http.NotFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		p.t.Error(err)
	}
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token returns the ID token for the last request for authorization.
func (p *rogue) token() string {
	now := time.Now().Unix()
	c := map[string]any{"iss": p.server.URL, "sub": "sub-1", "aud": rogueClient, "iat": now, "exp": now + 300,
		"nonce": p.asked["/auth"].Get("nonce"), "email": "cy@example.com", "email_verified": true, "groups": []string{"ops"}}
	for k, v := range p.claims {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	alg := p.alg
	if alg == "" {
		alg = "RS256"
	}
	head, _ := json.Marshal(map[string]string{"alg": alg, "kid": p.signer, "typ": "JWT"})
	body, _ := json.Marshal(c)
	text := b64(head) + "." + b64(body)
	var sig []byte
	key := p.private[p.signer]
	switch alg {
	case "none":
	case "HS256": // with public data as the secret
		m := hmac.New(sha256.New, key.N.Bytes())
		m.Write([]byte(text))
		sig = m.Sum(nil)
	default:
		sum := sha256.Sum256([]byte(text))
		sig, _ = rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	}
	return text + "." + b64(sig)
}

// authorize acts as the browser at the provider: it returns the path and the query of the redirect
// back.
func (p *rogue) authorize(address string) url.Values {
	p.t.Helper()
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, p.server.URL+"/auth?") {
		p.t.Fatalf("got the address %q", address)
	}
	q := u.Query()
	p.set(func() { p.asked["/auth"] = q })
	return url.Values{"code": {"code-1"}, "state": {q.Get("state")}}
}
