package eventpattern

import (
	"strings"
	"testing"
)

const event = `{
	"version": "0",
	"source": "aws.ec2",
	"detail-type": "EC2 Instance State-change Notification",
	"account": "123456789012",
	"time": "2026-11-20T10:15:30Z",
	"resources": ["arn:aws:ec2:us-east-1:123456789012:instance/i-1", "arn:aws:ec2:us-east-1:123456789012:instance/i-2"],
	"detail": {
		"state": "Running",
		"count": 5,
		"limit": 3.018e2,
		"spot": true,
		"reason": null,
		"none": [],
		"address": "10.0.0.33",
		"file": "/usr/lib/a*b.png",
		"entities": [{"value": "i-1", "status": "OPEN"}, {"value": "i-2", "status": "CLOSED"}],
		"tags": {"managed": ""}
	}
}`

func TestAPatternMatchesByTheRulesOfTheService(t *testing.T) {
	for _, test := range []struct {
		name    string
		pattern string
		want    bool
	}{
		{"a value", `{"source":["aws.ec2"]}`, true},
		{"another value", `{"source":["aws.health"]}`, false},
		{"values are compared with their case", `{"source":["AWS.EC2"]}`, false},
		{"no part of a value", `{"source":["aws"]}`, false},
		{"one of several values", `{"source":["aws.health","aws.ec2"]}`, true},
		{"all fields", `{"source":["aws.ec2"],"detail":{"state":["Running"]}}`, true},
		{"not one of two fields", `{"source":["aws.ec2"],"detail":{"state":["stopped"]}}`, false},
		{"a field that is not there", `{"detail":{"action":["terminate"]}}`, false},
		{"an object that is not there", `{"data":{"action":["terminate"]}}`, false},
		{"an object where the event has a value", `{"source":{"name":["aws.ec2"]}}`, false},
		{"a value where the event has an object", `{"detail":["Running"]}`, false},
		{"the empty string", `{"detail":{"tags":{"managed":[""]}}}`, true},
		{"null", `{"detail":{"reason":[null]}}`, true},
		{"null for what is not there", `{"detail":{"action":[null]}}`, false},
		{"true", `{"detail":{"spot":[true]}}`, true},
		{"a string for true", `{"detail":{"spot":["true"]}}`, false},
		{"a number", `{"detail":{"count":[5]}}`, true},
		{"a number that is written otherwise", `{"detail":{"limit":[301.8]}}`, false},
		{"a string for a number", `{"detail":{"count":["5"]}}`, false},

		{"an element of an array", `{"resources":["arn:aws:ec2:us-east-1:123456789012:instance/i-2"]}`, true},
		{"no element of an array", `{"resources":["arn:aws:ec2:us-east-1:123456789012:instance/i-3"]}`, false},
		{"an operator on an array", `{"resources":[{"suffix":"/i-2"}]}`, true},
		{"an object in an array", `{"detail":{"entities":{"value":["i-2"],"status":["CLOSED"]}}}`, true},
		{"fields of different objects in an array", `{"detail":{"entities":{"value":["i-1"],"status":["CLOSED"]}}}`, false},

		{"prefix", `{"time":[{"prefix":"2026-11-20"}]}`, true},
		{"another prefix", `{"time":[{"prefix":"2026-11-21"}]}`, false},
		{"prefix of a number", `{"detail":{"count":[{"prefix":"5"}]}}`, false},
		{"prefix with its case", `{"detail":{"state":[{"prefix":"run"}]}}`, false},
		{"prefix without its case", `{"detail":{"state":[{"prefix":{"equals-ignore-case":"run"}}]}}`, true},
		{"suffix", `{"detail":{"file":[{"suffix":".png"}]}}`, true},
		{"another suffix", `{"detail":{"file":[{"suffix":".jpg"}]}}`, false},
		{"suffix without its case", `{"detail":{"file":[{"suffix":{"equals-ignore-case":".PNG"}}]}}`, true},
		{"equals without its case", `{"detail":{"state":[{"equals-ignore-case":"RUNNING"}]}}`, true},
		{"a part without its case", `{"detail":{"state":[{"equals-ignore-case":"RUN"}]}}`, false},
		{"one of an operator and a value", `{"detail":{"state":["stopped",{"prefix":"Run"}]}}`, true},

		{"wildcard", `{"detail":{"file":[{"wildcard":"/usr/*.png"}]}}`, true},
		{"wildcards", `{"detail":{"file":[{"wildcard":"*/lib/*"}]}}`, true},
		{"wildcards for what is not there", `{"detail":{"file":[{"wildcard":"*/bin/*"}]}}`, false},
		{"wildcard for nothing", `{"detail":{"state":[{"wildcard":"Running*"}]}}`, true},
		{"wildcards that would overlap", `{"detail":{"state":[{"wildcard":"Runn*nning"}]}}`, false},
		{"wildcard that is quoted", `{"detail":{"file":[{"wildcard":"*a\\*b.png"}]}}`, true},
		{"wildcard that is quoted for another", `{"detail":{"state":[{"wildcard":"R\\*g"}]}}`, false},
		{"wildcard without any", `{"detail":{"state":[{"wildcard":"Run"}]}}`, false},

		{"anything but", `{"detail":{"state":[{"anything-but":"stopped"}]}}`, true},
		{"anything but what it is", `{"detail":{"state":[{"anything-but":"Running"}]}}`, false},
		{"anything but a list", `{"detail":{"state":[{"anything-but":["stopped","terminated"]}]}}`, true},
		{"anything but a list with what it is", `{"detail":{"state":[{"anything-but":["stopped","Running"]}]}}`, false},
		{"anything but a number", `{"detail":{"count":[{"anything-but":5}]}}`, false},
		{"anything but other numbers", `{"detail":{"count":[{"anything-but":[1,2]}]}}`, true},
		{"anything but what is not there", `{"detail":{"action":[{"anything-but":"stop"}]}}`, false},
		{"anything but a prefix", `{"detail":{"state":[{"anything-but":{"prefix":"Run"}}]}}`, false},
		{"anything but prefixes", `{"detail":{"state":[{"anything-but":{"prefix":["stop","term"]}}]}}`, true},
		{"anything but a suffix", `{"detail":{"file":[{"anything-but":{"suffix":".png"}}]}}`, false},
		{"anything but without its case", `{"detail":{"state":[{"anything-but":{"equals-ignore-case":["running"]}}]}}`, false},
		{"anything but a wildcard", `{"detail":{"file":[{"anything-but":{"wildcard":"*/lib/*"}}]}}`, false},
		{"anything but one element of an array", `{"resources":[{"anything-but":{"suffix":"/i-1"}}]}`, true},

		{"exists", `{"detail":{"count":[{"exists":true}]}}`, true},
		{"exists, and is null", `{"detail":{"reason":[{"exists":true}]}}`, true},
		{"exists, and does not", `{"detail":{"action":[{"exists":true}]}}`, false},
		{"does not exist", `{"detail":{"action":[{"exists":false}]}}`, true},
		{"does not exist, in what does not", `{"data":{"action":[{"exists":false}]}}`, true},
		{"does not exist, and does", `{"detail":{"count":[{"exists":false}]}}`, false},
		{"exists, and is no leaf", `{"detail":{"tags":[{"exists":true}]}}`, false},
		{"does not exist, or is another", `{"detail":{"state":[{"exists":false},"Running"]}}`, true},
		{"does not exist in an empty array", `{"detail":{"none":[{"exists":false}]}}`, true},

		{"a number in bounds, which no notice has", `{"detail":{"count":[{"numeric":[">",0,"<=",5]}]}}`, false},
		{"an address, which no notice has", `{"detail":{"address":[{"cidr":"10.0.0.0/24"}]}}`, false},
		{"a number in bounds, or another value", `{"detail":{"state":[{"numeric":[">",0]},"Running"]}}`, true},

		{"one of two alternatives", `{"detail":{"$or":[{"state":["stopped"]},{"count":[5]}]}}`, true},
		{"none of two alternatives", `{"detail":{"$or":[{"state":["stopped"]},{"count":[6]}]}}`, false},
		{"alternatives and a field", `{"$or":[{"source":["aws.ec2"]},{"source":["aws.health"]}],"account":["1"]}`, false},
		{"alternatives with two fields", `{"$or":[{"source":["aws.ec2"],"account":["1"]},{"source":["aws.health"]}]}`, false},
		{"a field of the alternatives' name", `{"$or":["aws.ec2"]}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := Parse(test.pattern)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Match(event)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("%s matches: %v, want %v", test.pattern, got, test.want)
			}
		})
	}
}

func TestAPatternThatTheServiceRefusesIsAnErrorThatNamesTheField(t *testing.T) {
	for pattern, want := range map[string]string{
		``:                                       "not a JSON object",
		`[]`:                                     "not a JSON object",
		`null`:                                   "not a JSON object",
		`{} {}`:                                  "more follows",
		`{}`:                                     "empty object",
		`{"detail":{}}`:                          `"detail": an empty object`,
		`{"source":[]}`:                          `"source": an empty array`,
		`{"source":"aws.ec2"}`:                   `"source": must be an object or an array`,
		`{"detail":{"state":"x"}}`:               `"detail": "state": must be`,
		`{"source":1,"detail":1,"account":1}`:    `"account": must be`,
		`{"source":[["aws.ec2"]]}`:               "no other arrays",
		`{"source":[{}]}`:                        "one field, not 0",
		`{"source":[{"prefix":"a","x":"b"}]}`:    "one field, not 2",
		`{"source":[{"postfix":"a"}]}`:           `no operator has the name "postfix"`,
		`{"source":[{"prefix":1}]}`:              "prefix: needs a string",
		`{"source":[{"prefix":{"suffix":"a"}}]}`: "equals-ignore-case",
		`{"source":[{"equals-ignore-case":[]}]}`: "needs a string",
		`{"source":[{"wildcard":"a**b"}]}`:       "follow each other",
		`{"source":[{"wildcard":"a\\b"}]}`:       "backslash",
		`{"source":[{"anything-but":true}]}`:     "strings or numbers",
		`{"source":[{"anything-but":[]}]}`:       "empty array",
		`{"source":[{"anything-but":["a",1]}]}`:  "not both",
		`{"source":[{"anything-but":{"exists":true}}]}`: `does not go with "exists"`,
		`{"source":[{"exists":"yes"}]}`:                 "true or false",
		`{"$or":[{"source":["a"]},{"b":"c"}]}`:          `"$or": "b"`,
	} {
		t.Run(pattern, func(t *testing.T) {
			_, err := Parse(pattern)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Parse(%s) says %v, want %q", pattern, err, want)
			}
		})
	}
}

func TestWhatIsNoEventIsAnError(t *testing.T) {
	p, err := Parse(`{"source":[{"exists":false}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{``, `null`, `"aws.ec2"`, `[{}]`, `{`} {
		if got, err := p.Match(event); err == nil {
			t.Errorf("Match(%s) is %v, want an error", event, got)
		}
	}
}
