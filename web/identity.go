package web

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"service/internal/ratelimit"
	"service/store"
	"service/store/people"
	"service/web/oidc"
	"service/web/ui"
	"service/webhook"
)

// localSignInAllowed reports whether an admin may sign in with a password or a passkey. If an
// OpenID Connect provider is configured, only owners with a password may: everyone else loses
// access with their group at the provider.
func (h *site) localSignInAllowed(a *webhook.Admin) bool {
	return h.cfg.OIDC == nil || a.Role == webhook.RoleOwner && a.HasPassword
}

// noPassword is the problem of an admin without a usable password.
func (h *site) noPassword() *problem {
	return &problem{status: http.StatusConflict, title: "You sign in without a password",
		text: "Your account signs in with " + cmp.Or(h.providerName(), "OpenID Connect") + ". Nothing was changed."}
}

func onlyOwners(provider string) string {
	return "Only owners with a password sign in here. Sign in with " + provider + "."
}

// providerName returns the name of the OpenID Connect provider, "" for none.
func (h *site) providerName() string {
	if h.cfg.OIDC == nil {
		return ""
	}
	return h.cfg.OIDC.Label()
}

// flowLife is how long a visitor may take at the provider.
const flowLife = 10 * time.Minute

// flowCookie is the cookie that binds a flow to the browser that began it.
const flowCookie = "oidc"

// maxSpentFlows bounds the memory of a flowKeeper.
const maxSpentFlows = 10_000

// flowKeeper keeps flows in cookies, so that strangers who begin many flows fill no memory. A flow
// ends once; a restart ends all flows.
type flowKeeper struct {
	key [32]byte

	mu    sync.Mutex
	spent map[string]time.Time // by state: when it expires
}

func newFlowKeeper() *flowKeeper {
	k := &flowKeeper{spent: make(map[string]time.Time)}
	rand.Read(k.key[:])
	return k
}

// keptFlow is the content of a cookie.
type keptFlow struct {
	Flow    oidc.Flow `json:"f"`
	Next    string    `json:"p"` // the path after signing in
	Expires time.Time `json:"e"`
}

// value returns the value of a cookie: the flow and its MAC.
func (k *flowKeeper) value(f oidc.Flow, next string) (string, error) {
	body, err := json.Marshal(keptFlow{f, next, time.Now().Add(flowLife)})
	if err != nil {
		return "", err
	}
	b64 := base64.RawURLEncoding
	return b64.EncodeToString(body) + "." + b64.EncodeToString(k.mac(body)), nil
}

func (k *flowKeeper) mac(body []byte) []byte {
	m := hmac.New(sha256.New, k.key[:])
	m.Write(body)
	return m.Sum(nil)
}

// find returns the flow in a cookie. The flow must have the state of the response, which another
// site that leads a browser here does not know.
func (k *flowKeeper) find(value, state string) (f keptFlow, ok bool) {
	b64 := base64.RawURLEncoding.Strict()
	text, sum, _ := strings.Cut(value, ".")
	body, err := b64.DecodeString(text)
	got, sumErr := b64.DecodeString(sum)
	if err != nil || sumErr != nil || !hmac.Equal(got, k.mac(body)) || json.Unmarshal(body, &f) != nil {
		return f, false
	}
	return f, f.Flow.State != "" && hmac.Equal([]byte(state), []byte(f.Flow.State)) && time.Now().Before(f.Expires)
}

// spend ends a flow. Of all calls for one flow, one returns true.
func (k *flowKeeper) spend(f *keptFlow) bool {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, again := k.spent[f.Flow.State]; again || !now.Before(f.Expires) {
		return false
	}
	if len(k.spent) >= maxSpentFlows {
		for state, expires := range k.spent {
			if !now.Before(expires) {
				delete(k.spent, state)
			}
		}
	}
	for state := range k.spent { // all of them are recent
		if len(k.spent) < maxSpentFlows {
			break
		}
		delete(k.spent, state)
	}
	k.spent[f.Flow.State] = f.Expires
	return true
}

// identityTries is the kind under which the limits of wrong passwords count sign-ins through the
// provider: failed ones cost requests to the provider.
const identityTries = "oidc "

