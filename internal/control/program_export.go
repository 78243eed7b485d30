package control

import (
	"errors"
	"net/http"
	"time"

	"service/internal/archive"
	"service/store"
)

// importPath is the path of an import, whose request has no limit.
const importPath = "/programs/import"

// handlePrograms adds the handlers for service program.
func (s *Server) handlePrograms(m *http.ServeMux) {
	m.HandleFunc("POST /programs/{id}/delete", s.respond(func(r *http.Request) (any, error) {
		return s.Store.beginErasure(r.Context(), r.PathValue("id"))
	}))
	m.HandleFunc("POST /programs/space", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[archive.ProgramRequest](r)
		if err != nil {
			return nil, err
		}
		return s.Store.ProgramSpace(r.Context(), request.Copies)
	}))
	m.HandleFunc("POST /programs/export", s.exportProgram)
	m.HandleFunc("POST /programs/{id}/move", s.moveProgram)
	m.HandleFunc("POST "+importPath, s.respond(func(r *http.Request) (any, error) {
		began := time.Now()
		y, err := s.Store.importProgram(r.Context(), r.Body, &store.ProgramImport{Retry: &s.Retry})
		if err == nil {
			s.Logger.Info("imported a program", "program", y.ProgramID, "events", y.Events, "deliveries", y.Deliveries,
				"duration", time.Since(began).Round(time.Millisecond))
		}
		return y, err
	}))
}

// exportProgram responds with the input of [archive.WriteProgram]. On an error it aborts the
// connection, so that the client does not mistake the response for a complete one.
func (s *Server) exportProgram(w http.ResponseWriter, r *http.Request) {
	var source *archive.ProgramSource
	began := time.Now()
	s.respond(func(r *http.Request) (any, error) {
		request, err := decode[archive.ProgramRequest](r)
		if err != nil {
			return nil, err
		}
		source, err = s.Store.programSource(r.Context(), &request)
		return streamed{}, err
	})(w, r)
	if source == nil {
		return // respond has written the error
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := errors.Join(source.Send(w), source.Close()); err != nil {
		s.Logger.Error("request on the admin socket failed", "request", r.Method+" "+r.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
	s.Logger.Info("exported a program", "program", source.Header.ProgramID, "bytes", source.Header.Bytes, "duration", time.Since(began))
}
