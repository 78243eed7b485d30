//go:build !linux

package disk

import "errors"

func shutdownFS(string) error { return errors.New("only Linux can") }
