package notice

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
)

func TestEveryBodyGivesItsNotice(t *testing.T) {
	got := map[string]Notice{}
	for name, body := range bodies(t) {
		n, err := Parse(body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got[name] = n
	}
	text, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join("testdata", "notices.golden.json"), string(text)+"\n")
}

func TestWhatCannotBeActedOnIsAnErrorThatSaysWhatIsWrong(t *testing.T) {
	event := func(detailType, detail string) string {
		return `{"source":"aws.ec2","detail-type":"` + detailType + `","time":"2026-11-20T10:15:30Z","detail":` + detail + `}`
	}
	for name, tt := range map[string]struct{ body, want string }{
		"empty":              {"", "the body is empty"},
		"blank":              {" \n", "the body is empty"},
		"not JSON":           {"hello", "not the JSON of an event"},
		"an array":           {"[]", "not the JSON of an event"},
		"JSON of no event":   {`{"a":1}`, "neither an EventBridge event nor an Auto Scaling notification"},
		"no detail":          {`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning"}`, "detail is missing"},
		"id is a path":       {event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-../../nodes"}`), `detail.instance-id is "i-../../nodes", not an instance id`},
		"id in upper case":   {event("EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0123456789ABCDEF0"}`), "not an instance id"},
		"id too long":        {event("EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0123456789abcdef01"}`), "not an instance id"},
		"id with a newline":  {event("EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0123456789abcdef\n"}`), "not an instance id"},
		"stopping whom":      {event("EC2 Instance State-change Notification", `{"state":"stopping"}`), `detail.instance-id is missing`},
		"id is a number":     {event("EC2 Instance Rebalance Recommendation", `{"instance-id":7}`), "detail: json"},
		"larger than any":    {strings.Repeat(" ", bodyLimit) + "{}", "the body has 524290 bytes: no event of AWS has more than 524288"},
		"SNS around nothing": {`{"Type":"Notification","Message":"hello"}`, "the SNS notification's Message: the body is not the JSON"},
		"id is a selector":   {event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0123456789abcdef0,kubernetes.io/os=linux"}`), "not an instance id"},
		"id is a wildcard":   {event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-*"}`), "not an instance id"},
		"no reservation":     {event("Capacity Block Expiration Warning", `{"end-date":"2026-11-20T11:30:00Z"}`), `detail.capacity-reservation-id is "", not the id of a Capacity Reservation`},
		"a reservation of *": {event("Capacity Block Expiration Warning", `{"capacity-reservation-id":"cr-*"}`), "not the id of a Capacity Reservation"},
		"whose reservation":  {event("EC2 Capacity Reservation Instance Interruption Warning", `{"instance-action":"terminate"}`), `detail.instance-id is missing`},
		"a bus of nothing":   {`{"Data":"hello","SystemMetadata":{"aws:Source":"aws.ec2","aws:DeliveryType":"LIVE"}}`, "the Data of the event bus: the body is not the JSON"},
		"a bus of no system": {`{"Data":{},"SystemMetadata":7}`, "the SystemMetadata of the event bus: json"},
		"deeply nested":      {event("EC2 Instance Rebalance Recommendation", strings.Repeat("[", 20000)+strings.Repeat("]", 20000)), "not the JSON of an event"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Parse(tt.body)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse = %+v, %v; want an error with %q", n, err, tt.want)
			}
		})
	}
}

// Auto Scaling refuses a completion with a field that it does not take: the body is
// refused instead of the call, again and again.
func TestHooksAreTakenAsAutoScalingTakesThem(t *testing.T) {
	const token = "f2a5c0a1-6d3f-4b6a-9b62-000000000001"
	const names = "LifecycleHookName is %q, not 1 to 255 letters of ASCII, digits, -, _ and /"
	const groups = "AutoScalingGroupName is %q, not 1 to 255 printable characters"
	const tokens = "LifecycleActionToken is %q, not the 36 characters of a UUID"
	for name, tt := range map[string]struct{ group, hook, token, want string }{
		"all of them":                    {`nodes.my-cluster.example.com "a"`, "Drain_it/2-now", token, ""},
		"the longest names":              {strings.Repeat("g", 255), strings.Repeat("h", 255), token, ""},
		"255 characters of three bytes":  {strings.Repeat("界", 255), "h", token, ""},
		"a token in upper case":          {"g", "h", strings.ToUpper(token), ""},
		"no token":                       {"g", "h", "", ""},
		"no group":                       {"", "h", token, "AutoScalingGroupName is missing"},
		"no hook":                        {"g", "", token, "LifecycleHookName is missing"},
		"a hook too long":                {"g", strings.Repeat("h", 256), token, fmt.Sprintf(names, strings.Repeat("h", 256))},
		"a hook with a space":            {"g", "my hook", token, fmt.Sprintf(names, "my hook")},
		"a hook that steers a terminal":  {"g", "\x1b[2J", token, fmt.Sprintf(names, "[2J")},
		"a hook of other letters":        {"g", "dräin", token, fmt.Sprintf(names, "dräin")},
		"a group too long":               {strings.Repeat("界", 256), "h", token, fmt.Sprintf(groups, strings.Repeat("界", 85))},
		"a group with a newline":         {"g\nlevel=error", "h", token, fmt.Sprintf(groups, "glevel=error")},
		"a group that turns text around": {"g\u202etxt.exe", "h", token, fmt.Sprintf(groups, "gtxt.exe")},
		"a group that isolates text":     {"g\u2067", "h", token, fmt.Sprintf(groups, "g")},
		"a group that ends its line":     {"g\u2028h", "h", token, fmt.Sprintf(groups, "gh")},
		"a token that is none":           {"g", "h", "token-1", fmt.Sprintf(tokens, "token-1")},
		"a token too long":               {"g", "h", token + "0", fmt.Sprintf(tokens, token+"0")},
	} {
		t.Run(name, func(t *testing.T) {
			for _, transition := range []string{"TERMINATING", "LAUNCHING"} {
				body, err := json.Marshal(map[string]string{
					"LifecycleTransition": "autoscaling:EC2_INSTANCE_" + transition, "EC2InstanceId": "i-0123456789abcdef0",
					"AutoScalingGroupName": tt.group, "LifecycleHookName": tt.hook, "LifecycleActionToken": tt.token,
				})
				if err != nil {
					t.Fatal(err)
				}
				n, err := Parse(string(body))
				if got := fmt.Sprint(err); tt.want != "" && got != tt.want {
					t.Errorf("%s: %s; want %s", transition, got, tt.want)
				}
				if want := (Hook{Group: tt.group, Name: tt.hook, Token: tt.token}); tt.want == "" && (err != nil || n.Hook != want) {
					t.Errorf("%s: %+v, %v; want %+v", transition, n.Hook, err, want)
				}
			}
		})
	}
}

