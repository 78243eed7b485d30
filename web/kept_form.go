package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"service/web/ui"
)

// maxKeptForm bounds what a form may hold to be kept while its visitor signs in, in bytes.
// The sign-in page carries it, escaped twice: nothing of it is stored.
const maxKeptForm = maxForm / 4

// keptForm is a form that was sent after its session had ended.
type keptForm struct {
	to      string     // the path that it was sent to, "" for no form
	fields  url.Values // without secrets
	secrets []string   // the names of the fields that held one, which has to be typed again
}

// secretFields are the fields whose values are not kept.
var secretFields = []string{"password", "again", "current", "authorization", "credential"}

// keepForm reads the form of a request that had no session. It returns nil when there is
// nothing to keep: a button without fields is pressed again.
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

// withoutSecrets removes the values of secret fields, and notes those that had one.
func (k *keptForm) withoutSecrets() *keptForm {
	for _, name := range secretFields {
		if k.fields.Get(name) != "" {
			k.secrets = append(k.secrets, name)
		}
		k.fields.Del(name)
	}
	k.fields.Del("once") // it was of the session that has ended
	return k
}

// readKeptForm reads what the sign-in page carried, nil for nothing.
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

// names are the names of the fields, in order.
func (k *keptForm) names() []string {
	var names []string
	for name := range k.fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// label is how a field is called on the page that shows what was kept.
func (k *keptForm) label(name string) string {
	return ui.Label(strings.NewReplacer("[", " ", "]", "").Replace(name))
}
