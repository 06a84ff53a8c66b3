package tool

import (
	"io"
	"slices"
)

// An Origin says whose options a tool goes by.
type Origin struct {
	release *Release // nil: none
	why     string   // why there is none
	notes   []string // what else one has to know about the options
}

// note adds a note, once.
func (o *Origin) note(text string) {
	if !slices.Contains(o.notes, text) {
		o.notes = append(o.notes, text)
	}
}

// describe names whose options count.
func (o *Origin) describe() string {
	if o.release != nil {
		return "options of " + o.release.String()
	}
	return "options of the command line and the environment (" + o.why + ")"
}

// An identity is who asks AWS, empty if nobody does, and Kubernetes.
type identity struct{ aws, kubernetes string }

// line names whose options, identity and rights a tool goes by.
func (o *Origin) line(s identity) string {
	text := "With the " + o.describe()
	if s.aws != "" {
		text += "; in AWS as " + s.aws
	}
	return text + "; in Kubernetes with the rights of " + s.kubernetes
}

// writeWith writes the line and the notes.
func (o *Origin) writeWith(w io.Writer, s identity) error {
	return o.writeLine(w, o.line(s))
}

// Write writes whose options count, and the notes, for a tool that itself says who asks.
func (o *Origin) Write(w io.Writer) error {
	return o.writeLine(w, "With the "+o.describe())
}

func (o *Origin) writeLine(w io.Writer, line string) error {
	text := line + ".\n"
	for _, note := range o.notes {
		text += "Note: " + note + ".\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// An originReport is an Origin for programs.
type originReport struct {
	Options    string   `json:"options"`
	AWS        string   `json:"aws,omitempty"`
	Kubernetes string   `json:"kubernetes"`
	Notes      []string `json:"notes"`
}

func (s *Session) originReport() originReport {
	return originReport{s.origin.describe(), s.identity.aws, s.identity.kubernetes, orEmpty(s.origin.notes)}
}
