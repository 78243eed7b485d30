package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"service/internal/archive"
	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/store/replica"
	"service/webhook"
)

// replicaFile is the replica's configuration when no flag names one.
const replicaFile = "litestream.yml"

// noReplica as --litestream says that there is to be none.
const noReplica = "off"

// replica reads the configuration of the replica; nil for none.
func (f *faults) replica(flag, name string) *replica.Config {
	cfg, err := readReplica(name)
	if err != nil {
		f.add(flag, "%v", err)
	}
	return cfg
}

// readReplica returns the configuration of the replica in a file; nil when it
// names no database, when there is no file and none was named, or when none is
// wanted.
func readReplica(name string) (*replica.Config, error) {
	named := name != ""
	switch {
	case name == noReplica:
		return nil, nil
	case !named:
		name = replicaFile
	}
	cfg, err := replica.ReadConfig(name, os.LookupEnv)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil, nil
	}
	if cfg != nil {
		clearCABundle()
	}
	return cfg, err
}

// clearCABundle removes a variable from the environment with which the replica's
// client fails: it wants to change a transport that is not its own.
func clearCABundle() { os.Unsetenv("AWS_CA_BUNDLE") }

// fromReplica restores a replica.
func (c *restoreCmd) fromReplica(ctx context.Context, std streams) (err error) {
	from, at, err := c.replica()
	if err != nil {
		return err
	}
	// A replica holds the database alone: the key may be there already, and stays.
	_, err = os.Stat(filepath.Join(c.Data, "service.db"))
	r, err := c.take(c.Force || errors.Is(err, fs.ErrNotExist))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	y, err := r.FromReplica(ctx, from, at)
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: nothing was changed")
	case err != nil:
		return fmt.Errorf("%w; nothing was changed", err)
	}
	aside, err := r.Commit()
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "%s is as it was at %s, restored from %s.\n", terminal.Escape(c.Data), webhook.FormatTime(y.State), terminal.Escape(y.From))
	fmt.Fprintln(std.out, spelled("What has been sent since then is not known any more, and is sent again: service serve --restore-hold 1h holds deliveries, so that you can look first.", ownName()))
	if aside != "" {
		fmt.Fprintf(std.out, "What was there is in %s; remove it when it is of no more use.\n", terminal.Escape(aside))
	}
	if _, err := os.Stat(filepath.Join(c.Data, archive.SecretKeyFile)); errors.Is(err, fs.ErrNotExist) && c.SecretKeyFile == "" {
		fmt.Fprintf(std.out, "A replica does not hold the key of the secrets: put the service's secret.key into %s before it starts, or name it by --secret-key-file.\n", terminal.Escape(c.Data))
	}
	return nil
}

// replica is what the flags say of the replica to restore, and of the time.
func (c *restoreCmd) replica() (from *replica.Config, at time.Time, err error) {
	var f faults
	if c.At != "" {
		if at, err = time.Parse(time.RFC3339, c.At); err != nil {
			f.add("at", "must be a time such as 2026-03-14T08:24:48Z, not %q", c.At)
		} else if at.After(time.Now()) {
			f.add("at", "must not lie in the future, as %q does", c.At)
		}
	}
	if c.WithoutKeys {
		f.add("without-keys", "a replica holds no keys; leave it out")
	}
	if c.From != "" {
		if c.Litestream != "" {
			f.add("litestream", "--from names the replica already; leave one of the two out")
		}
		if from, err = replica.ParseURL(c.From); err != nil {
			f.add("from", "%v", err)
		}
		clearCABundle()
	} else if from, err = readReplica(c.Litestream); err != nil {
		f.add("litestream", "%v", err)
	} else if from == nil {
		f.add("from", "must name a backup or the URL of a replica, unless --litestream FILE (or %s in the working directory) names a replica", replicaFile)
	}
	return from, at, f.err()
}

// take takes the data directory to be filled.
func (c *restoreCmd) take(force bool) (*store.Restoration, error) {
	if err := c.mine(); err != nil {
		return nil, err
	}
	r, err := store.Restore(c.Data, force)
	switch {
	case errors.Is(err, store.ErrNotEmpty):
		return nil, fmt.Errorf("%w; --force replaces what is there", err)
	case errors.Is(err, store.ErrLocked):
		return nil, fmt.Errorf("%w; stop it first", err)
	}
	return r, err
}

// mayRepeat says how many deliveries may be sent again.
func mayRepeat(r *store.Repeats) string {
	more := ""
	if r.More {
		more = "at least "
	}
	return more + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "waiting event") + " may have been sent already"
}

type releaseCmd struct{ dataFlag }

func (c *releaseCmd) Run(ctx context.Context, std streams) error {
	running, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return errors.New("no server runs on " + c.Data + ": nothing is held; deliveries are held only while one runs")
	} else if err != nil {
		return err
	}
	defer running.Close()
	if err := running.Release(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, "The deliveries that were held are sent.")
	return err
}
