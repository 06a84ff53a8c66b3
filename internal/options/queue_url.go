package options

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
)

// A QueueURL is the address of an SQS queue, with its parts.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-queue-message-identifiers.html
type QueueURL struct {
	Text    string // as given: the QueueUrl parameter of every SQS call
	base    string // scheme://host[:port]
	form    hostForm
	Region  string // as the host says; empty where the host names none
	Account string // 12 digits
	Name    string
}

// A hostForm tells what the host of a queue's URL says about where SQS is. It
// matters because the SDK sends requests to an endpoint of its own making and
// ignores that host.
type hostForm int

const (
	hostOther     hostForm = iota // a simulator, a proxy: SQS is there and nowhere else
	hostRegional                  // sqs.REGION.SUFFIX: the SDK's own choice
	hostLegacy                    // REGION.queue.SUFFIX, oldestHost: older names of the former, unknown to the SDK
	hostFIPS                      // sqs-fips.REGION.SUFFIX
	hostDualStack                 // sqs.REGION.api.SUFFIX
	hostInterface                 // vpce-ID.sqs.REGION.vpce.SUFFIX: an interface endpoint without private DNS
)

// hostForms is tried in order. The suffix differs from partition to partition,
// so no pattern names one.
var hostForms = []struct {
	form    hostForm
	pattern *regexp.Regexp
}{
	{hostInterface, regexp.MustCompile(`^vpce-[a-z0-9-]+\.sqs(?:-fips)?\.(` + regionPattern + `)\.vpce\.`)},
	{hostOther, regexp.MustCompile(`^sqs-fips\.(` + regionPattern + `)\.api\.`)}, // two variants at once
	{hostDualStack, regexp.MustCompile(`^sqs\.(` + regionPattern + `)\.api\.`)},
	{hostFIPS, regexp.MustCompile(`^sqs-fips\.(` + regionPattern + `)\.`)},
	{hostRegional, regexp.MustCompile(`^sqs\.(` + regionPattern + `)\.`)},
	{hostLegacy, regexp.MustCompile(`^(` + regionPattern + `)\.queue\.`)},
}

// oldestHost is the host of us-east-1 that names no region.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-internetwork-traffic-privacy.html
const (
	oldestHost   = "queue.amazonaws.com"
	oldestRegion = "us-east-1"
)

// regionPattern matches us-east-1, us-gov-west-1, eu-isoe-west-1 and their
// like: a partition's prefix, words, a number.
const regionPattern = `[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}`

var queuePath = regexp.MustCompile(`^/([0-9]{12})/([A-Za-z0-9_-]{1,80}(?:\.fifo)?)$`)

const queueURLForm = "https://sqs.REGION.SUFFIX/ACCOUNT/NAME, with an account of 12 digits; or none"

// noQueue takes the place of the URL where there is no queue.
const noQueue = "none"

// None reports whether there is no queue: the notices of the leader are what the pods of the IMDS mode report.
func (q QueueURL) None() bool { return q.Text == noQueue }

// ParseQueueURL parses the URL of a queue, or "none". The error says what is wrong
// and repeats nothing of text.
func ParseQueueURL(text string) (QueueURL, error) {
	if text == noQueue {
		return QueueURL{Text: text}, nil
	}
	u, err := parseHTTPURL(text)
	if err != nil {
		return QueueURL{}, err
	}
	path := queuePath.FindStringSubmatch(u.Path)
	switch {
	case u.RawQuery != "" || u.Fragment != "":
		return QueueURL{}, errors.New("has more than a host and a path")
	case path == nil:
		return QueueURL{}, errors.New("has no account id and queue name as its path")
	}
	q := QueueURL{
		Text:    text,
		base:    u.Scheme + "://" + u.Host,
		Account: path[1],
		Name:    path[2],
	}
	host := strings.ToLower(u.Hostname())
	if host == oldestHost {
		q.form, q.Region = hostLegacy, oldestRegion
	}
	for _, h := range hostForms {
		if m := h.pattern.FindStringSubmatch(host); m != nil {
			q.form, q.Region = h.form, m[1]
			break
		}
	}
	// Simulators borrow the form (sqs.us-east-1.localhost.localstack.cloud:4566)
	// for its region, but AWS answers over TLS on the usual port only.
	if u.Scheme != "https" || u.Port() != "" {
		q.form = hostOther
	}
	return q, nil
}

// endpoint returns the endpoint that an SQS client needs to reach q, empty
// where the SDK's own choice for q.region is right. sdkFIPS and sdkDualStack
// tell whether the SDK has been asked to choose FIPS or dual-stack endpoints:
// it then refuses any other, so a host of just that variant is left to it.
func (q QueueURL) endpoint(sdkFIPS, sdkDualStack bool) string {
	variant := q.form == hostFIPS && sdkFIPS || q.form == hostDualStack && sdkDualStack
	if variant || q.form == hostRegional || q.form == hostLegacy {
		return ""
	}
	return q.base
}

// parseHTTPURL parses the address of something that speaks HTTP. The error
// says what is wrong and repeats nothing of text, which may hold a secret.
func parseHTTPURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("does not start with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("names no host")
	case u.User != nil:
		return nil, errors.New("holds a user name or password")
	}
	return u, nil
}
