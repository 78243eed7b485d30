//go:build !linux

package main

import "errors"

func shutdownFS(string) error { return errors.New("only Linux can") }