// What others send that AWS Node Termination Handler reads too.
func TestATestOfAHooksTargetIsNoNotice(t *testing.T) {
	const envelope = `{"id":"782d5b4c-0f6f-1fd6-9d62-ecf6aed0a470","source":"aws.autoscaling","detail-type":"EC2 Instance-terminate Lifecycle Action","time":"2026-11-20T10:15:30Z","detail":%s}`
	const event, transition = `"Event":"autoscaling:TEST_NOTIFICATION"`, `"LifecycleTransition":"autoscaling:TEST_NOTIFICATION"`
	for _, detail := range []string{"{" + event + "}", "{" + transition + "}", "{" + event + "," + transition + `,"AutoScalingGroupName":"g"}`} {
		for _, body := range []string{detail, fmt.Sprintf(envelope, detail)} {
			if n, err := Parse(body); err != nil || !cmp.Equal(n, Notice{Ignored: TestNotification}) {
				t.Errorf("Parse(%s) = %+v, %v; want %s", body, n, err, TestNotification)
			}
		}
	}
}

func TestAMessageWithoutATypeIsReadAsThatOfSNS(t *testing.T) {
	for name, body := range bodies(t) {
		if strings.HasPrefix(name, "sns-") || strings.HasSuffix(name, "-through-sns") {
			continue
		}
		want, err := Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		wrapped, err := json.Marshal(map[string]string{"Message": body})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := Parse(string(wrapped)); err != nil || !cmp.Equal(n, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, n, err, want)
		}
	}
}

// health is a scheduled change with edits of the detail and of the envelope.
func health(t *testing.T, edits ...string) string {
	t.Helper()
	return strings.NewReplacer(edits...).Replace(bodies(t)["health-retirement-two-instances"])
}

const healthEntities = `"affectedEntities": [`

func TestAHealthEventIsReadHoweverItsFieldsAreWritten(t *testing.T) {
	const one, two = "i-0123456789abcdef0", "i-0fedcba9876543210"
	const arn = "arn:aws:ec2:us-east-1:123456789012:instance/"
	const resources = "\"resources\": [\n    \"" + one + "\",\n    \"" + two + "\"\n  ],"
	noEntity := []string{`"entityValue": "` + one + `"`, `"entityValue": "vol-0123456789abcdef0"`, `"entityValue": "` + two + `"`, `"entityValue": "UNKNOWN"`}
	with := func(edits ...string) []string { return append(edits, noEntity...) }
	for name, tt := range map[string]struct {
		edits []string
		want  []string // nil: ignored
	}{
		"as it is":                           {nil, []string{one, two}},
		"an ARN and an id":                   {[]string{`"entityValue": "` + one, `"entityValue": "` + arn + one}, []string{one, two}},
		"an ARN of China":                    {[]string{`"entityValue": "` + one, `"entityValue": "arn:aws-cn:ec2:cn-north-1:123456789012:instance/` + one}, []string{one, two}},
		"an ARN that names another thing":    {[]string{`"entityValue": "` + one, `"entityValue": "arn:aws:ec2:us-east-1:123456789012:volume/` + one}, []string{two}},
		"an ARN with more than an id":        {[]string{`"entityValue": "` + one, `"entityValue": "` + arn + one + "/x"}, []string{two}},
		"the same instance twice":            {[]string{`"entityValue": "` + two, `"entityValue": "` + arn + one}, []string{one}},
		"ids in the resources alone":         {with(), []string{one, two}},
		"ARNs in the resources alone":        {with(resources, `"resources": ["`+arn+two+`", "x"],`), []string{two}},
		"one resource, no list":              {with(resources, `"resources": "`+arn+two+`",`), []string{two}},
		"one resource that nobody needs":     {[]string{resources, `"resources": "` + arn + "i-00000000000000009" + `",`}, []string{one, two}},
		"resources that are neither":         {with(resources, `"resources": {"a": [1]},`), nil},
		"resources of mixed kinds":           {with(resources, `"resources": ["`+two+`", 7],`), nil},
		"no resources":                       {with(resources, ""), nil},
		"page and backupEvent as no strings": {[]string{`"page": "1"`, `"page": 1, "backupEvent": false`}, []string{one, two}},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Parse(health(t, tt.edits...))
			if err != nil || !slices.Equal(n.Instances, tt.want) {
				t.Errorf("instances %v, %v; want %v", n.Instances, err, tt.want)
			}
			if tt.want == nil && n.Ignored != NoInstance {
				t.Errorf("%+v, want it ignored: %s", n, NoInstance)
			}
		})
	}
}

