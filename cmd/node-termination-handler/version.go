package main

import (
	"cmp"
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker for releases: -ldflags "-X main.version=… -X main.commit=…".
var version, commit string

// describeVersion returns the version, the commit, the Go version and platform that
// the program was built with and for, and which cryptography it uses, each in a line.
func describeVersion() string {
	v, c, modified := version, commit, ""
	if build, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, build.Main.Version)
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision" && c == "":
				c = s.Value
			case s.Key == "vcs.modified" && s.Value == "true" && commit == "":
				modified = " (modified)"
			}
		}
	}
	return fmt.Sprintf("%s %s\ncommit: %s%s\nbuilt with: %s for %s/%s\nFIPS 140-3: %s\n",
		programName, cmp.Or(v, "unknown"), cmp.Or(c, "unknown"), modified,
		runtime.Version(), runtime.GOOS, runtime.GOARCH, fipsMode())
}

// fipsMode says whether the cryptography is FIPS 140-3's, and of which version of Go's
// module. GODEBUG=fips140 can change the mode that the program was built for.
func fipsMode() string {
	switch {
	case !fips140.Enabled():
		return "off"
	case fips140.Enforced():
		return "on, nothing else is allowed, Go Cryptographic Module " + fips140.Version()
	}
	return "on, Go Cryptographic Module " + fips140.Version()
}
