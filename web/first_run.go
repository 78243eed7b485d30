package web

import (
	"net/url"
	"strconv"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// setupStep is a step of the checklist that the overview shows until the first event is delivered.
type setupStep struct {
	label, text string
	path        string // of the form, "" while an earlier step is incomplete
	done        bool
	note        string // shown above the command
	command     string
}

// exampleEvent is the event type in the examples.
const exampleEvent = "content_published"

// firstRun returns the steps of the setup, nil once an event has been delivered.
func (h *site) firstRun(r *request) ([]setupStep, error) {
	done, err := h.store.FirstRun(r.Context())
	if err != nil || done.Delivered {
		return nil, err
	}
	return h.setupSteps(r.admin, &done), nil
}

func (h *site) setupSteps(admin string, done *store.FirstRun) []setupStep {
	const tokenNote = "TOKEN is the token from step 2."
	steps := []setupStep{{
		label: "Create an admin", text: "You are signed in as " + ui.Visible(admin) + ".", path: "/account", done: true,
		note: "Creates another admin:", command: h.command("admin create --email you@example.com"),
	}, {
		label: "Create a program and a token", text: "A program is a tenant. Its token publishes events and manages subscriptions.",
		path: "/tokens/new?scopes=" + fullPreset, done: done.Token,
		note: "Stores the new token in the shell variable TOKEN:", command: "TOKEN=$(" + h.tokenCommand(done.ProgramID) + ")",
	}, {
		label: "Create a subscription", text: "A subscription sends the event types that you choose to a partner's URL.",
		path: ui.InProgram("/subscriptions/new", done.ProgramID), done: done.SubscriptionID != "",
		note: tokenNote, command: h.subscribeCommand(),
	}, {
		label: "Send a test event", text: "Sends an example event to one subscription and shows the response.",
		note:    tokenNote,
		command: h.curl.Command("POST", apiSubscriptions+"/SUBSCRIPTION_ID/test", `{"name": "`+exampleEvent+`"}`),
	}}
	if id := done.SubscriptionID; id != "" {
		test := &steps[3]
		test.path, test.command = subscriptionPath(id)+"#test", h.curl.Command("POST", apiSubscriptionPath(id)+"/test",
			`{"name": "`+exampleEvent+`"}`)
	}
	return steps
}

// stepsDone returns the number of completed steps.
func stepsDone(steps []setupStep) string {
	n := 0
	for i := range steps {
		if steps[i].done {
			n++
		}
	}
	return strconv.Itoa(n) + " of " + strconv.Itoa(len(steps)) + " steps done"
}

// nextStep returns the index of the first incomplete step.
func nextStep(steps []setupStep) int {
	for i := range steps {
		if !steps[i].done {
			return i
		}
	}
	return -1
}

// tokenCommand is a command that creates a token with all scopes of a program and prints it.
func (h *site) tokenCommand(program string) string {
	if program == "" {
		program = "acme"
	}
	return h.command("token create --program " + ui.ShellQuote(program) + " --user backend --scope " + fullScopes)
}

// subscribeCommand creates a subscription to the events of contents.
func (h *site) subscribeCommand() string {
	return h.curl.Command("POST", apiSubscriptions,
		`{"url": "https://example.com/webhooks", "events": [{"name": "`+exampleEvent+`"}, {"name": "content_updated"}]}`)
}

// newTokenPath is the address of the form for a token with all scopes of a program.
func newTokenPath(program string) string {
	values := url.Values{"scopes": {fullPreset}}
	if webhook.CheckIdentifier("program", program) == nil {
		values.Set(ui.ProgramParameter, program)
	}
	return ui.Address("/tokens/new", values)
}
