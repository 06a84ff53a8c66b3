package page

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Source knows what the page shows. Its methods may be called concurrently.
type Source interface {
	// Overview returns what is in progress. It returns a [Standby] if this replica does not lead; another
	// error is shown as it is.
	Overview(ctx context.Context) (overview.Overview, error)
	// History returns what has happened. Its errors are those of Overview.
	History(ctx context.Context) (overview.History, error)
}

// A Standby is the error of a Source that does not know, because its replica does not lead.
type Standby struct {
	Leader  string // the name of the pod that leads; empty: none, or it is not known
	Reports bool   // this pod only reports what the metadata of its node tells
}

// Error says who leads.
func (s Standby) Error() string {
	switch {
	case s.Reports:
		return "this pod reports what the metadata of its node tells: the leader knows what is in progress"
	case s.Leader == "":
		return "this replica stands by: the leader knows what is in progress"
	}
	return "this replica stands by: the leader, " + s.Leader + ", knows what is in progress"
}

// A Paused is the error of a Source that does nothing, because the handler is paused.
type Paused struct {
	Why string // empty: nobody has said
}

// Error says so.
func (p Paused) Error() string { return overview.PausedText(p.Why) }

const (
	// refreshes is the time between refreshes in a browser. The shortest usual deadline is two minutes.
	refreshes = 5 * time.Second
	// patience is how long a Source may take.
	patience = 5 * time.Second
)

// A HandlerOptions says what the page of a Handler tells beside its Source.
type HandlerOptions struct {
	Version   string
	Namespace string // of the pods; empty: it is not said
	Port      int    // on which the handler is served; 0: it is not said
}

// Handler serves the page, and a small page with the status 503 where the Source has no overview. It answers the
// path that it is registered for, and writes nothing: register it for "GET /{$}". It makes a page for each request, in
// five seconds at most.
func Handler(source Source, opts HandlerOptions) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, b := http.StatusOK, bytes.Buffer{}
		o, past, err := look(r.Context(), source)
		if err == nil {
			err = Render(&b, o, past, Options{Refresh: refreshes, Version: opts.Version})
		} else {
			status = http.StatusServiceUnavailable
			err = templates.ExecuteTemplate(&b, "standby", newStandby(err, opts))
		}
		if err != nil { // a template that fails is a mistake of ours, which the tests would find
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", Policy)
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = b.WriteTo(w) // the reader may have left
	})
}

func look(ctx context.Context, source Source) (o overview.Overview, past overview.History, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if o, err = source.Overview(ctx); err == nil {
		past, err = source.History(ctx)
	}
	return o, past, err
}

// A standby is the page of a replica that has nothing to show.
type standby struct {
	frame

	Heading, Text, Leader, Namespace, Port string
}

func newStandby(why error, opts HandlerOptions) standby {
	s := standby{Heading: "This replica stands by", Text: "Another replica leads, and has the page."}
	other, is := errors.AsType[Standby](why)
	switch {
	case errors.As(why, new(Paused)):
		s.Heading, s.Text = "The handler is paused", shown(why.Error())
	case !is:
		s.Heading, s.Text = "The overview is not to be had", shown(why.Error())
	case other.Reports:
		s.Heading, s.Text = "This pod reports", "It reports what the metadata of its node says. The leader has the page."
	case other.Leader == "":
		s.Text = "Nobody is known to lead. The replicas elect a leader within seconds."
	default:
		s.Leader, s.Namespace = shown(other.Leader), shown(opts.Namespace)
	}
	if opts.Port != 0 {
		s.Port = strconv.Itoa(opts.Port)
	}
	s.frame = newFrame(s.Heading+" · node-termination-handler", s.Heading+".",
		Options{Refresh: refreshes, Version: opts.Version})
	return s
}
