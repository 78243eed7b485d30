package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"service/api"
	"service/internal/control"
	"service/internal/server"
	"service/store"
	"service/store/datadir"
)

// dataFlag contains the flags of every command that needs the data directory.
type dataFlag struct {
	Config string `placeholder:"FILE" help:"YAML file with the settings of service serve, or off. Default: config.yml in ${config}, if it exists. Flags and environment variables override it. service config example prints one."`
	Data   string `default:"${data}" placeholder:"DIR" help:"Data directory: database, certificates and keys."`
}

// checkOwner returns an error if root is about to create files in another user's data directory. A
// service that runs as that user could not open them.
func (d dataFlag) checkOwner() error {
	info, err := os.Stat(d.Data)
	if err != nil || os.Geteuid() != 0 {
		return nil // opening the directory reports the error
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known || owner.Uid == 0 {
		return nil
	}
	name := "#" + strconv.Itoa(int(owner.Uid))
	if u, err := user.LookupId(name[1:]); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s belongs to user %s, who could not read files created by root: run this as that user (sudo -u %s)",
		d.Data, name, shellQuote(name))
}

// data is the API that a command works on: of the running server, or of the store that the command
// has opened itself.
type data struct {
	*control.Client
	store *store.Store // nil if a server is running
}

// Close waits for the requests, and closes the store if the command opened it.
func (d data) Close() error {
	err := d.Client.Close()
	if d.store != nil {
		err = errors.Join(err, d.store.Close())
	}
	return err
}

// pages calls use with every page of a list of the API.
func pages[T any](ctx context.Context, d data, path string, query url.Values, use func([]T) error) error {
	query.Set("page[size]", "100")
	for number := 1; ; number++ {
		var page struct {
			Data []T
			Meta struct {
				Pagination struct {
					Next  string
					Pages int `json:"total_pages"`
				}
			}
		}
		err := d.Stream(ctx, http.MethodGet, path+"?"+query.Encode(), nil, func(response io.Reader) error {
			return json.NewDecoder(response).Decode(&page)
		})
		if err == nil {
			err = use(page.Data)
		}
		switch at := page.Meta.Pagination; {
		case err != nil:
			return err
		case at.Next != "":
			query.Set("page[cursor]", at.Next)
		case number < at.Pages:
			query.Set("page[number]", strconv.Itoa(number+1))
		default:
			return nil
		}
	}
}

// lines calls use with every line of a streamed response.
func lines[T any](ctx context.Context, c *control.Client, method, path string, in any, use func(*T) error) error {
	return c.Stream(ctx, method, path, in, func(response io.Reader) error {
		for decoder := json.NewDecoder(response); ; {
			var line T
			if err := decoder.Decode(&line); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := use(&line); err != nil {
				return err
			}
		}
	})
}

// storeFlags are the flags of a command that asks the running server or, if none runs, opens the
// store itself.
type storeFlags struct {
	dataFlag
	keyFlag
}

// call sends one request, see [control.Client.Call].
func (c storeFlags) call(ctx context.Context, std Streams, method, path string, in, out any) error {
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Call(ctx, method, path, in, out)
}

// open connects to the server that runs on the data directory, or opens the store if no server
// runs. It never creates a database: only serve and restore do.
func (c storeFlags) open(ctx context.Context, std Streams) (data, error) {
	return c.openWith(ctx, store.Config{}, std)
}

// openWith is open with a configuration for the store, if no server runs. It sets the
// configuration's directory, key file, logger and catalog.
func (c storeFlags) openWith(ctx context.Context, cfg store.Config, std Streams) (data, error) {
	running, err := control.Dial(ctx, c.Data)
	if err == nil {
		return data{Client: running}, nil
	}
	if !errors.Is(err, control.ErrNoServer) {
		return data{}, err
	}
	if err := datadir.CheckData(c.Data); err != nil {
		return data{}, explainNoData(err)
	}
	cfg.Dir, cfg.SecretKeyFile, cfg.Logger = c.Data, c.SecretKeyFile, newLogger(std.Err, "text", slog.LevelWarn)
	// Most commands need no event types, so an invalid file does not affect them.
	types, typesErr := server.LoadCatalog(c.Data)
	cfg.Catalog = types
	st, err := store.Open(ctx, cfg)
	if err != nil {
		return data{}, c.explain(err)
	}
	handler := api.New(api.Config{Store: st, Catalog: types})
	return data{control.Local(handler.Owner(api.OwnerConfig{Version: version(), CatalogErr: typesErr})), st}, nil
}

// dialServer connects to the running server. If there is none, the error ends with advice.
func dialServer(ctx context.Context, dir, advice string) (*control.Client, error) {
	running, err := control.Dial(ctx, dir)
	if errors.Is(err, control.ErrNoServer) {
		return nil, errors.New("no server is running on " + dir + advice)
	}
	return running, err
}

// post sends a POST request to the running server. If there is none, the error ends with advice.
func (d dataFlag) post(ctx context.Context, advice, path string, in, out any) error {
	running, err := dialServer(ctx, d.Data, advice)
	if err != nil {
		return err
	}
	defer running.Close()
	return running.Call(ctx, http.MethodPost, path, in, out)
}

// explainNoData adds advice for the operator to an error of a command that needs a database.
func explainNoData(err error) error {
	var none *datadir.NoDataError
	switch {
	case !errors.As(err, &none):
		return err
	case none.Standby:
		return fmt.Errorf("%w; run this on the primary", err)
	}
	return fmt.Errorf("%w: start the server, which creates it, or name the data directory with --data", err)
}

// keyFlag is the flag of every command that opens the database itself.
type keyFlag struct {
	SecretKeyFile string `placeholder:"FILE" help:"File with the key that encrypts secrets. Default: secret.key in the data directory; a file named here must be outside it."`
}

// explain adds the flag's name to an error about the key file.
func (f keyFlag) explain(err error) error {
	switch {
	case !errors.Is(err, store.ErrKey):
		return err
	case f.SecretKeyFile == "":
		return fmt.Errorf("%w (for a key in another place, use --secret-key-file FILE)", err)
	}
	return fmt.Errorf("--secret-key-file: %w", err)
}