// A change of a Dedicated Host names the host; EC2 has to say which instances run on it.
func TestAHealthEventNamesDedicatedHosts(t *testing.T) {
	const one, two = "i-0123456789abcdef0", "i-0fedcba9876543210"
	const host, arn = "h-0123456789abcdef0", "arn:aws:ec2:us-east-1:123456789012:dedicated-host/h-0fedcba9876543210"
	n, err := Parse(health(t, one, host, two, arn, "PENDING", "RESOLVED"))
	hosts := []string{host, "h-0fedcba9876543210"}
	if err != nil || len(n.Instances) > 0 || !slices.Equal(n.Hosts, hosts) || n.Kind != ScheduledChange || !slices.Equal(n.Resolved, hosts) {
		t.Errorf("%+v, %v; want the hosts %v, both resolved", n, err, hosts)
	}
	if n, err = Parse(health(t, `"`+one+`"`, `"h-0123 456789abcdef0"`)); err != nil || len(n.Hosts) > 0 || !slices.Equal(n.Instances, []string{two}) {
		t.Errorf("with what is no id: %+v, %v", n, err)
	}
	if n, err = Parse(health(t, `"`+one+`"`, `"`+host+`"`)); err != nil || !slices.Equal(n.Hosts, hosts[:1]) || !slices.Equal(n.Instances, []string{two}) {
		t.Errorf("a host beside an instance: %+v, %v", n, err)
	}
	var all strings.Builder
	for k := range hostLimit + 1 {
		fmt.Fprintf(&all, `{"entityValue": "h-%017x"},`, k)
	}
	if _, err = Parse(health(t, healthEntities, healthEntities+all.String())); err == nil || !strings.Contains(err.Error(), "more than 200 Dedicated Hosts") {
		t.Errorf("with %d hosts: %v", hostLimit+1, err)
	}
}

func TestTheStartOfAChangeIsReadInEachOfAWSsForms(t *testing.T) {
	want := time.Date(2026, 12, 4, 6, 0, 0, 0, time.UTC)
	for start, want := range map[string]time.Time{
		"Fri, 04 Dec 2026 06:00:00 GMT": want,
		"Fri, 4 Dec 2026 06:00:00 GMT":  want,
		"Mon, 4 Dec 2026 06:00:00 GMT":  want, // AWS's own examples have wrong weekdays
		"2026-12-04T06:00:00Z":          want,
		"2026-12-04T07:00:00+01:00":     want,
		"4 December":                    {},
		"":                              {},
	} {
		n, err := Parse(health(t, "Fri, 27 Nov 2026 06:00:00 GMT", start))
		if err != nil || !n.Deadline.Equal(want) {
			t.Errorf("%q: %s, %v; want %s", start, n.Deadline, err, want)
		}
	}
}

func TestAnEntityCanBeOverBeforeItsEventIs(t *testing.T) {
	const one, two = "i-0123456789abcdef0", "i-0fedcba9876543210"
	entities := func(more ...string) []string {
		return []string{healthEntities, healthEntities + strings.Join(more, ",") + ","}
	}
	const resolved, pending = `{"entityValue":"` + two + `","status":"RESOLVED"}`, `{"entityValue":"` + two + `","status":"PENDING"}`
	for name, tt := range map[string]struct {
		edits []string
		want  []string
	}{
		"none is":               {nil, nil},
		"one is":                {[]string{"PENDING", "RESOLVED"}, []string{one, two}},
		"it is unimpaired":      {[]string{"PENDING", "UNIMPAIRED"}, []string{one, two}},
		"it is impaired":        {[]string{"PENDING", "IMPAIRED"}, nil},
		"nobody knows":          {[]string{"PENDING", "UNKNOWN"}, nil},
		"for one entity of two": {append(entities(resolved), "none", "none"), nil},
		"for both entities":     {[]string{healthEntities, healthEntities + resolved + ",", "PENDING", "RESOLVED"}, []string{two, one}},
		"and then it is not":    {[]string{healthEntities, healthEntities + pending + ",", "PENDING", "RESOLVED"}, []string{one}},
		"the event is":          {[]string{"PENDING", "RESOLVED", `"statusCode": "upcoming"`, `"statusCode": "closed"`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Parse(health(t, tt.edits...))
			if err != nil || !slices.Equal(n.Resolved, tt.want) || len(n.Instances) != 2 {
				t.Errorf("%v are over of %v, %v; want %v", n.Resolved, n.Instances, err, tt.want)
			}
		})
	}
}

// AWS's pages do not agree on whether the communicationId of a page holds its number.
// https://docs.aws.amazon.com/health/latest/ug/pagnation-of-health-events.html
func TestEachPageOfAChangeIsANoticeOfItsOwn(t *testing.T) {
	const communication = "7d5a1d4c-7f2b-4f3e-9d1a-000000000001-1"
	for name, tt := range map[string]struct{ page, id, want string }{
		"the first":                       {`"1"`, communication, communication},
		"the second":                      {`"2"`, "7d5a1d4c-7f2b-4f3e-9d1a-000000000001-2", "7d5a1d4c-7f2b-4f3e-9d1a-000000000001-2"},
		"the second, with the first's id": {`"2"`, communication, communication + "-2"},
		"the second, by a number":         {`2`, communication, communication + "-2"},
		"the second, without an id":       {`"2"`, "", "7d5a1d4c-7f2b-4f3e-9d1a-000000000001-2"},
		"no page":                         {`null`, communication, communication},
		"a page that is none":             {`"\u001b\""`, communication, communication},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Parse(health(t, `"page": "1"`, `"page": `+tt.page, communication, tt.id))
			if err != nil || n.ID != tt.want {
				t.Errorf("id %q, %v; want %q", n.ID, err, tt.want)
			}
		})
	}
}

