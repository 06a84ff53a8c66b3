package main

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestALongOptionIsShortInTheLog(t *testing.T) {
	for _, text := range []string{"cluster", strings.Repeat("x", 198)} {
		if got := shortened(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, text := range []string{strings.Repeat("x", 199), strings.Repeat(`"`, 1000), strings.Repeat("ü", 1000), strings.Repeat("\x00", 1000)} {
		got := shortened(text)
		kept, cut := strings.CutSuffix(got, "…")
		if !cut || kept == "" || !strings.HasPrefix(text, kept) || !utf8.ValidString(got) || len(strconv.Quote(got)) > 210 {
			t.Errorf("%d bytes became %q", len(text), got)
		}
	}
}
