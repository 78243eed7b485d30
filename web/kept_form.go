package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"service/web/ui"
)

// maxKeptForm bounds the size in bytes of a form that is kept while its visitor signs in. The
// sign-in page carries the form, escaped twice; the server stores nothing.
const maxKeptForm = maxForm / 4

// keptForm is a form that was submitted after its session had ended.
type keptForm struct {
	to      string     // path that the form was submitted to, "" for none
	fields  url.Values // without secrets
	secrets []string   // names of the secret fields, which have to be typed again
}

// secretFields are the fields whose values are not kept.
var secretFields = []string{"password", "again", "current", "authorization", "headers", "own_secret", "credential"}

// keepForm reads the form of a request without a session. It returns nil for a button without
// fields, which the visitor can easily press again.
func keepForm(r *request) *keptForm {
	to := localPath(r.URL.RequestURI(), "")
	if r.Method != http.MethodPost || to == "" {
		return nil
	}
	form, err := r.formUpTo(maxKeptForm)
	if err != nil || len(form) == 0 {
		return nil
	}
	return (&keptForm{to: to, fields: form}).withoutSecrets()
}

// withoutSecrets removes the values of secret fields and records their names.
func (k *keptForm) withoutSecrets() *keptForm {
	for _, name := range secretFields {
		if k.fields.Get(name) != "" {
			k.secrets = append(k.secrets, name)
		}
		k.fields.Del(name)
	}
	k.fields.Del("once") // the code belonged to the session that has ended
	return k
}

// readKeptForm reads the form that the sign-in page carried, nil for none.
func readKeptForm(form url.Values) *keptForm {
	k := &keptForm{to: localPath(form.Get("kept_to"), "")}
	fields, err := url.ParseQuery(form.Get("kept"))
	if k.to == "" || err != nil {
		return nil
	}
	k.fields = fields
	k.withoutSecrets()
	k.secrets = nil
	for _, name := range form["kept_secret"] {
		if slices.Contains(secretFields, name) {
			k.secrets = append(k.secrets, name)
		}
	}
	return k
}

// label is the label of a field on the page that shows the kept form.
func (k *keptForm) label(name string) string {
	return ui.Label(strings.NewReplacer("[", " ", "]", "").Replace(name))
}
