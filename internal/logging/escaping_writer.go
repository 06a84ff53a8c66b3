package logging

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// escapingWriter writes each entry of a log as one line without control characters: any
// character that is not graphic is written as in JSON, \u001b, except the line's end. In the
// strings of JSON that changes nothing.
type escapingWriter struct{ to io.Writer }

// Write implements io.Writer. Each call is one entry, with its line's end.
func (w escapingWriter) Write(entry []byte) (int, error) {
	line := make([]byte, 0, len(entry))
	for rest := entry; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		lineEnd := r == '\n' && len(rest) == 1
		switch {
		case r == utf8.RuneError && size == 1:
			line = append(line, `\ufffd`...)
		case unicode.IsGraphic(r) || r == '\t' || lineEnd:
			line = append(line, rest[:size]...)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			line = fmt.Appendf(line, `\u%04x\u%04x`, first, second)
		default:
			line = fmt.Appendf(line, `\u%04x`, r)
		}
		rest = rest[size:]
	}
	if _, err := w.to.Write(line); err != nil {
		return 0, err
	}
	return len(entry), nil
}
