package web

import (
	"net/http"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// pageStore is the store of the pages. Its Write hides the store's, so that no handler can write
// without the access check.
type pageStore struct{ *store.Store }

// Write is [store.Store.Write] for a request. The session and its role were checked before the
// request body was read, which can take long. Write checks them again in the transaction: no change
// commits after the session ended or lost the role.
func (s pageStore) Write(r *request, fn func(store.Write) error) error {
	return s.Store.Write(r.Context(), r.checked(fn))
}

// checked returns fn with the check of [pageStore.Write], for store methods that run fn in their
// own write.
func (r *request) checked(fn func(store.Write) error) func(store.Write) error {
	return func(sw store.Write) error {
		if err := r.checkAccess(sw); err != nil {
			return err
		}
		return fn(sw)
	}
}

// WriteAgain hides [store.Store.WriteAgain].
func (s pageStore) WriteAgain(r *request, fn func(store.Write) error) error { return s.Write(r, fn) }

// checkAccess returns a problem if the visitor may no longer use the route.
func (r *request) checkAccess(sw store.Write) error {
	switch r.need {
	case anyone:
		return nil
	case reader, writer:
		session, open, err := sw.Portal().Session(r.portal.secret)
		switch {
		case err != nil:
			return err
		case !open:
			return portalEnded()
		case !portalAllows(session.Role, r.need):
			return portalReadOnly()
		}
		return nil
	}
	session, open, err := sw.Sessions().Get(r.secret)
	switch {
	case err != nil:
		return err
	case !open:
		return &problem{status: http.StatusUnauthorized, title: "Your session has ended",
			text: "It ended while the form was sent. Nothing was changed. Sign in again, and repeat the change if you still want it."}
	case !session.Role.Allows(r.need):
		return r.roleTooLow(session.Role)
	}
	return nil
}

// roleTooLow is the problem of an admin whose role does not allow the route.
func (r *request) roleTooLow(has webhook.Role) *problem {
	return &problem{
		status: http.StatusForbidden, title: "Your role does not allow this",
		text: "This needs the role " + string(r.need) + ". You are signed in as " + ui.Visible(r.admin) + " with the role " +
			string(has) + ". Nothing was changed. An owner can change your role.",
	}
}

// portalEnded is the problem of a partner without a session.
func portalEnded() *problem {
	return &problem{status: http.StatusUnauthorized, title: "Your session has ended",
		text: "The portal opens from a link that works once. Ask for a new link."}
}

// portalReadOnly is the problem of a partner whose link allows viewing only.
func portalReadOnly() *problem {
	return &problem{status: http.StatusForbidden, title: "Your link does not allow this",
		text: "You can view this program but not change it. Nothing was changed."}
}
