package api

import (
	"net"
	"net/http"

	"service/store"
	"service/webhook"
)

// programHeader selects the program that a platform token acts in. Responses name the
// program with it.
const programHeader = "X-Program-Id"

// selectProgram determines the program that a request with a token acts in. A program token can
// select only its own program: the error for another does not reveal whether it exists.
func (a *API) selectProgram(req *request) error {
	req.programID = req.token.ProgramID
	values := req.http.Header[programHeader]
	if values == nil {
		return nil
	}
	if len(values) > 1 {
		return webhook.Invalid(webhook.Validation{Code: webhook.InvalidFormat, Parameter: programHeader, Detail: "must be given once"})
	}
	id := values[0]
	if id == "" {
		return webhook.Invalid(webhook.Validation{Code: webhook.InvalidFormat, Parameter: programHeader,
			Detail: "must not be empty: give the id of a program, or leave out the header"})
	}
	if faults := webhook.CheckIdentifier(programHeader, id); faults != nil {
		return webhook.Invalid(faults...)
	}
	switch {
	case id == req.programID:
		return nil
	case !req.token.Platform():
		return webhook.NewError(webhook.CodeForbidden,
			"The access token does not belong to this program. Only a platform token may select a program with "+programHeader+".")
	}
	if p, err := a.store.Programs().Get(req.ctx, id); webhook.CodeOf(err) == webhook.CodeNotFound || err == nil && !p.ErasingSince.IsZero() {
		return webhook.NewError(webhook.CodeNotFound, "There is no program "+id+".")
	} else if err != nil {
		return err
	}
	req.programID = id
	return nil
}

// actor returns an audit entry with the token, the address and the ID of the request, or the
// terminal for the owner.
func (req *request) actor() webhook.AuditEntry {
	switch {
	case req.route.scope == scopeOwner:
		return webhook.AuditEntry{Admin: webhook.Terminal}
	case req.owner():
		return webhook.AuditEntry{Admin: webhook.Terminal, RequestID: req.id}
	}
	host, _, err := net.SplitHostPort(req.http.RemoteAddr)
	if err != nil {
		host = ""
	}
	return webhook.AuditEntry{Admin: webhook.ActorToken + req.token.ID, Address: host, RequestID: req.id}
}

// programRecord is a program in the API.
type programRecord struct {
	ID         string                `json:"id"`
	Name       string                `json:"name"`
	Limits     webhook.ProgramLimits `json:"limits"`
	Origins    []string              `json:"portal_origins"`
	CreatedAt  timestamp             `json:"created_at"`
	UpdatedAt  timestamp             `json:"updated_at"`
	Status     string                `json:"status"`
	Erasure    *programErasure       `json:"erasure"`
	MovesTo    string                `json:"moves_to,omitempty"` // for the owner: the URL of the other installation
	Statistics programStatistics     `json:"statistics"`
}

// programErasure is a program erasure in progress.
type programErasure struct {
	BeganAt timestamp `json:"began_at"`
	// ReplicaSeconds is the maximum time that the replica keeps the program after the erasure has
	// finished, null without a replica.
	ReplicaSeconds *int64 `json:"replica_seconds"`
	Notice         string `json:"notice"`
}

func newProgramErasure(e webhook.Erasure) *programErasure {
	y := &programErasure{BeganAt: timestamp(e.Began), Notice: e.Notice()}
	if e.Replica > 0 {
		seconds := int64(e.Replica.Seconds())
		y.ReplicaSeconds = &seconds
	}
	return y
}

type programStatistics struct {
	Subscriptions         int           `json:"subscriptions"`
	ActiveSubscriptions   int           `json:"active_subscriptions"`
	FailingSubscriptions  int           `json:"failing_subscriptions"`
	DisabledSubscriptions int           `json:"disabled_subscriptions"`
	OpenIncidents         int           `json:"open_incidents"`
	Tokens                int           `json:"tokens"`
	Events                int64         `json:"events"`
	LastEventAt           timestamp     `json:"last_event_at"`
	Attempts24h           attemptCounts `json:"attempts_24h"`
}

