// Package page shows an overview and a history as one page of HTML: the drains in progress as swim lanes against
// their deadlines, what blocks them, and the last day as dots of slack. It needs nothing but itself: no other
// file, no font and no picture is loaded, and its policy ([Policy]) lets none be loaded.
//
// Names and sentences in the data are of others: pods, nodes, budgets, webhooks. They are text here, and nothing else.
package page

import (
	"crypto/sha256"
	_ "embed" // the template, the style sheet and the script
	"encoding/base64"
	"html/template"
	"io"
	"strconv"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

var (
	//go:embed page.html
	source string
	//go:embed page.css
	style string
	//go:embed page.js
	script string

	templates = template.Must(template.New("page").Parse(source))
)

// Policy is the Content-Security-Policy of the page: it may ask its own server for itself, with the one script that
// it has, and can do nothing else. A page of a file has the same policy, in an element.
var Policy = policy + "; frame-ancestors 'none'"

// policy has no frame-ancestors, which an element cannot say.
var policy = "default-src 'none'; style-src '" + hash(style) + "'; script-src '" + hash(script) +
	"'; connect-src 'self'; base-uri 'none'; form-action 'none'"

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Options say what kind of page it is.
type Options struct {
	// Refresh is the time between refreshes of a page in a browser; 0: it is a file, and stays as it is.
	Refresh time.Duration
	// Version of the program; empty: it is not shown.
	Version string
}

// Render writes the page. It is as large as what it shows: at most some 500 lanes and 500 episodes, see docs/page.md.
// An error is that of w.
func Render(w io.Writer, o overview.Overview, h overview.History, opts Options) error {
	return templates.ExecuteTemplate(w, "page", newView(o, h, opts))
}

// frame is what each page has.
type frame struct {
	Title   string
	Policy  string
	Style   template.CSS
	Script  template.JS
	Refresh string // seconds; empty: never
	Version string
	Summary string // in one sentence, for who cannot see the page change
}

//nolint:gosec // they are constants of ours
func newFrame(title, summary string, opts Options) frame {
	f := frame{Title: title, Policy: policy, Style: template.CSS(style), Version: shown(opts.Version), Summary: summary}
	if opts.Refresh > 0 {
		f.Refresh = strconv.Itoa(max(int(opts.Refresh/time.Second), 1))
		f.Script = template.JS(script)
	}
	return f
}
