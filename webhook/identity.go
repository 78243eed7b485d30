package webhook

// Identity is who an OpenID Connect provider says that a visitor is. Issuer and Subject
// together never change; all else may.
type Identity struct {
	Issuer        string
	Subject       string
	Email         string // normalized; "" if the provider sends none
	EmailVerified bool   // the provider has checked that the visitor receives mail there
	EmailRefuted  bool   // the provider says that it has not checked; false like EmailVerified if it says neither
	Role          Role   // "" for none
}

// MaxIdentitySubject is the maximum length of a subject, in bytes.
const MaxIdentitySubject = 255