type attemptCounts struct {
	Success   int64 `json:"success"`
	Failed    int64 `json:"failed"`
	Retryable int64 `json:"retryable"`
}

func findProgram(req *request) (err error) {
	req.tenant, err = req.api.store.Programs().Get(req.ctx, req.params.ByName("id"))
	return err
}

// programRecords returns the records of programs with their statistics.
func programRecords(req *request, programs []webhook.Program) ([]programRecord, error) {
	ids := make([]string, len(programs))
	for i := range programs {
		ids[i] = programs[i].ID
	}
	statistics, err := req.api.store.Programs().Statistics(req.ctx, ids)
	if err != nil {
		return nil, err
	}
	records := make([]programRecord, len(programs))
	for i := range programs {
		p, s := &programs[i], statistics[programs[i].ID]
		records[i] = programRecord{
			ID: p.ID, Name: p.Name, Limits: p.Limits, Origins: p.PortalOrigins, CreatedAt: timestamp(p.CreatedAt), UpdatedAt: timestamp(p.UpdatedAt),
			Status: p.Status(), Statistics: programStatistics{
				Subscriptions: s.Subscriptions, ActiveSubscriptions: s.ActiveSubscriptions, FailingSubscriptions: s.FailingSubscriptions,
				DisabledSubscriptions: s.DisabledSubscriptions, OpenIncidents: s.OpenIncidents, Tokens: s.Tokens,
				Events: s.Events, LastEventAt: timestamp(s.LastEventAt),
				Attempts24h: attemptCounts{s.Attempts.Success, s.Attempts.Failed, s.Attempts.Retryable},
			},
		}
		if req.owner() && p.Move != nil && p.Move.Status != webhook.ProgramArriving {
			records[i].MovesTo = p.Move.URL
		}
		if !p.ErasingSince.IsZero() {
			records[i].Erasure = newProgramErasure(req.api.store.Programs().Erasure(p.ID, p.ErasingSince))
		}
	}
	return records, nil
}

func listPrograms(req *request) (answer, error) {
	programs, total, err := req.api.store.Programs().Page(req.ctx, &req.query)
	if err != nil {
		return answer{}, err
	}
	records, err := programRecords(req, programs)
	return answer{data: records, meta: newPageMeta(&req.query, total)}, err
}

func readProgram(req *request) (answer, error) { return programAnswer(req, req.tenant) }

// programAnswer returns the response with one program.
func programAnswer(req *request, p *webhook.Program) (answer, error) {
	records, err := programRecords(req, []webhook.Program{*p})
	if err != nil {
		return answer{}, err
	}
	return answer{data: records[0]}, nil
}

// putProgram creates a program, or changes the fields that were sent.
func putProgram(req *request) (answer, error) {
	id := req.params.ByName("id")
	if faults := webhook.CheckIdentifier("id", id); faults != nil {
		return answer{}, webhook.Invalid(faults...)
	}
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	fields, invalid := webhook.ParseProgram(body, id)
	if invalid != nil {
		return answer{}, invalid
	}
	conditions, err := req.conditions()
	if err != nil {
		return answer{}, err
	}
	var program webhook.Program
	var before *webhook.Program
	err = req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		if program, before, err = w.Programs().Put(id, &fields, req.actor()); err != nil {
			return err
		}
		return conditions.exists(before != nil)
	})
	if err != nil {
		return answer{}, err
	}
	ans, err := programAnswer(req, &program)
	if before == nil {
		ans.status, ans.location = http.StatusCreated, "/v2/programs/"+id
	}
	return ans, err
}

// deleteProgram begins to erase a program. Erasing it again changes nothing.
func deleteProgram(req *request) (answer, error) {
	program := *req.tenant
	err := req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		program.ErasingSince, err = w.Programs().Erase(program.ID, req.actor())
		return err
	})
	if err != nil {
		return answer{}, err
	}
	ans, err := programAnswer(req, &program)
	ans.status = http.StatusAccepted
	return ans, err
}
