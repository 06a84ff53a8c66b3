package apart

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

func TestDoReturnsAfterWhatItCalls(t *testing.T) {
	ended := false
	Do(func() { ended = true })
	if !ended {
		t.Error("it returned before")
	}
}

func TestAPanicIsTheCallers(t *testing.T) {
	for name, test := range map[string]struct {
		do   func()
		want []string
	}{
		"panic":  {func() { fails() }, []string{"it fails", "apart.fails"}},
		"Goexit": {runtime.Goexit, []string{"has ended itself"}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				p := fmt.Sprint(recover())
				for _, want := range test.want {
					if !strings.Contains(p, want) {
						t.Errorf("the panic %q lacks %q", p, want)
					}
				}
			}()
			Do(test.do)
			t.Error("it returned")
		})
	}
}

func fails() { panic("it fails") }

// The stack of who waits stays small.
func TestTheStackIsFreeAfterwards(t *testing.T) {
	const waiting = 1000
	measure := func(call func(func())) uint64 {
		release := make(chan struct{})
		defer close(release)
		ready := make(chan struct{})
		for range waiting {
			go func() {
				call(func() { deep(20) })
				ready <- struct{}{}
				<-release
			}()
		}
		for range waiting {
			<-ready
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse / waiting
	}
	apart := measure(Do)
	here := measure(func(do func()) { do() })
	if apart*2 > here {
		t.Errorf("a goroutine that waits has %d bytes of stack, and %d if it did the work itself", apart, here)
	}
}

//go:noinline
func deep(n int) (sum byte) {
	var frame [1 << 10]byte
	frame[n] = 1
	if n > 0 {
		sum = deep(n - 1)
	}
	return sum + frame[n]
}
