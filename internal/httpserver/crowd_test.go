package httpserver

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// named is a connection of the crowd by its name, whose first letter is its address.
func named(c *crowd, name string) *member {
	end, _ := net.Pipe()
	m := &member{Conn: end, crowd: c, address: netip.AddrFrom4([4]byte{10, 0, 0, name[0]})}
	return m
}

func TestANewConnectionTakesThePlaceOfTheOldestOfWhoHasMost(t *testing.T) {
	for name, test := range map[string]struct {
		come string // in this order; -a1 leaves
		gone string
	}{
		"there is room":                     {"a1 a2 b1 c1", ""},
		"one has most":                      {"a1 b1 b2 c1 d1", "b1"},
		"who has most comes again":          {"a1 b1 b2 b3 b4 b5", "b1 b2"},
		"all have as many":                  {"a1 b1 c1 d1 e1 f1", "a1 b1"},
		"all are of one":                    {"a1 a2 a3 a4 a5", "a1"},
		"the newcomer is not one of many":   {"a1 a2 a3 a4 b1 b2 b3", "a1 a2 a3"},
		"one has left":                      {"a1 a2 b1 b2 -a1 c1 d1", "b1"},
		"one leaves after it was displaced": {"a1 a2 b1 c1 d1 -a1 e1", "a1 a2"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(4, func(netip.Addr) {})
			all := map[string]*member{}
			var gone []string
			for name := range strings.FieldsSeq(test.come) {
				if left, ok := strings.CutPrefix(name, "-"); ok {
					_ = all[left].Close()
					continue
				}
				all[name] = named(c, name)
				displaced, _ := c.join(all[name])
				for name, m := range all {
					if m == displaced {
						gone = append(gone, name)
					}
				}
			}
			if diff := cmp.Diff(test.gone, strings.Join(gone, " ")); diff != "" {
				t.Errorf("closed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFullPortIsToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		c := newCrowd(1, func(from netip.Addr) {
			told++
			if want := netip.AddrFrom4([4]byte{10, 0, 0, 'a'}); from != want {
				t.Errorf("it is told of %s", from)
			}
		})
		for range 3 * 60 {
			c.join(named(c, "a"))
			time.Sleep(time.Second)
		}
		if told != 3 {
			t.Errorf("it is told %d times in three minutes", told)
		}
	})
}