// allowIdentity counts a sign-in through the provider. The caller refunds it on success.
func (h *signInPages) allowIdentity(r *request) (counted []ratelimit.Try, wait time.Duration, err error) {
	device, known, err := h.sessions.deviceOfAny(r)
	if err != nil {
		return nil, 0, err
	}
	if known {
		counted = []ratelimit.Try{{Limit: deviceLimit, Key: identityTries + device}}
		return counted, h.limiter.Allow(counted...), nil
	}
	counted, _, wait = allowUnknownOf(h.limiter, identityTries, addressOf(r), "")
	return counted, wait, nil
}

// beginIdentity redirects to the provider. It is a GET, because the policy of the pages forbids
// forms to go elsewhere, even by redirects. A page of another site must not begin a flow, whose end
// replaces the session of the browser and can change the role: its visitor gets the sign-in page.
func (h *signInPages) beginIdentity(r *request) (response, error) {
	if h.cfg.OIDC == nil {
		return notFound(r)
	}
	any, err := h.store.Admins().Exist(r.Context())
	if err != nil {
		return response{}, err
	}
	if !any {
		return h.requireSignIn(r)
	}
	next := localPath(r.URL.Query().Get("next"), "/")
	if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" && from != "none" {
		return h.renderSignIn(r, http.StatusOK, signInForm{next: next}), nil
	}
	flow, address, err := h.cfg.OIDC.Begin(r.Context())
	if err != nil {
		return h.identityFault(r, next, err)
	}
	value, err := h.flows.value(flow, next)
	if err != nil {
		return response{}, err
	}
	return response{location: address, cookies: []*http.Cookie{h.sessions.cookie(flowCookie, value, flowLife)}}, nil
}

// endIdentity signs in a visitor whom the provider has sent back.
func (h *signInPages) endIdentity(r *request) (response, error) {
	switch {
	case h.cfg.OIDC == nil:
		return notFound(r)
	case r.Method != http.MethodGet:
		return response{location: "/sign-in"}, nil // HEAD must not use up the code
	}
	query := r.URL.Query()
	var flow keptFlow
	c, err := r.Cookie(h.sessions.cookieName(flowCookie))
	ok := false
	if err == nil {
		flow, ok = h.flows.find(c.Value, query.Get("state"))
	}
	if !ok {
		return h.renderSignIn(r, http.StatusBadRequest, signInForm{next: "/",
			fault: "This sign-in has expired, or it was started in another browser or at another address. Start again at " +
				h.cfg.BaseURL + "/."}), nil
	}
	tried, wait, err := h.allowIdentity(r)
	if err != nil {
		return response{}, err
	}
	if wait > 0 {
		return h.refused(r, http.StatusTooManyRequests, signInForm{next: flow.Next}, "Too many failed sign-ins through "+h.providerName()+
			". Try again in "+ui.Duration(wait+time.Second)+".", wait), nil
	}
	var id webhook.Identity
	if h.flows.spend(&flow) {
		id, err = h.cfg.OIDC.Finish(r.Context(), flow.Flow, query)
	} else {
		err = errFlowSpent
	}
	var a response
	if err == nil {
		if a, err = h.admitIdentity(r, &flow, id); err == nil {
			h.limiter.Refund(tried...)
		}
	}
	if err != nil {
		a, err = h.identityFault(r, flow.Next, err)
	}
	a.cookies = append(a.cookies, h.sessions.cookie(flowCookie, "", -1))
	return a, err
}

// errFlowSpent means that the response to a flow was sent twice.
var errFlowSpent = errors.New("the response was used already")

// identityFault shows why the provider did not sign in a visitor. It returns other errors
// unchanged.
func (h *signInPages) identityFault(r *request, next string, err error) (response, error) {
	status, name, fault, after := http.StatusUnauthorized, h.providerName(), "", time.Duration(0)
	var refused *oidc.RefusedError
	switch {
	case r.Context().Err() != nil:
		return response{}, err
	case errors.Is(err, oidc.ErrUnavailable):
		status, after = http.StatusServiceUnavailable, unavailableRetry
		fault = name + " does not respond as expected. Try again later. Owners can sign in with their password. The service's log " +
			"has the cause."
	case errors.As(err, &refused):
		fault = name + " did not sign you in."
		switch refused.Code {
		case "":
		case "access_denied":
			fault = name + " did not sign you in: access was denied."
		default:
			fault = name + " did not sign you in (" + refused.Code + ")."
		}
	case errors.As(err, new(*oidc.InvalidError)), errors.Is(err, errFlowSpent):
		fault = "The response of " + name + " could not be verified. Try again. If that does not help, search the service's log for " +
			"the request ID below."
	case store.Unavailable(err):
		status, after, fault = http.StatusServiceUnavailable, unavailableRetry, h.unavailable(err)
	default:
		return response{}, err
	}
	h.logger.Warn("sign-in through OpenID Connect failed", "request_id", r.id, "error", err)
	return h.refused(r, status, signInForm{next: next}, fault, after), nil
}

