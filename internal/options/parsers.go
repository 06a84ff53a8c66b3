package options

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/node-termination-handler/node-termination-handler/internal/httpserver"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

// parseMaxUnready parses a number of nodes, or a percentage of them.
func parseMaxUnready(text string) (intstr.IntOrString, error) {
	number, isPercent := strings.CutSuffix(text, "%")
	if !isPercent {
		n, err := parseInteger(text, 1, 100_000)
		return intstr.FromInt(n), err
	}
	if _, err := strconv.Atoi(number); err != nil {
		return intstr.IntOrString{}, errors.New("is not a percentage")
	}
	n, err := parseInteger(number, 1, 100)
	return intstr.FromString(strconv.Itoa(n) + "%"), err
}

// hookName accepts what Auto Scaling takes as the name of a lifecycle hook.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
var hookName = matching(`^[A-Za-z0-9_/-]{1,255}$`, "is not the name of a hook")

var accountID = matching(`^[0-9]{12}$`, "is not the id of an account")

// accounts takes the ids of AWS accounts. A single one may be a number in the
// chart's values, but for one that begins with 0, which a number would lose.
// No word stands for all accounts: whoever may forward events to the queue could
// then have nodes drained.
func accounts(p *[]string) value {
	v := list(p, "ids of 12 digits, separated by commas", "not the id of an account", "not ids of accounts",
		checked(accountID))
	v.schema = schema{"anyOf": []schema{
		{"type": "string", "pattern": "^ *[0-9]{12} *(, *[0-9]{12} *)*$"},
		{"type": "integer", "minimum": 100_000_000_000, "maximum": 999_999_999_999},
	}}
	return v
}

// parseHost parses the name of a host, or the one that stands for all, and returns it in lower case.
func parseHost(text string) (string, error) {
	name := strings.ToLower(text)
	if name == httpserver.Any {
		return name, nil
	}
	return name, valid(validation.IsDNS1123Subdomain)(name)
}

// parseAnnotations parses k=v,k=v.
func parseAnnotations(text string) (map[string]string, error) {
	all := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(pair, "=")
		k = strings.TrimSpace(k)
		switch {
		case !ok:
			return nil, fmt.Errorf("has %q, which is not key=value", pair)
		case len(validation.IsQualifiedName(strings.ToLower(k))) > 0:
			return nil, fmt.Errorf("has %q, which is not the key of an annotation", k)
		}
		all[k] = v
	}
	return all, nil
}

var plainPath = matching(`^(/[0-9A-Za-z._~-]+)+$`, "is not a path")

// checkProbesPath accepts what http.ServeMux takes as a plain path, other than the
// paths that the handler serves itself.
func checkProbesPath(text string) error {
	if text == "/readyz" || text == "/metrics" {
		return errors.New("is taken")
	}
	return plainPath(text)
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

// address takes the URL of an HTTP server, or nothing.
func address(p *string) value {
	return text(p, "an http or https URL", func(text string) error {
		_, err := parseHTTPURL(text)
		return err
	})
}

// parseHeaders parses a JSON object of strings. The error names the header that
// is wrong and says nothing of its value, which may be a secret.
func parseHeaders(text string) (map[string]string, error) {
	var object map[string]any
	twice, err := kjson.UnmarshalStrict([]byte(text), &object, kjson.DisallowDuplicateFields)
	switch {
	case err != nil:
		return nil, errors.New("is not a JSON object")
	case len(twice) > 0:
		return nil, errors.New("has a header twice")
	}
	headers := make(map[string]string, len(object))
	canonical := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		s, ok := object[name].(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("has a header %q that is not a string", name)
		case !httpguts.ValidHeaderFieldName(name):
			return nil, fmt.Errorf("has %q, which is not the name of a header", name)
		case canonical[http.CanonicalHeaderKey(name)] != "":
			return nil, fmt.Errorf("has %q and %q, which are one header", canonical[http.CanonicalHeaderKey(name)], name)
		case !httpguts.ValidHeaderFieldValue(s):
			return nil, fmt.Errorf("has a header %q whose value no header can have", name)
		}
		headers[name], canonical[http.CanonicalHeaderKey(name)] = s, name
	}
	return headers, nil
}

// parseProxy parses the address of a proxy. NTH documents tcp:// for what
// net/http calls an http proxy.
func parseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("is not a URL")
	}
	if u.Scheme == "tcp" {
		u.Scheme = "http"
	}
	switch {
	case !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme):
		return nil, errors.New("has no scheme that a proxy can have")
	case u.Hostname() == "":
		return nil, errors.New("names no host")
	}
	return u, nil
}
