package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestAnEndThatIsToldAgainPushesNoOtherOut(t *testing.T) {
	t.Parallel()
	c, at := newCancelledChanges(), time.Now()
	end := func(change string, at time.Time) notice.Notice {
		return notice.Notice{Kind: notice.ScheduledChange, Change: change, Time: at, Ended: true}
	}
	announced := func(change string, at time.Time) notice.Notice {
		return notice.Notice{Kind: notice.ScheduledChange, Change: change, Time: at}
	}
	c.add(end("first", at), theID)
	for k := range 100 {
		c.add(end("again", at.Add(-time.Duration(k)*time.Second)), theID) // the newest comes first
	}
	if !c.has(announced("first", at), theID) || !c.has(announced("again", at), theID) {
		t.Error("an announcement is not known to be called off")
	}
	if c.has(announced("again", at.Add(time.Second)), theID) || c.has(announced("first", at), "another instance") {
		t.Error("an announcement counts as called off that is not")
	}
	for k := range 100 { // ever new ones are bounded
		c.add(end(fmt.Sprint("new-", k), at), theID)
	}
	if n := len(c.of(theID)); n != 16 {
		t.Errorf("%d ends are remembered", n)
	}
}
