package main

import (
	"cmp"
	"context"
	_ "embed" // what is asked of the page
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

//go:embed ask.js
var ask string

// A sight is what was seen.
type sight struct {
	Status   int64          `json:"status"`   // of the first answer; 0 for a file
	Title    string         `json:"title"`    // of the document
	Errors   []string       `json:"errors"`   // of the console, scripts and policies
	Requests []string       `json:"requests"` // addresses, sorted
	Count    map[string]int `json:"count"`    // elements, by the names that were given
	Harmed   bool           `json:"harmed"`   // window.harmed is set
	Schemes  []scheme       `json:"schemes"`  // light and dark, wide and narrow

	Roles    map[string]int `json:"roles"`    // in the tree for screen readers
	Unnamed  []string       `json:"unnamed"`  // what should have a name there, and has none
	Headings []int          `json:"headings"` // their levels, in their order
	Language string         `json:"language"`

	Tabs       int      `json:"tabs"`       // different elements that the tab key gets to, of the first fifty tries
	NoOutline  []string `json:"noOutline"`  // those of them that do not show that they have the focus
	Refreshed  bool     `json:"refreshed"`  // in place, without a new document
	KeptFocus  bool     `json:"keptFocus"`  // the refresh has left it where it was
	KeptOpen   bool     `json:"keptOpen"`   // and what was opened
	Pauses     bool     `json:"pauses"`     // the button has stopped it
	LiveRegion string   `json:"liveRegion"` // what the polite region says
}

// A scheme is the page in one of the ways in which it can be shown.
type scheme struct {
	Name     string  `json:"name"`
	Text     least   `json:"text"`     // contrast of text with what is behind it
	Graphics least   `json:"graphics"` // contrast of shapes with the page
	Overflow float64 `json:"overflow"` // pixels that the page is wider than the window
}

// A least is the lowest contrast, and where it is.
type least struct {
	Ratio float64 `json:"ratio"`
	Of    int     `json:"of"` // so many
	Where string  `json:"where"`
}

// ways are how a page is shown.
var ways = []struct {
	name, colours, picture string
	width, height          int64
}{
	{"light", "light", "light.png", 1280, 1300},
	{"dark", "dark", "dark.png", 1280, 1300},
	{"phone", "light", "phone.png", 360, 740},
	{"phone, dark", "dark", "", 360, 740},
}

// A watcher collects what the browser reports.
type watcher struct {
	mu     sync.Mutex
	sight  *sight
	asked  map[string]bool
	frames int
}

func (w *watcher) event(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	problem := func(format string, args ...any) {
		w.sight.Errors = append(w.sight.Errors, fmt.Sprintf(format, args...))
	}
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		w.asked[e.Request.URL] = true
	case *network.EventResponseReceived:
		if e.Type == network.ResourceTypeDocument && w.sight.Status == 0 {
			w.sight.Status = e.Response.Status
		}
	case *runtime.EventExceptionThrown:
		problem("exception: %s", e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		problem("console.%s", e.Type)
	case *log.EventEntryAdded:
		// That an answer was not 200 is for who reads the status.
		if e.Entry.Source != log.SourceNetwork {
			problem("%s: %s: %s", e.Entry.Source, e.Entry.Level, e.Entry.Text)
		}
	case *page.EventFrameNavigated:
		w.frames++
	}
}

// says is what the polite region says.
const says = `((document.querySelector("[aria-live]") || {}).textContent || "")`

// quoted is a text in JavaScript.
func quoted(text string) string {
	literal, _ := json.Marshal(text) // no string fails
	return string(literal)
}

func look(ctx context.Context, o options) (*sight, error) {
	settings := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(o.program), chromedp.Flag("headless", "new"), chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		settings = append(settings, chromedp.NoSandbox)
	}
	ctx, cancel := chromedp.NewExecAllocator(ctx, settings...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()

	seen := &sight{
		Errors: []string{}, Count: map[string]int{}, Roles: map[string]int{}, Unnamed: []string{}, NoOutline: []string{},
	}
	w := &watcher{sight: seen, asked: map[string]bool{}}
	chromedp.ListenTarget(ctx, w.event)
	err := chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable(), page.Enable(),
		chromedp.Navigate(o.url), chromedp.WaitReady("main"), chromedp.Evaluate(ask, nil),
		chromedp.Poll(says+".startsWith("+quoted(o.says)+")", nil, chromedp.WithPollingTimeout(time.Minute)),
		chromedp.Title(&seen.Title), chromedp.Evaluate(`document.documentElement.lang`, &seen.Language),
		chromedp.Evaluate(says, &seen.LiveRegion))
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, options, *sight) error{count, show, hear, walk, refresh} {
		if err := step(ctx, o, seen); err != nil {
			return nil, err
		}
	}
	if err := chromedp.Run(ctx, chromedp.Evaluate(`"harmed" in window`, &seen.Harmed)); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.frames != 1 {
		seen.Errors = append(seen.Errors, fmt.Sprintf("documents: %d were loaded", w.frames))
	}
	seen.Requests = slices.Sorted(maps.Keys(w.asked))
	return seen, nil
}

func count(ctx context.Context, o options, seen *sight) error {
	for name, selector := range o.count {
		var n int
		query := "document.querySelectorAll(" + quoted(selector) + ").length"
		if err := chromedp.Run(ctx, chromedp.Evaluate(query, &n)); err != nil {
			return fmt.Errorf("count %s: %w", selector, err)
		}
		seen.Count[name] = n
	}
	return nil
}

