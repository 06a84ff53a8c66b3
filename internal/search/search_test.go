package search

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

func TestTheLongestPauseIsThatOfTheSearch(t *testing.T) {
	for longest, want := range map[time.Duration]time.Duration{0: LongestPause, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			r := Rounds{Longest: longest}
			for range 8 {
				r.Ended(logr.Discard(), "hooks", errors.New("no answer"), "")
			}
			began := time.Now()
			err := r.Wait(t.Context(), 30*time.Second)
			if pause := time.Since(began); err != nil || pause < want*8/10 || pause > want*12/10 {
				t.Errorf("longest %s: a pause of %s, %v", longest, pause, err)
			}
		})
	}
}

func TestWhatIsNotFoundIsToldWithTheLatestReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Rounds
		began := time.Now().UTC().Format("since 2006-01-02 15:04:05Z")
		for _, why := range []string{"no answer", "AccessDenied"} {
			r.Ended(logr.Discard(), "hooks", errors.New(why), "")
			if text := r.Unseen(); !strings.HasPrefix(text, "hooks, "+began) || !strings.HasSuffix(text, ": "+why) {
				t.Errorf("%q, want %s, %s", text, began, why)
			}
			time.Sleep(time.Minute)
		}
		if r.Ended(logr.Discard(), "hooks", nil, ""); r.Unseen() != "" {
			t.Errorf("after the end: %s", r.Unseen())
		}
	})
}
