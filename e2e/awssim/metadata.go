package awssim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MetadataOptions are the choices of a simulated instance metadata service; the zero value of
// each field selects the default given there.
type MetadataOptions struct {
	// Instance is the id of the instance. Required.
	Instance string
	// Account and Region stand in the identity document. Default 123456789012 and us-east-1.
	Account, Region string
	// Started is when the instance was started last. Default: now.
	Started time.Time
	// TokensOptional answers requests without a token too, as an instance whose HttpTokens is
	// optional.
	TokensOptional bool
	// HopLimit is HttpPutResponseHopLimit. Default 1.
	HopLimit int
	// LongestToken bounds how long tokens are valid, whatever a client asks for. Default six
	// hours, which is AWS's bound.
	LongestToken time.Duration
}

// A Metadata is the instance metadata service of one instance, versions 1 and 2. It is safe for
// concurrent use. Nothing of an item is there before it is set.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
type Metadata struct {
	opts MetadataOptions

	mu       sync.Mutex
	items    map[string]string // by path below /latest
	events   []MaintenanceEvent
	tokens   map[string]time.Time // until when they are valid
	issued   int
	hops     int
	fault    MetadataFault
	requests map[string]int // by method and path
	clients  map[string]bool
}

// A MaintenanceEvent is a scheduled change, as the metadata has it.
type MaintenanceEvent struct {
	NotBefore   time.Time
	Code        string // such as instance-stop
	Description string
	ID          string
	State       string // active, completed or canceled
}

// A MetadataFault is what keeps the service from answering as it should. The zero value is none.
type MetadataFault struct {
	Prefix string        // of the paths that are concerned, below /latest; empty: all
	Method string        // GET or PUT; empty: both
	Status int           // the answer; 0: the usual one
	Body   string        // of the answer, for Status 200 and others; empty: the usual one
	Header http.Header   // of the answer
	Delay  time.Duration // before each answer
	Hang   bool          // no answer at all
	Reset  bool          // the connection is cut
}

const (
	tokenPath      = "/api/token"
	spotPath       = "/meta-data/spot/instance-action"
	rebalancePath  = "/meta-data/events/recommendations/rebalance"
	scheduledPath  = "/meta-data/events/maintenance/scheduled"
	historyPath    = "/meta-data/events/maintenance/history"
	lifecyclePath  = "/meta-data/autoscaling/target-lifecycle-state"
	identityPath   = "/dynamic/instance-identity/document"
	instanceIDPath = "/meta-data/instance-id"

	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	longestToken   = 6 * time.Hour
)

// NewMetadata returns the service of an instance that runs and of which nothing is announced. A
// client is one hop away.
func NewMetadata(opts MetadataOptions) *Metadata {
	setDefault(&opts.Account, "123456789012")
	setDefault(&opts.Region, "us-east-1")
	setDefault(&opts.Started, time.Now())
	setDefault(&opts.HopLimit, 1)
	setDefault(&opts.LongestToken, longestToken)
	m := &Metadata{
		opts: opts, hops: 1, items: map[string]string{}, tokens: map[string]time.Time{}, requests: map[string]int{},
		clients: map[string]bool{},
	}
	m.items[instanceIDPath] = opts.Instance
	m.setStarted(opts.Started)
	return m
}

func (m *Metadata) setStarted(at time.Time) {
	m.items[identityPath] = text(map[string]string{
		"instanceId": m.opts.Instance, "accountId": m.opts.Account, "region": m.opts.Region,
		"availabilityZone": m.opts.Region + "a", "instanceType": "m5.large", "privateIp": "10.0.0.1",
		"pendingTime": at.UTC().Format(time.RFC3339),
	})
}

func text(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err) // texts can be encoded
	}
	return string(encoded)
}

// set makes an item be there, or not.
func (m *Metadata) set(path, body string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if body == "" {
		delete(m.items, path)
		return
	}
	m.items[path] = body
}

// InterruptSpot announces that EC2 takes the instance back: action is terminate, stop or
// hibernate.
func (m *Metadata) InterruptSpot(action string, at time.Time) {
	m.set(spotPath, text(map[string]string{"action": action, "time": at.UTC().Format(time.RFC3339)}))
}

// Recommend recommends to rebalance.
func (m *Metadata) Recommend(at time.Time) {
	m.set(rebalancePath, text(map[string]string{"noticeTime": at.UTC().Format(time.RFC3339)}))
}

// SetLifecycleState sets the state that Auto Scaling brings the instance to, such as InService or
// Terminated; empty: the instance is in no group.
func (m *Metadata) SetLifecycleState(state string) { m.set(lifecyclePath, state) }