// show shows the page in each way, measures it, and takes its pictures.
func show(ctx context.Context, o options, seen *sight) error {
	for _, w := range ways {
		s := scheme{Name: w.name}
		err := chromedp.Run(ctx,
			emulation.SetDeviceMetricsOverride(w.width, w.height, 1, w.width < 500),
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: w.colours},
			}),
			chromedp.Evaluate(`askText()`, &s.Text), chromedp.Evaluate(`askGraphics()`, &s.Graphics),
			chromedp.Evaluate(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &s.Overflow))
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		seen.Schemes = append(seen.Schemes, s)
		if o.pictures == "" || w.picture == "" {
			continue
		}
		if err := take(ctx, o.at, filepath.Join(o.pictures, w.picture)); err != nil {
			return fmt.Errorf("picture %s: %w", w.name, err)
		}
	}
	return chromedp.Run(ctx, emulation.SetDeviceMetricsOverride(1280, 900, 1, false))
}

// take takes a picture that begins with an element; an empty selector: with the page.
func take(ctx context.Context, at, path string) error {
	selector, err := json.Marshal(cmp.Or(at, "body"))
	if err != nil {
		return err
	}
	var picture []byte
	err = chromedp.Run(ctx, chromedp.Evaluate(`document.querySelector(`+string(selector)+`).scrollIntoView()`, nil),
		chromedp.CaptureScreenshot(&picture))
	if err != nil {
		return err
	}
	if picture, err = small(picture); err != nil {
		return err
	}
	return os.WriteFile(path, picture, 0o600)
}

// named are the roles that say nothing without a name.
var named = []string{
	"button", "link", "table", "image", "img", "graphics-document", "heading", "region", "navigation", "columnheader",
}

// hear asks what a screen reader is told.
func hear(ctx context.Context, _ options, seen *sight) error {
	var tree []*accessibility.Node
	err := chromedp.Run(ctx, accessibility.Enable(), chromedp.ActionFunc(func(ctx context.Context) (err error) {
		tree, err = accessibility.GetFullAXTree().Do(ctx)
		return err
	}), accessibility.Disable())
	if err != nil {
		return fmt.Errorf("accessibility: %w", err)
	}
	for _, n := range tree {
		role := text(n.Role)
		if n.Ignored || role == "" {
			continue
		}
		seen.Roles[role]++
		if slices.Contains(named, role) && text(n.Name) == "" {
			seen.Unnamed = append(seen.Unnamed, role)
		}
		for _, p := range n.Properties {
			if role == "heading" && p.Name == accessibility.PropertyNameLevel {
				var level int
				if err := json.Unmarshal(p.Value.Value, &level); err != nil {
					return err
				}
				seen.Headings = append(seen.Headings, level)
			}
		}
	}
	return nil
}

func text(v *accessibility.Value) string {
	var s string
	if v == nil || json.Unmarshal(v.Value, &s) != nil {
		return ""
	}
	return s
}

// walk presses the tab key.
func walk(ctx context.Context, _ options, seen *sight) error {
	met := map[string]bool{}
	for range 50 {
		var at struct {
			Which   string
			Outline bool
		}
		if err := chromedp.Run(ctx, chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`askFocus()`, &at)); err != nil {
			return fmt.Errorf("tab: %w", err)
		}
		if at.Which == "" || met[at.Which] {
			break
		}
		met[at.Which] = true
		if !at.Outline {
			seen.NoOutline = append(seen.NoOutline, at.Which)
		}
	}
	seen.Tabs = len(met)
	return nil
}

const (
	// isNew is a question to the page: whether it has refreshed itself since it was marked as old.
	isNew = `!document.querySelector("main").dataset.old`
	// paused is longer than the time between refreshes.
	paused = 8 * time.Second
)

// refresh waits for a refresh, and then stops the next ones.
func refresh(ctx context.Context, o options, seen *sight) error {
	if !o.refresh {
		return nil
	}
	var before, after struct {
		Focus  string
		Open   bool
		Marked bool
	}
	if err := chromedp.Run(ctx, chromedp.Evaluate(`askBefore()`, &before)); err != nil {
		return fmt.Errorf("before the refresh: %w", err)
	}
	err := chromedp.Run(ctx, chromedp.Poll(isNew, nil, chromedp.WithPollingTimeout(time.Minute)),
		chromedp.Evaluate(`askAfter()`, &after))
	if err != nil {
		return fmt.Errorf("refresh: %w", err)
	}
	seen.Refreshed, seen.KeptOpen = after.Marked, after.Open == before.Open
	seen.KeptFocus = after.Focus == before.Focus
	var pressed string
	err = chromedp.Run(ctx, chromedp.Focus("#pause"), chromedp.KeyEvent(kb.Enter),
		chromedp.Evaluate(`document.querySelector("#pause").getAttribute("aria-pressed")`, &pressed),
		chromedp.Evaluate(`document.querySelector("main").dataset.old = "1"`, nil))
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	err = chromedp.Run(ctx, chromedp.Poll(isNew, nil, chromedp.WithPollingTimeout(paused)))
	if err != nil && !errors.Is(err, chromedp.ErrPollingTimeout) {
		return fmt.Errorf("pause: %w", err)
	}
	seen.Pauses = pressed == "true" && err != nil
	return nil
}
