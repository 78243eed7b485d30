// Command provider runs an OpenID Connect provider for tests: github.com/zitadel/oidc with its
// example storage. It is a separate module, so that the service does not depend on it.
//
// It listens at a free port of 127.0.0.1 and prints its issuer. The password of every user
// is "verysecure". POST /test/groups?user=ID&group=G&group=H sets the groups of a user,
// which are sent in the claim groups of UserInfo.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	issuer := "http://" + listener.Addr().String()
	storage.RegisterClients(storage.WebClient("confidential", "client secret"), storage.NativeClient("public"))
	s := &provider{Storage: storage.NewStorage(users{}), groups: make(map[string][]string)}
	mux := http.NewServeMux()
	mux.Handle("/", exampleop.SetupServer(issuer, s, nil, false))
	mux.HandleFunc("POST /test/groups", s.setGroups)
	fmt.Println(issuer)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.Serve(listener))
}

// users are ana, bo and cy. cy's address is not verified.
type users struct{}

func (users) GetUserByID(id string) *storage.User {
	for _, name := range []string{"ana", "bo", "cy"} {
		if id == "id-"+name {
			return &storage.User{ID: id, Username: name, Password: "verysecure", FirstName: name, Email: name + "@example.com",
				EmailVerified: name != "cy"}
		}
	}
	return nil
}

func (u users) GetUserByUsername(name string) *storage.User { return u.GetUserByID("id-" + name) }
func (users) ExampleClientID() string                       { return "service" }

// provider is the example storage with groups.
type provider struct {
	*storage.Storage

	mu     sync.Mutex
	groups map[string][]string // by user ID
}

func (p *provider) setGroups(_ http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups[q.Get("user")] = q["group"]
}

// SetUserinfoFromToken implements [op.Storage].
func (p *provider) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	if err := p.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	info.AppendClaims("groups", p.groups[subject])
	return nil
}

// GetClientByClientID implements [op.Storage].
func (p *provider) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := p.Storage.GetClientByClientID(ctx, id)
	return client{c}, err
}

// client accepts any port: the service gets a free one.
type client struct{ op.Client }

// DevMode lets the globs apply.
func (client) DevMode() bool { return true }

// RedirectURIGlobs implements [op.HasRedirectGlobs].
func (client) RedirectURIGlobs() []string {
	return []string{"https://127.0.0.1:*/sign-in/oidc/callback", "http://127.0.0.1:*/sign-in/oidc/callback"}
}

// PostLogoutRedirectURIGlobs implements [op.HasRedirectGlobs].
func (client) PostLogoutRedirectURIGlobs() []string { return nil }
