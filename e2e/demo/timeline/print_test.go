package timeline

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestColumnsAreAligned(t *testing.T) {
	var out strings.Builder
	p := Printer{Out: &out}
	p.Heading("EC2 Spot Instance Interruption Warning")
	for _, r := range []Row{
		{Kind: NoticeSent, Left: 120 * time.Second, What: "i-0123456789abcdef0", Where: "on node-a"},
		{Kind: PodEvicted, Since: 250 * time.Millisecond, Left: 119750 * time.Millisecond, What: "web-1", Where: "from node-a"},
		{Kind: MessageDeleted, Since: 1234 * time.Second, Left: -1114 * time.Second, What: "38ffff68-2123-408a-acfc-572dc29cb1fd"},
	} {
		p.Row(r)
	}
	p.End("1 notice")
	want := `
EC2 Spot Instance Interruption Warning
   since      left  event
   0.0 s   120.0 s  notice sent      i-0123456789abcdef0                   on node-a
   0.2 s   119.8 s  pod evicted      web-1                                 from node-a
  1234 s   -1114 s  message deleted  38ffff68-2123-408a-acfc-572dc29cb1fd

1 notice
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestColourIsPaintOnly(t *testing.T) {
	rows := []Row{{Kind: NodeCordoned, What: "a"}, {Kind: PodEvicted, What: "p"}, {Kind: PodReady, What: "q", Where: "on b"}}
	printed := func(colour bool) string {
		var out strings.Builder
		p := Printer{Out: &out, Colour: colour}
		p.Heading("heading")
		for _, r := range rows {
			p.Row(r)
		}
		return out.String()
	}
	painted := printed(true)
	if !strings.Contains(painted, "\x1b[36mnode cordoned  \x1b[0m") {
		t.Errorf("no colour in %q", painted)
	}
	for _, code := range []string{bold, cyan, green, "0"} {
		painted = strings.ReplaceAll(painted, "\x1b["+code+"m", "")
	}
	if diff := cmp.Diff(printed(false), painted); diff != "" {
		t.Errorf("without its escape sequences (-plain +painted):\n%s", diff)
	}
}

func TestNoNameIsCut(t *testing.T) {
	var out strings.Builder
	p := Printer{Out: &out}
	pod, node := "kube-system/"+strings.Repeat("p", 63), "ip-10-0-123-231.eu-central-1.compute.internal"
	p.Heading(node)
	p.Row(Row{Kind: PodReady, Since: 48 * time.Hour, Left: -2 * time.Hour, What: pod, Where: "on " + node})
	p.End(node)
	if got := out.String(); strings.Count(got, node) != 3 || !strings.Contains(got, pod) {
		t.Errorf("names are cut:\n%s", got)
	}
}

func TestEveryKindOfRowHasItsWords(t *testing.T) {
	for kind := NoticeSent; kind <= LeaderElected; kind++ {
		if kind != PodGone && words[kind].text == "" { // PodGone is no row
			t.Errorf("kind %d has no words", kind)
		}
		if len(words[kind].text) > eventWidth {
			t.Errorf("%q is wider than its column", words[kind].text)
		}
	}
}
