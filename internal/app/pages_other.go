//go:build !linux

package app

// unmapBinary does nothing: other systems count memory in other ways.
func unmapBinary() error { return nil }