// admitIdentity opens a session for an identity with a role.
func (h *signInPages) admitIdentity(r *request, flow *keptFlow, id webhook.Identity) (response, error) {
	if id.Role == "" {
		return h.refuseIdentity(r, id, "no role", &problem{
			status: http.StatusForbidden, title: "No role for this account",
			text: h.providerName() + " signed you in, but none of your groups has a role here. Nothing was created. Ask the operator to add " +
				"you to a group, then sign in again.",
		})
	}
	var secret string
	err := h.store.Write(r, func(sw store.Write) error {
		got, err := sw.Admins().AdmitIdentity(id)
		if err != nil {
			return err
		}
		if secret, err = h.sessions.create(sw, r, got.Admin, got.Password); err != nil {
			return err
		}
		for _, e := range admissionEntries(r, &got) {
			if err := sw.Audit(e); err != nil {
				return err
			}
		}
		return nil
	})
	var wrong *webhook.Error
	if errors.As(err, &wrong) {
		return h.refuseIdentity(r, id, "conflict", &problem{status: http.StatusForbidden, title: "You cannot sign in with this account",
			text: wrong.Error() + " Nothing was changed."})
	}
	if err != nil {
		return response{}, err
	}
	return response{location: flow.Next, session: true, cookies: h.sessions.cookies(r, secret)}, nil
}

// admissionEntries are the audit entries of a sign-in through the provider.
func admissionEntries(r *request, got *people.Admission) (all []webhook.AuditEntry) {
	const through = "through OpenID Connect"
	id := got.Admin.ID
	switch {
	case got.Created:
		all = append(all, r.entry(webhook.ActionAdminCreate, "", id, string(got.Admin.Role)+", "+through))
	case got.Linked:
		all = append(all, r.entry(webhook.ActionAdminLink, "", id, "by the verified email address, "+through))
	}
	if !got.Created && got.Before != got.Admin.Role {
		all = append(all, r.entry(webhook.ActionAdminRole, "", id,
			"from "+string(got.Before)+" to "+string(got.Admin.Role)+", "+through+raised(got)))
	}
	begun := r.signInEntry()
	begun.Detail = strings.TrimPrefix(begun.Detail+", "+through, ", ")
	if got.Renamed {
		begun.Detail += "; the provider changed the email address"
	}
	return append(all, begun)
}

// raised describes what a higher role ended, see [people.Admission].
func raised(got *people.Admission) string {
	var all []string
	if got.HadPassword {
		all = append(all, "the password")
	}
	if got.Passkeys > 0 {
		all = append(all, webhook.Count(got.Passkeys, "passkey"))
	}
	if got.Sessions > 0 {
		all = append(all, webhook.Count(got.Sessions, "session"))
	}
	if all == nil {
		return ""
	}
	return "; ended " + strings.Join(all, ", ")
}

// refuseIdentity records that an identity was refused, and returns the reason. It ends sessions
// that the admin still has.
func (h *signInPages) refuseIdentity(r *request, id webhook.Identity, why string, p *problem) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		e := webhook.AuditEntry{Admin: webhook.Provider, Address: addressText(r), RequestID: r.id, Action: webhook.ActionSessionRefuse,
			Detail: "OpenID Connect: " + why + ", subject " + ui.Visible(id.Subject)}
		if id.Role == "" {
			admin, ended, known, err := sw.Admins().RefuseIdentity(id)
			if err != nil {
				return err
			}
			if known {
				e.Admin, e.SubjectID = admin.Email, admin.ID
				e.Detail = "OpenID Connect: " + why + "; ended " + webhook.Count(ended, "session")
			}
		}
		return sw.Audit(e)
	})
	if err != nil {
		return response{}, err
	}
	return response{}, p
}
