package options

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/node-termination-handler/node-termination-handler/internal/httpserver"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

// burst takes a number above zero; any negative number stands for no limit.
func burst(p *int) value {
	v := integer(p, -1, 100000)
	set := v.set
	v.allowed = "1 to 100000, or negative"
	v.schema = schema{"type": "integer", "maximum": 100000, "not": schema{"const": 0}}
	v.set = func(text string) error {
		if n, err := parseInteger(text); err == nil && n < 0 {
			text = "-1"
		} else if err == nil && n == 0 {
			return errors.New("is out of range")
		}
		return set(text)
	}
	return v
}

// parseMaxUnready parses a number of nodes, or a percentage of them.
func parseMaxUnready(text string) (intstr.IntOrString, error) {
	number, isPercent := strings.CutSuffix(text, "%")
	most := 100_000
	if isPercent {
		most = 100
	}
	n, err := parseInteger(number)
	switch {
	case err != nil && isPercent:
		return intstr.IntOrString{}, errors.New("is not a percentage")
	case err != nil:
		return intstr.IntOrString{}, err
	case n < 1 || n > most:
		return intstr.IntOrString{}, errors.New("is out of range")
	case isPercent:
		return intstr.FromString(strconv.Itoa(n) + "%"), nil
	}
	return intstr.FromInt(n), nil
}

// hookName is what Auto Scaling takes as the name of a lifecycle hook.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
var hookName = regexp.MustCompile(`^[A-Za-z0-9_/-]{1,255}$`)

// accounts takes the ids of AWS accounts. A single one may be a number in the
// chart's values, but for one that begins with 0, which a number would lose.
func accounts(p *[]string) value {
	v := parsed(p, kindText, "ids of 12 digits, separated by commas", parseAccounts)
	v.schema = schema{"anyOf": []schema{
		{"type": "string", "pattern": "^ *[0-9]{12} *(, *[0-9]{12} *)*$"},
		{"type": "integer", "minimum": 100_000_000_000, "maximum": 999_999_999_999},
	}}
	return v
}

var accountID = regexp.MustCompile(`^[0-9]{12}$`)

// parseAccounts parses ids of accounts separated by commas, and leaves out what
// is repeated. No word stands for all accounts: whoever may forward events to the
// queue could then have nodes drained.
func parseAccounts(text string) ([]string, error) {
	var all, wrong []string
	for id := range strings.SplitSeq(text, ",") {
		id = strings.TrimSpace(id)
		switch {
		case !accountID.MatchString(id):
			wrong = append(wrong, strconv.Quote(id))
		case !slices.Contains(all, id):
			all = append(all, id)
		}
	}
	switch len(wrong) {
	case 0:
		return all, nil
	case 1:
		return nil, fmt.Errorf("has %s, which is not the id of an account", wrong[0])
	}
	return nil, fmt.Errorf("has %s, which are not ids of accounts", strings.Join(wrong, ", "))
}

// parseHookNames parses names separated by commas.
func parseHookNames(text string) ([]string, error) {
	var all []string
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if !hookName.MatchString(name) {
			return nil, fmt.Errorf("has %q, which is not the name of a lifecycle hook", name)
		}
		all = append(all, name)
	}
	return all, nil
}

// parseTaintKeys parses keys of taints separated by commas.
func parseTaintKeys(text string) ([]string, error) {
	var all []string
	for key := range strings.SplitSeq(text, ",") {
		key = strings.TrimSpace(key)
		if len(validation.IsQualifiedName(key)) > 0 {
			return nil, fmt.Errorf("has %q, which is not the key of a taint", key)
		}
		all = append(all, key)
	}
	return all, nil
}

// parseAddresses parses IP addresses separated by commas.
func parseAddresses(text string) ([]netip.Addr, error) {
	var all []netip.Addr
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		address, err := netip.ParseAddr(word)
		if err != nil {
			return nil, fmt.Errorf("has %q, which is not an IP address", word)
		}
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all, nil
}

// parseHosts parses names of hosts separated by commas, and returns them in lower case.
func parseHosts(text string) ([]string, error) {
	var all []string
	for word := range strings.SplitSeq(text, ",") {
		name := strings.ToLower(strings.TrimSpace(word))
		if name != httpserver.Any && len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil, fmt.Errorf("has %q, which is not the name of a host", strings.TrimSpace(word))
		}
		all = append(all, name)
	}
	return all, nil
}

// probesPath takes what http.ServeMux takes as a plain path, other than the
// paths that the handler serves itself.
func probesPath(p *string) value {
	plain := matching(`^(/[0-9A-Za-z._~-]+)+$`, "is not a path")
	return text(p, "a path, such as /healthz", func(text string) error {
		if err := plain(text); err != nil {
			return err
		}
		if text == "/readyz" || text == "/metrics" {
			return errors.New("is taken")
		}
		return nil
	})
}

// matching accepts what matches pattern.
func matching(pattern, why string) func(string) error {
	re := regexp.MustCompile(pattern)
	return func(text string) error {
		if !re.MatchString(text) {
			return errors.New(why)
		}
		return nil
	}
}

// valid accepts what one of Kubernetes' own checks has nothing to say about.
func valid(check func(string) []string) func(string) error {
	return func(text string) error {
		if len(check(text)) > 0 {
			return errors.New("is not valid")
		}
		return nil
	}
}

// checkTemplate accepts a template that works for an example of an interruption.
func checkTemplate(text string) error {
	if _, err := webhook.ParseTemplate(text); err != nil {
		return fmt.Errorf("does not work: %w", err)
	}
	return nil
}

// parseHeaders parses a JSON object of strings. The error names the header that
// is wrong and says nothing of its value, which may be a secret.
func parseHeaders(text string) (map[string]string, error) {
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return nil, errors.New("is not a JSON object")
	}
	headers := make(map[string]string, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		s, ok := object[name].(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("has a header %q that is not a string", name)
		case !httpguts.ValidHeaderFieldName(name):
			return nil, fmt.Errorf("has %q, which is not the name of a header", name)
		case !httpguts.ValidHeaderFieldValue(s):
			return nil, fmt.Errorf("has a header %q whose value no header can have", name)
		}
		headers[name] = s
	}
	return headers, nil
}
