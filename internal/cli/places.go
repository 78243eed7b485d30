package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// places are the paths that commands use if no flag names one.
type places struct {
	data   string // the data directory
	config string // directory of config.yml and litestream.yml
}

// placesOf returns the places for a binary started as name: the package's paths, or the working
// directory.
func placesOf(name string) places {
	if name == packagedName {
		return places{data: "/var/lib/service-webhooks", config: "/etc/service-webhooks"}
	}
	return places{data: "./data", config: "."}
}

// configName returns the directory of the configuration for texts.
func (p places) configName() string {
	if p.config == "." {
		return "the working directory"
	}
	return p.config
}

// The files that the commands look for in places.config, and the flag value for no file.
const (
	configFile  = "config.yml"
	replicaFile = "litestream.yml"
	noFile      = "off"
)

// find returns the path of a configuration file: the one that its flag names or, without the
// flag, base in p.config if it exists. It returns "" for none. found reports that no flag named
// the file.
func (p places) find(flag, base string) (path string, found bool) {
	switch flag {
	case noFile:
		return "", false
	case "":
		path = filepath.Join(p.config, base)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", false
		}
		return path, true // a file that cannot be read is an error of its reader
	}
	return flag, false
}

// environmentFile is the file in places.config with environment variables for the service. systemd
// reads it for the unit.
const environmentFile = "environment"

// loadEnvironment sets the variables of the package's environment file unless they are already set,
// so that commands in a terminal have the server's credentials. It ignores a file that this user
// may not read.
func (p places) loadEnvironment() {
	if p.config == "." {
		return
	}
	text, err := os.ReadFile(filepath.Join(p.config, environmentFile))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := variableIn(line)
		if _, set := os.LookupEnv(name); ok && !set {
			os.Setenv(name, value)
		}
	}
}

// variableIn parses a line of an environment file as systemd does, except that it does not join
// lines that end with a backslash.
func variableIn(line string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(strings.TrimSpace(line), "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	if !ok || name == "" || strings.HasPrefix(name, "#") || strings.HasPrefix(name, ";") {
		return "", "", false
	}
	return name, unquoted(value), true
}

// unquoted removes the quotes and escapes from a value.
func unquoted(s string) string {
	var b strings.Builder
	var quote byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote == 0 && (c == '"' || c == '\''), quote != 0 && c == quote:
			quote ^= c // begins or ends a quotation
		case c == '\\' && i+1 < len(s) && (quote == 0 || quote == '"' && strings.IndexByte("\"\\$`", s[i+1]) >= 0):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