// https://docs.aws.amazon.com/health/latest/ug/choosing-a-region.html
func TestTheBackupCopyOfAChangeIsTheSameNotice(t *testing.T) {
	want, err := Parse(health(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, edits := range map[string][]string{
		"with the Region in the detail":  nil,
		"with the Region in the ARN":     {`"eventRegion": "us-east-1",`, ""},
		"with a flag that is no string":  {`"eventRegion": "us-east-1",`, "", `"backupEvent": "true"`, `"backupEvent": true`},
		"with an ARN that has no Region": {`"eventArn": "arn:aws:health:us-east-1::`, `"eventArn": "arn:aws:health::`},
	} {
		t.Run(name, func(t *testing.T) {
			body := strings.NewReplacer(edits...).Replace(bodies(t)["health-retirement-backup-copy"])
			got, err := Parse(body)
			got.Time = want.Time // three seconds later
			if name == "with an ARN that has no Region" {
				got.Change = want.Change
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("error %v (-original +copy):\n%s", err, diff)
			}
		})
	}
}

func TestABodyNamesNoMoreInstancesThanAPageOfAWS(t *testing.T) {
	entities := func(n int) string {
		var all strings.Builder
		for k := range n {
			fmt.Fprintf(&all, `{"entityValue":"i-%017x"},{"entityValue":"arn:aws:ec2:::instance/i-%017x"},`, k, k)
		}
		return health(t, healthEntities, healthEntities+all.String())
	}
	if n, err := Parse(entities(instanceLimit - 2)); err != nil || len(n.Instances) != instanceLimit {
		t.Errorf("%d instances, %v; want %d", len(n.Instances), err, instanceLimit)
	}
	n, err := Parse(entities(instanceLimit - 1))
	if want := "names more than 4096 instances"; err == nil || !strings.Contains(err.Error(), want) || len(n.Instances) > instanceLimit {
		t.Errorf("%d instances, %v; want an error with %q", len(n.Instances), err, want)
	}
}

// A notice is kept for as long as its instance is drained; its body is not.
func TestANoticeKeepsNothingOfItsBody(t *testing.T) {
	if race.Enabled() {
		t.Skip("measures memory, of which the race detector takes a multiple")
	}
	const count = 50
	padding := strings.Repeat("a", bodyLimit-4096)
	spot, hook, change := bodies(t)["spot-interruption"], bodies(t)["asg-terminate-lifecycle"], bodies(t)["health-retirement-by-arn"]
	for name, body := range map[string]string{
		"its id":             strings.Replace(spot, `"id": "`, `"id": "`+padding, 1),
		"its account":        strings.Replace(spot, `"account": "`, `"account": "`+padding, 1),
		"its region":         strings.Replace(spot, `"region": "`, `"region": "`+padding, 1),
		"its detail":         strings.Replace(spot, `"terminate"`, `"`+padding+`"`, 1),
		"its change":         strings.Replace(change, `"eventArn": "`, `"eventArn": "`+padding, 1),
		"its communication":  strings.Replace(change, `"communicationId": "`, `"communicationId": "`+padding, 1),
		"its instance":       strings.Replace(change, `"entityValue": "arn:`, `"entityValue": "arn:`+padding, 1),
		"its hook":           strings.Replace(hook, `"NotificationMetadata": "`, `"NotificationMetadata": "`+padding, 1),
		"its reservation":    strings.Replace(bodies(t)["capacity-block-expiration"], `"version": "0"`, `"version": "`+padding+`"`, 1),
		"its hook's origin":  strings.Replace(hook, `"Origin": "`, `"Origin": "`+padding, 1),
		"what SNS has as it": `{"Message":` + strconv.Quote(strings.Replace(spot, `"id": "`, `"id": "`+padding[:len(padding)-1024], 1)) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			held := make([]Notice, count)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for k := range held {
				n, err := Parse(strings.Clone(body))
				if err != nil {
					t.Fatal(err)
				}
				held[k] = n
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > count*8<<10 {
				t.Errorf("%d notices keep %d KiB, want 8 each at most", count, kept>>10)
			}
			runtime.KeepAlive(held)
		})
	}
}

// What a notice says goes between the quotes of other people's templates.
func TestAnEventCannotBreakOutOfWhatItIsPutInto(t *testing.T) {
	const evil = `x\",\"channel\":\"#all<!channel>\u2028{{.}}`
	const want = "xchannel:allchannel."
	body := strings.NewReplacer(
		`"id": "`, `"id": "`+evil, `"account": "`, `"account": "`+evil, `"region": "`, `"region": "`+evil, `"terminate"`, `"`+evil+`"`,
	).Replace(bodies(t)["spot-interruption"])
	n, err := Parse(body)
	got := Notice{ID: n.ID, Account: n.Account, Region: n.Region, Detail: n.Detail}
	if diff := cmp.Diff(Notice{ID: want + "7d5a1d4c-7f2b-4f3e-9d1a-000000000001", Account: want + "123456789012", Region: want + "us-east-1", Detail: want}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	n, err = Parse(health(t, `"eventArn": "arn`, `"eventArn": "`+evil+"arn", `"eventTypeCode": "`, `"eventTypeCode": "`+evil, `"communicationId": "`, `"communicationId": "`+evil, `"page": "1"`, `"page": "`+evil+`"`))
	for _, text := range []string{n.ID, n.Change, n.Detail} {
		if err != nil || !strings.HasPrefix(text, want) || strings.ContainsAny(text, "\"{<#\u2028") {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// The time of a notice of the metadata is believed, that of a message is not.
func TestNoMessageHasAnIDOfTheMetadata(t *testing.T) {
	n, err := Parse(`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning","id":"imds-imds-x","detail":{"instance-id":"i-0123456789abcdef0"}}`)
	if err != nil || OfMetadata(n.ID) || n.ID != "message-imds-imds-x" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestStatesAreNeverMatchedBySubstring(t *testing.T) {
	for _, state := range []string{"", "stop", "stoppingX", "stopping-x", "pending", "runningX", "rebooting"} {
		n, err := Parse(`{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","detail":{"instance-id":"i-0123456789abcdef0","state":"` + state + `"}}`)
		if err != nil || n.Kind != Ignored || n.Ignored != OtherState {
			t.Errorf("state %q: %+v, %v; want it ignored", state, n, err)
		}
	}
}

func TestTheCaseOfAStateDoesNotMatter(t *testing.T) {
	n, err := Parse(strings.Replace(bodies(t)["state-change-stopped"], `"stopped"`, `"Stopped"`, 1))
	if err != nil || n.Kind != StateChange || !n.Gone || n.Detail != "stopped" {
		t.Errorf("Parse = %+v, %v; want it stopped", n, err)
	}
}

func TestAnInterruptedReservationSaysWhenItsInstanceIsTerminated(t *testing.T) {
	body := bodies(t)["capacity-reservation-interruption"]
	for when, want := range map[string]time.Time{
		"2026-11-20T10:17:25Z":      time.Date(2026, 11, 20, 10, 17, 25, 0, time.UTC),
		"2026-11-20T11:17:25+01:00": time.Date(2026, 11, 20, 10, 17, 25, 0, time.UTC),
		"soon":                      {},
		"":                          {},
	} {
		n, err := Parse(strings.Replace(body, "2026-11-20T10:17:25Z", when, 1))
		if err != nil || !n.Deadline.Equal(want) || n.Kind != CapacityReservationInterruption {
			t.Errorf("%q: %+v, %v; want the deadline %s", when, n, err, want)
		}
	}
}

func TestABlockEndsForItsInstancesBeforeItsEnd(t *testing.T) {
	const end = "2026-11-20T11:30:00Z"
	at := func(hour, minute int) time.Time { return time.Date(2026, 11, 20, hour, minute, 0, 0, time.UTC) }
	for name, tt := range map[string]struct {
		time, end, instanceType string
		want                    time.Time
	}{
		"half an hour":                                {"2026-11-20T10:50:00Z", end, "p5.48xlarge", at(11, 0)},
		"whatever the type is":                        {"2026-11-20T10:50:00Z", end, "", at(11, 0)},
		"of an UltraServer an hour":                   {"2026-11-20T10:20:00Z", end, "p6e-gb200.36xlarge", at(10, 30)},
		"of one of Trainium too":                      {"2026-11-20T10:20:00Z", end, "trn2u.48xlarge", at(10, 30)},
		"half an hour where that is past already":     {"2026-11-20T10:50:00Z", end, "p6e-gb200.36xlarge", at(11, 0)},
		"half an hour, of a type with a like name":    {"2026-11-20T10:20:00Z", end, "trn2.48xlarge", at(11, 0)},
		"an hour where nobody knows when it was sent": {"", end, "trn2u.48xlarge", at(10, 30)},
		"nobody knows when":                           {"2026-11-20T10:50:00Z", "tomorrow", "trn2u.48xlarge", time.Time{}},
	} {
		body := strings.NewReplacer("2026-11-20T10:50:00Z", tt.time, end, tt.end).Replace(bodies(t)["capacity-block-expiration"])
		n, err := Parse(body)
		if n = n.OnType(tt.instanceType); err != nil || !n.Deadline.Equal(tt.want) {
			t.Errorf("%s: %s, %v; want %s", name, n.Deadline, err, tt.want)
		}
	}
}

// AWS's example of the event has no id that is another one when the block was extended.
func TestABlockThatWasExtendedExpiresAnew(t *testing.T) {
	body := bodies(t)["capacity-block-expiration-as-documented"]
	first, err := Parse(body)
	if err != nil || first.ID == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := Parse(strings.Replace(body, "2026-11-20T11:30:00Z", "2026-11-21T11:30:00Z", 1)); err != nil || again.ID == first.ID {
		t.Errorf("the second warning has the id %q, as the first; %v", again.ID, err)
	}
}

// Whoever may publish to a custom event bus may write what he likes, but for aws:Source.
func TestOnACustomBusOnlyTheBusSaysWhoHasSentAnEvent(t *testing.T) {
	const source = `"aws:Source": "aws.ec2"`
	body := bodies(t)["spot-interruption-from-a-custom-bus"]
	want, err := Parse(bodies(t)["spot-interruption"])
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		edits []string
		want  Notice
	}{
		"AWS":                                 {nil, want},
		"AWS, whatever the publisher says":    {[]string{`"source": "aws.ec2"`, `"source": "com.example"`}, want},
		"a publisher who says that he is AWS": {[]string{source, `"aws:Source": "com.example"`}, Notice{Ignored: OtherPublisher}},
		"nobody knows":                        {[]string{source, `"other": "aws.ec2"`}, Notice{Ignored: OtherPublisher}},
		"another service of AWS":              {[]string{source, `"aws:Source": "aws.health"`}, Notice{Ignored: OtherPublisher}},
		"a publisher with events of his own":  {[]string{source, `"aws:Source": "com.example"`, `"source": "aws.ec2"`, `"source": "com.example"`}, Notice{Ignored: OtherService}},
		"whoever simulates":                   {[]string{source, `"aws:Source": "` + SimulatedSource + `"`, `"source": "aws.ec2"`, `"source": "` + SimulatedSource + `"`}, want},
		"AWS, once more":                      {[]string{`"LIVE"`, `"REPLAY"`}, Notice{Ignored: Replayed}},
		"AWS, in a way of which nobody knows": {[]string{`"LIVE"`, `"SOMEHOW"`}, Notice{Ignored: Replayed}},
		"AWS, and not how it is delivered":    {[]string{`"aws:DeliveryType": "LIVE",`, ""}, want},
		"a publisher, who replays":            {[]string{source, `"other": "x"`, `"LIVE"`, `"REPLAY"`}, Notice{Ignored: Replayed}},
	} {
		n, err := Parse(strings.NewReplacer(tt.edits...).Replace(body))
		if diff := cmp.Diff(tt.want, n); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestACodeOfHealthTellsWhatBecomesOfTheMachine(t *testing.T) {
	for code, want := range map[string]Effect{
		"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED": EndsMachine,
		"AWS_EC2_INSTANCE_STOP_SCHEDULED":                  EndsMachine,
		"AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED":      RebootsMachine,
		"AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED":     RebootsMachine,
		"AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED":   CutsNetwork,
		"AWS_EC2_MAINTENANCE_SCHEDULED":                    Unclear,
		"AWS_EC2_SOMETHING_NEW":                            Unclear,
		"":                                                 Unclear,
	} {
		n, err := Parse(health(t, `"eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"`, `"eventTypeCode": "`+code+`"`))
		if got := EffectOf(n.Detail); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", code, got, err, want)
		}
	}
}

func TestHibernationBeginsWithItsWarning(t *testing.T) {
	body := strings.Replace(bodies(t)["spot-interruption"], `"terminate"`, `"hibernate"`, 1)
	n, err := Parse(body)
	if err != nil || !n.Deadline.Equal(n.Time) || n.Time.IsZero() {
		t.Errorf("Parse = %+v, %v; want a deadline at %s", n, err, n.Time)
	}
}

func TestANoticeWithoutATimeIsStillANotice(t *testing.T) {
	for _, when := range []string{"", "yesterday", "2026-11-20", "0000-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00"} {
		n, err := Parse(strings.Replace(bodies(t)["spot-interruption"], "2026-11-20T10:15:30Z", when, 1))
		if err != nil || n.Kind != SpotInterruption || !n.Time.IsZero() || !n.Deadline.IsZero() {
			t.Errorf("time %q: %+v, %v", when, n, err)
		}
	}
}

// An empty account is nobody's. Only what the metadata says has none at all, since it is the machine's own.
func TestAMessageThatNamesNoAccountIsOfNone(t *testing.T) {
	event := bodies(t)["spot-interruption"]
	sns := `{"Service":"AWS Auto Scaling","Time":"2026-11-20T10:15:30Z","AccountId":"","LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING",` +
		`"EC2InstanceId":"i-0123456789abcdef0","AutoScalingGroupName":"workers","LifecycleHookName":"drain",` +
		`"LifecycleActionToken":"c613620e-07e2-4ed2-a9e2-ef8258911ade"}`
	for name, body := range map[string]string{
		"an event with an empty one":       strings.Replace(event, `"account": "123456789012"`, `"account": ""`, 1),
		"an event without":                 strings.Replace(event, `"account": "123456789012",`, "", 1),
		"one that cannot be printed":       strings.Replace(event, `"account": "123456789012"`, `"account": "\u0000\n"`, 1),
		"a notification with an empty one": sns,
		"a notification without":           strings.Replace(sns, `"AccountId":"",`, "", 1),
	} {
		n, err := Parse(body)
		if err != nil || n.Account != NoAccount || len(n.Instances) != 1 {
			t.Errorf("%s: %+v, %v; want the account %q", name, n, err, NoAccount)
		}
	}
}

func TestOfTwoFieldsOfOneNameTheLastCounts(t *testing.T) {
	const first, last = "i-00000000000000001", "i-00000000000000002"
	n, err := Parse(`{"source":"aws.ec2","detail-type":"EC2 Instance Rebalance Recommendation","detail":{"instance-id":"` + first + `"},"detail":{"instance-id":"` + first + `","instance-id":"` + last + `"}}`)
	if err != nil || !slices.Equal(n.Instances, []string{last}) {
		t.Errorf("Parse = %+v, %v", n, err)
	}
}

// An event's texts end up on terminals, in labels and in Events.
func TestWhatCannotBePrintedIsDropped(t *testing.T) {
	body := strings.NewReplacer(`"id": "`, `"id": "\u001b]0;\n\u009b\u2028\u202e\ud800`, `"terminate"`, `"term\u0000inate\r\n"`).Replace(bodies(t)["spot-interruption"])
	n, err := Parse(body)
	if want := "07d5a1d4c-7f2b-4f3e-9d1a-000000000001"; err != nil || n.ID != want || n.Detail != "terminate" {
		t.Errorf("Parse = %+v, %v; want the id %q", n, err, want)
	}
}

// The largest body that is read takes time and memory of its order, and a larger
// one, as SQS takes it, none.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
func TestTheLargestBodiesAreReadQuickly(t *testing.T) {
	const size = bodyLimit - 4096
	var entities strings.Builder
	for k := range 4_000 {
		fmt.Fprintf(&entities, `{"entityValue":"i-%017x"},{"entityValue":"i-%017x"},`, k, k/2)
	}
	health := strings.Replace(bodies(t)["health-retirement-two-instances"], `"affectedEntities": [`, `"affectedEntities": [`+entities.String(), 1)
	spot := bodies(t)["spot-interruption"]
	fill := func(text string) string { return strings.Repeat(text, size/len(text)) }
	for name, tt := range map[string]struct {
		body      string
		instances int // 0: an error
	}{
		"four thousand instances, each twice": {health, 4_002},
		"a long text":                         {strings.Replace(spot, `"id":`, `"more":"`+fill("x")+`","id":`, 1), 1},
		"one field again and again":           {strings.Replace(spot, `"id":`, fill(`"id":"x",`)+`"id":`, 1), 1},
		"ten thousand fields":                 {strings.Replace(spot, `"id":`, fill(`"x":[{"y":[null]}],`)+`"id":`, 1), 1},
		"nothing but brackets":                {fill("["), 0},
		"a string within a string":            {`{"Type":"Notification","Message":"` + fill(`\"`) + `"}`, 0},
		"blanks":                              {fill(" \n"), 0},
		"no text":                             {fill("\xff\x00\x1b"), 0},
		"twice as much":                       {strings.Repeat(fill("["), 2), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var n Notice
			var err error
			took, decoded := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			memory := uint64(math.MaxUint64)
			for range 3 { // other goroutines of the process allocate, and others take the processor: the least counts
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				n, err = Parse(tt.body)
				took = min(took, time.Since(start))
				runtime.ReadMemStats(&after)
				memory = min(memory, after.TotalAlloc-before.TotalAlloc)
				start = time.Now()
				if err := json.Unmarshal([]byte(health), new(any)); err != nil {
					t.Fatal(err)
				}
				decoded = min(decoded, time.Since(start))
			}
			if len(n.Instances) != tt.instances || (err == nil) != (tt.instances > 0) {
				t.Errorf("%d instances, %v; want %d", len(n.Instances), err, tt.instances)
			}
			t.Logf("%d bytes: %s, %d bytes allocated; the largest event is decoded in %s", len(tt.body), took, memory, decoded)
			if len(tt.body) > bodyLimit && memory > 4096 {
				t.Errorf("it took %d bytes, and was not to be read", memory)
			}
			if memory > 10*size || took > 200*decoded { // one may have waited for the processor, the other not
				t.Errorf("it took %s and %d bytes, want %s and %d at most", took, memory, 200*decoded, 10*size)
			}
		})
	}
}

func TestKindsAreReadAsTheyAreWritten(t *testing.T) {
	for _, k := range append(Kinds, Ignored) {
		if got := KindOf(k.String()); got != k {
			t.Errorf("KindOf(%q) = %v", k, got)
		}
	}
}

// FuzzParse checks what must hold for every body.
func FuzzParse(f *testing.F) {
	for _, body := range bodies(f) {
		f.Add(body)
	}
	f.Add("")
	f.Add(`{"Type":"Notification","Message":"{\"Type\":\"Notification\",\"Message\":\"{}\"}"}`)
	f.Add(`{"source":"aws.ec2","source":"aws.health","detail":null}`)
	f.Add(`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning","id":"\u001b]0;x\u0007","time":"0000-01-01T00:00:00+12:00","detail":{"instance-id":"i-0123456789abcdef0"}}`)
	f.Add(`{"source":"aws.health","detail-type":"AWS Health Event","resources":"arn:aws:ec2:us-east-1:1:instance/i-0123456789abcdef0","detail":{"service":"EC2","eventTypeCategory":"scheduledChange","page":2}}`)
	f.Add(`{"source":"aws.autoscaling","detail-type":"EC2 Instance-launch Lifecycle Action","detail":{"AutoScalingGroupName":"g\u202e","LifecycleHookName":"h h","LifecycleActionToken":"1","EC2InstanceId":"i-0123456789abcdef0"}}`)
	f.Add(`{"Message":"{\"Message\":\"{}\"}"}`)
	f.Add(`{"Data":{"Data":{},"SystemMetadata":{}},"Metadata":null,"SystemMetadata":{"aws:Source":"aws.ec2"}}`)
	f.Add(`{"Data":"{\"source\":\"aws.ec2\"}","SystemMetadata":{"aws:Source":"aws.ec2","aws:DeliveryType":7}}`)
	f.Add(`{"source":"aws.ec2","detail_type":"Capacity Block Reservation Expiration Warning","resources":"arn:aws:ec2:us-east-1:1:capacity-reservation/cr-0123456789abcdef0","detail":{"end-date":"0001-01-01T00:10:00Z"}}`)
	f.Add(`{"source":"aws.ec2","detail-type":"EC2 Capacity Reservation Instance Interruption Warning","resources":{},"detail":{"instance-id":"i-0123456789abcdef0","instance-termination-time":"9999-01-01T00:00:00Z"}}`)
	id := regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)
	identifier := regexp.MustCompile(`^[0-9A-Za-z:._/-]{0,256}$`)
	f.Fuzz(func(t *testing.T, body string) {
		n, err := Parse(body)
		if again, errAgain := Parse(body); !cmp.Equal(n, again) || (err == nil) != (errAgain == nil) {
			t.Errorf("the second Parse of one body gives %+v, %v, not %+v, %v", again, errAgain, n, err)
		}
		if err != nil {
			if len(n.Instances) > 0 {
				t.Errorf("an error with instances to act on: %+v, %v", n, err)
			}
			if text := err.Error(); text == "" || len(text) > 1024 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("an error that is no line of a log: %q", text)
			}
			return
		}
		reasons := []Reason{OtherService, OtherState, NotScheduled, NoInstance, TestNotification, Confirmation, Replayed, OtherPublisher}
		switch {
		case n.Kind == Ignored && !cmp.Equal(n, Notice{Ignored: n.Ignored}):
			t.Errorf("ignored, and yet there is %+v", n)
		case n.Kind == Ignored && !slices.Contains(reasons, n.Ignored):
			t.Errorf("ignored for %q", n.Ignored)
		case n.Kind == Ignored:
			return
		}
		block := n.Kind == CapacityBlockExpiration
		if n.Ignored != "" || (len(n.Instances)+len(n.Hosts) == 0) != block || len(n.Hosts) > 0 && n.Kind != ScheduledChange || len(n.Instances) > 1 && n.Kind != ScheduledChange {
			t.Errorf("a %v with %d instances, ignored for %q", n.Kind, len(n.Instances), n.Ignored)
		}
		for k, one := range n.Instances {
			if !id.MatchString(one) || slices.Contains(n.Instances[:k], one) {
				t.Errorf("instance %q is malformed or twice in %v", one, n.Instances)
			}
		}
		for k, one := range n.Hosts {
			if !regexp.MustCompile(`^h-[0-9a-f]{8,17}$`).MatchString(one) || slices.Contains(n.Hosts[:k], one) || len(n.Hosts) > hostLimit {
				t.Errorf("host %q is malformed or twice in %v", one, n.Hosts)
			}
		}
		if hooked := n.Kind == ASGTerminate || n.Kind == ASGLaunch; hooked != (n.Hook.Group != "" && n.Hook.Name != "") || !hooked && n.Hook != (Hook{}) {
			t.Errorf("a %v with the hook %+v", n.Kind, n.Hook)
		}
		if n.Ended && n.Kind != ScheduledChange || n.Gone && n.Kind != StateChange || n.Change != "" && n.Kind != ScheduledChange {
			t.Errorf("ended %t, gone %t, change %q of a %v", n.Ended, n.Gone, n.Change, n.Kind)
		}
		if reservation := regexp.MustCompile(`^cr-[0-9a-f]{8,17}$`); block != reservation.MatchString(n.Reservation) || !block && n.Reservation != "" {
			t.Errorf("the reservation %q of a %v", n.Reservation, n.Kind)
		}
		if typed := n.OnType("p6e-gb200.36xlarge"); typed.Deadline.After(n.Deadline) || !block && !cmp.Equal(typed, n) {
			t.Errorf("for an UltraServer the deadline %s is %s", n.Deadline, typed.Deadline)
		}
		if n.Kind == SpotInterruption && (n.Deadline.IsZero() != n.Time.IsZero() || n.Deadline.Sub(n.Time) > spotNotice) {
			t.Errorf("a spot warning of %s at %s", n.Deadline.Sub(n.Time), n.Time)
		}
		for _, text := range []string{n.ID, n.Account, n.Region, n.Change, n.Detail, n.Reservation, n.Hook.Name, n.Hook.Token, n.Hook.Origin, n.Hook.Destination} {
			if !identifier.MatchString(text) {
				t.Errorf("%q is not fit for a log, a label, an Event or a template", text)
			}
		}
		if group := n.Hook.Group; utf8.RuneCountInString(group) > nameLimit || !utf8.ValidString(group) || strings.ContainsFunc(group, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("the group %q is not fit for a log or an Event", group)
		}
		if len(n.Instances) > instanceLimit || len(body) > bodyLimit {
			t.Errorf("%d instances of a body of %d bytes", len(n.Instances), len(body))
		}
		for _, one := range n.Resolved {
			if n.Kind != ScheduledChange || n.Ended || !slices.Contains(n.Instances, one) && !slices.Contains(n.Hosts, one) {
				t.Errorf("%s is over of %v, ended %t", one, n.Instances, n.Ended)
			}
		}
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatalf("%+v cannot be written down: %v", n, err)
		}
		var read Notice
		if err := json.Unmarshal(text, &read); err != nil || !cmp.Equal(n, read) {
			t.Errorf("written down and read it is %+v, %v, not %+v", read, err, n)
		}
		// What AWS adds one day changes nothing.
		if more := strings.TrimRight(body, " \t\r\n"); strings.HasSuffix(more, "}") {
			more = more[:len(more)-1] + `,"new":{"instance-id":"i-0fedcba9876543210"}}`
			if wider, err := Parse(more); err != nil || !cmp.Equal(wider, n) {
				t.Errorf("with another field it is %+v, %v, not %+v", wider, err, n)
			}
		}
		var outer struct {
			Source         string
			SystemMetadata json.RawMessage
		}
		if json.Unmarshal([]byte(body), &outer) == nil && outer.Source != "" && outer.SystemMetadata == nil {
			system := map[string]string{"aws:Source": outer.Source, "aws:DeliveryType": "LIVE"}
			onBus, err := json.Marshal(map[string]any{"Data": json.RawMessage(body), "SystemMetadata": system})
			if err != nil {
				t.Fatal(err)
			}
			if inner, err := Parse(string(onBus)); len(onBus) <= bodyLimit && (err != nil || !cmp.Equal(inner, n)) {
				t.Errorf("on a custom bus it is %+v, %v, not %+v", inner, err, n)
			}
		}
		wrapped, err := json.Marshal(map[string]string{"Type": "Notification", "Message": body})
		if err != nil {
			t.Fatal(err)
		}
		if lower := strings.ToLower(body); utf8.ValidString(body) && !strings.Contains(lower, `type"`) && !strings.Contains(lower, `message"`) {
			if inner, err := Parse(string(wrapped)); err != nil || !cmp.Equal(inner, n) {
				t.Errorf("through SNS it is %+v, %v, not %+v", inner, err, n)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, body := range bodies(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bodies are the example bodies of testdata/events by name.
func bodies(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "events", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no example bodies: %v", err)
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = string(text)
	}
	return all
}

func TestASimulatedNoticeIsReadAsTheRealOne(t *testing.T) {
	source := regexp.MustCompile(`"source": "aws\.[a-z0-9]+"`)
	for name, body := range bodies(t) {
		want, err := Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(source.ReplaceAllString(body, `"source": "`+SimulatedSource+`"`))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-real +simulated):\n%s", name, err, diff)
		}
	}
}
