package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"service/webhook"
)

// LoadCatalog returns the catalog, including the operator's event types in the directory
// event_types of the data directory; [store.Open] adds the database's. It skips names that begin
// with a dot. Any other file that is not an event type is an error: skipping it would reject events
// of that name later, far from the cause.
func LoadCatalog(data string) (*webhook.Catalog, error) {
	files, err := readEventTypes(data)
	if err != nil {
		return nil, err
	}
	catalog, err := webhook.LoadCatalog(files...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(data, eventTypesFolder), err)
	}
	return catalog, nil
}

// eventTypesFolder is the directory of the operator's event types in the data directory.
const eventTypesFolder = "event_types"

// readEventTypes reads the files of LoadCatalog.
func readEventTypes(data string) ([]webhook.SchemaFile, error) {
	dir := filepath.Join(data, eventTypesFolder)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var files []webhook.SchemaFile
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if len(files) == webhook.MaxEventTypes {
			return nil, fmt.Errorf("%s: there are more than %d event types", dir, webhook.MaxEventTypes)
		}
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file: this directory must only have event types, as NAME.json", path)
		case info.Size() > webhook.MaxEventTypeBytes:
			return nil, fmt.Errorf("%s is larger than %d bytes", path, webhook.MaxEventTypeBytes)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, webhook.SchemaFile{Name: entry.Name(), Content: content})
	}
	return files, nil
}