// Schedule announces a change, or changes one of the same ID. A change that is completed or
// canceled moves to the history.
func (m *Metadata) Schedule(e MaintenanceEvent) {
	if !eventID.MatchString(e.ID) {
		panic(fmt.Sprintf("schedule: malformed id %q of an event", e.ID))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := -1
	for k := range m.events {
		if m.events[k].ID == e.ID {
			at = k
		}
	}
	if at < 0 {
		m.events = append(m.events, e)
	} else {
		m.events[at] = e
	}
	type item struct {
		NotBefore, Code, Description string
		ID                           string `json:"EventId"`
		NotAfter, State              string
	}
	var active, over []item
	for _, e := range m.events {
		const layout = "2 Jan 2006 15:04:05 GMT"
		i := item{
			e.NotBefore.UTC().Format(layout), e.Code, e.Description, e.ID,
			e.NotBefore.Add(time.Hour).UTC().Format(layout), e.State,
		}
		switch e.State {
		case "completed":
			i.Description = "[Completed] " + i.Description
			over = append(over, i)
		case "canceled":
			i.Description = "[Canceled] " + i.Description
			over = append(over, i)
		default:
			active = append(active, i)
		}
	}
	delete(m.items, scheduledPath)
	delete(m.items, historyPath)
	if active != nil {
		m.items[scheduledPath] = text(active)
	}
	if over != nil {
		m.items[historyPath] = text(over)
	}
}

// RevokeTokens makes all tokens invalid, as a restart of the service does.
func (m *Metadata) RevokeTokens() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.tokens)
}

// SetFault makes the service fail; the zero value makes it work again.
func (m *Metadata) SetFault(f MetadataFault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// SetHops sets how many hops clients are away. A pod without the network of its node is two.
func (m *Metadata) SetHops(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hops = n
}

// Requests is how often a path below /latest was asked for with a method.
func (m *Metadata) Requests(method, path string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests[method+" "+path]
}

// Connections is how many connections were used; 0 by way of Transport.
func (m *Metadata) Connections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.clients)
}

// Transport is as that of [Server].
func (m *Metadata) Transport() http.RoundTripper { return memoryTransport{m} }

// Listen serves on a TCP address, such as 127.0.0.1:0, until ctx ends, and returns the endpoint.
func (m *Metadata) Listen(ctx context.Context, address string) (endpoint string, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("listen for requests to the metadata: %w", err)
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // ends with ctx
	return "http://" + listener.Addr().String(), nil
}

// ServeHTTP answers one request.
func (m *Metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/latest")
	m.mu.Lock()
	m.requests[r.Method+" "+path]++
	if r.RemoteAddr != "" {
		m.clients[r.RemoteAddr] = true
	}
	fault, tooFar := m.fault, r.Method == http.MethodPut && m.hops > m.opts.HopLimit
	m.mu.Unlock()
	if !strings.HasPrefix(path, fault.Prefix) || fault.Method != "" && fault.Method != r.Method {
		fault = MetadataFault{}
	}
	if fault.Delay > 0 {
		select {
		case <-time.After(fault.Delay):
		case <-r.Context().Done():
			return
		}
	}
	if fault.Hang || tooFar {
		<-r.Context().Done()
		return
	}
	if fault.Reset {
		panic(http.ErrAbortHandler)
	}
	status, body, header := m.answer(r, path)
	if fault.Status != 0 {
		status, body = fault.Status, http.StatusText(fault.Status)
	}
	if fault.Body != "" {
		body = fault.Body
	}
	maps.Copy(header, fault.Header)
	maps.Copy(w.Header(), header)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // the client may be gone
}

func (m *Metadata) answer(r *http.Request, path string) (status int, body string, header http.Header) {
	m.mu.Lock()
	defer m.mu.Unlock()
	header = http.Header{"Content-Type": {"text/plain"}}
	now := time.Now()
	switch {
	case !strings.HasPrefix(r.URL.Path, "/latest/"):
		return http.StatusNotFound, "not found", header
	case r.Method == http.MethodPut && path == tokenPath:
		asked, err := strconv.Atoi(r.Header.Get(tokenTTLHeader))
		ttl := time.Duration(asked) * time.Second
		if err != nil || ttl < time.Second || ttl > longestToken {
			return http.StatusBadRequest, "bad request", header
		}
		if r.Header.Get("X-Forwarded-For") != "" {
			return http.StatusForbidden, "forbidden", header
		}
		ttl = min(ttl, m.opts.LongestToken)
		m.issued++
		token := fmt.Sprintf("token-%d==", m.issued)
		m.tokens[token] = now.Add(ttl)
		header[tokenTTLHeader] = []string{strconv.Itoa(int(ttl / time.Second))}
		return http.StatusOK, token, header
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed, "method not allowed", header
	}
	token := r.Header.Get(tokenHeader)
	if (token != "" || !m.opts.TokensOptional) && !now.Before(m.tokens[token]) {
		return http.StatusUnauthorized, "unauthorized", header
	}
	item, found := m.items[path]
	if !found {
		return http.StatusNotFound, "not found", header
	}
	return http.StatusOK, item, header
}
