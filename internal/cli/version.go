package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"service/store"
)

type versionCmd struct{}

func (versionCmd) Run(std Streams) error {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "service %s (%s, sqlite %s, driver %s)\n", version(), runtime.Version(), sqlite, store.DriverName)
	return err
}

// versionFlag is --version. It does the same as the command version.
type versionFlag bool

func (versionFlag) BeforeReset(app *kong.Kong) error {
	app.Exit(exitDone)
	return versionCmd{}.Run(Streams{Out: app.Stdout})
}

// releaseVersion is set by packaging/release, with the linker flag
// -X service/internal/cli.releaseVersion=….
var releaseVersion string

// version returns the version of this binary: that of the release, the module or the commit.
func version() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+changes"
		}
	}
	if revision == "" {
		return "devel"
	}
	return revision + modified
}
