package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"service/internal/durable"
	"service/internal/terminal"
)

// cursorFile remembers the position of a subscription's follower in the event log.
type cursorFile struct {
	path         string
	subscription string
	cursor       string // "" before the first save
}

// savedCursor is the content of the file, as JSON.
type savedCursor struct {
	SubscriptionID string `json:"subscription_id"`
	Cursor         string `json:"cursor"`
}

// openCursor reads the file if it exists.
func openCursor(path, subscription string) (*cursorFile, error) {
	c := &cursorFile{path: path, subscription: subscription}
	durable.RemoveTemp(filepath.Dir(path), filepath.Base(path)+durable.TempSuffix) // of a process that was killed
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--cursor-file: %w", err)
	}
	var saved savedCursor
	switch err := json.Unmarshal(text, &saved); {
	case err != nil || saved.SubscriptionID == "" || saved.Cursor == "":
		return nil, fmt.Errorf("%s is not a cursor file of listen --pull; choose another with --cursor-file", path)
	case saved.SubscriptionID != subscription:
		return nil, fmt.Errorf("%s has the cursor of the subscription %s; choose another file with --cursor-file, or delete it to begin with "+
			"new events", path, terminal.Escape(saved.SubscriptionID))
	}
	c.cursor = saved.Cursor
	return c, nil
}

// save replaces the cursor. When it returns, the file survives a power cut.
func (c *cursorFile) save(cursor string) error {
	if cursor == c.cursor {
		return nil
	}
	text, err := json.Marshal(savedCursor{c.subscription, cursor})
	if err == nil {
		err = durable.WriteFile(c.path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("failed to save the cursor: %w; the last event will be repeated", err)
	}
	c.cursor = cursor
	return nil
}
