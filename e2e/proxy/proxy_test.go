package proxy

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func TestCallsOfAWSAreNamedBySignatureAndAction(t *testing.T) {
	seen := &record{}
	config, account := throughAWS(t, seen.hooks())
	if err := account.CreateQueue(awssim.Queue{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	if _, err := sqs.NewFromConfig(config).ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: aws.String(account.QueueURL("q"))}); err != nil {
		t.Error(err)
	}
	if _, err := ec2.NewFromConfig(config).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{}); err != nil {
		t.Error(err)
	}
	if _, err := autoscaling.NewFromConfig(config).DescribeLifecycleHooks(t.Context(), &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String("g")}); err == nil {
		t.Error("there is no group, but no error either")
	}
	want := []string{
		"before sqs ReceiveMessage", "after sqs ReceiveMessage",
		"before ec2 DescribeInstances", "after ec2 DescribeInstances",
		"before autoscaling DescribeLifecycleHooks", "after autoscaling DescribeLifecycleHooks",
	}
	if diff := cmp.Diff(want, seen.all()); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

func TestCallsOfTheAPIServerAreNamedByVerbAndResource(t *testing.T) {
	for request, want := range map[string]Call{
		"GET /api/v1/nodes?limit=1":                                                 {Action: "list", Resource: "nodes"},
		"GET /api/v1/nodes?watch=true&resourceVersion=7":                            {Action: "watch", Resource: "nodes"},
		"GET /api/v1/nodes?watch=false":                                             {Action: "list", Resource: "nodes"},
		"GET /api/v1/nodes/a":                                                       {Action: "get", Resource: "nodes", Name: "a"},
		"PATCH /api/v1/nodes/a":                                                     {Action: "patch", Resource: "nodes", Name: "a"},
		"PATCH /api/v1/nodes/a/status":                                              {Action: "patch", Resource: "nodes", Name: "a", Subresource: "status"},
		"DELETE /api/v1/namespaces/x/pods/b":                                        {Action: "delete", Resource: "pods", Namespace: "x", Name: "b"},
		"DELETE /api/v1/namespaces/x/pods":                                          {Action: "deletecollection", Resource: "pods", Namespace: "x"},
		"POST /api/v1/namespaces/x/pods/b/eviction":                                 {Action: "create", Resource: "pods", Namespace: "x", Name: "b", Subresource: "eviction"},
		"PUT /apis/coordination.k8s.io/v1/namespaces/x/leases/l":                    {Action: "update", Resource: "leases", Namespace: "x", Name: "l"},
		"GET /apis/storage.k8s.io/v1/volumeattachments?allowWatchBookmarks&watch=1": {Action: "watch", Resource: "volumeattachments"},
		"GET /api/v1/namespaces/x":                                                  {Action: "get", Resource: "namespaces", Name: "x"},
		"PUT /api/v1/namespaces/x/finalize":                                         {Action: "update", Resource: "namespaces", Name: "x", Subresource: "finalize"},
		"GET /readyz":                                                               {Action: "get", Resource: "/readyz"},
		"GET /api":                                                                  {Action: "get", Resource: "/api"},
	} {
		method, target, _ := strings.Cut(request, " ")
		want.Service = Kubernetes
		if diff := cmp.Diff(want, readKubernetes(httptest.NewRequestWithContext(t.Context(), method, target, http.NoBody), nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", request, diff)
		}
	}
}

func TestACallPassesWithItsTokenByHTTP2AndIsSeenTwice(t *testing.T) {
	seen := &record{}
	target := &apiServer{}
	client, _ := throughAPIServer(t, target, seen.hooks())
	err := client.PolicyV1().Evictions("x").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "b"}})
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("the eviction was answered %v, want the target's refusal", err)
	}
	want := []string{"HTTP/2.0 POST /api/v1/namespaces/x/pods/b/eviction by Bearer secret"}
	if diff := cmp.Diff(want, target.all()); diff != "" {
		t.Errorf("requests to the target (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"before create pods/eviction b", "after create pods/eviction b"}, seen.all()); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

func TestTheTargetHasServedACallBeforeTheClientGetsItsAnswer(t *testing.T) {
	target := &apiServer{}
	served, answered := make(chan int), make(chan struct{})
	client, _ := throughAPIServer(t, target, Hooks{After: func(_ context.Context, _ Call, status int) {
		served <- status
		<-served
	}})
	go func() {
		defer close(answered)
		_, _ = client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	}()
	if status := <-served; status != http.StatusOK || len(target.all()) != 1 {
		t.Errorf("status %d after %d requests", status, len(target.all()))
	}
	select {
	case <-answered:
		t.Error("the client has its answer already")
	default:
	}
	served <- 0
	<-answered
}

func TestAWatchStreamsThroughAndEndsWithoutAnErrorWhenItIsTold(t *testing.T) {
	client, _ := throughAPIServer(t, &apiServer{}, Hooks{Before: func(context.Context, Call) Fault { return Fault{EndAfter: 2 * time.Second} }})
	w, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Node).Name != "a" {
		t.Fatalf("the first event is %v", e)
	}
	if e, open := <-w.ResultChan(); open {
		t.Errorf("then came %v, want the end", e)
	}
}

func TestAFaultTakesTheAnswersPlace(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   Fault
		want    func(error) bool
		reaches bool // the target
	}{
		"refused": {
			fault: Fault{Status: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`},
			want:  apierrors.IsForbidden,
		},
		"refused after its effect": {
			fault: Fault{Status: http.StatusInternalServerError, AfterEffect: true}, want: apierrors.IsInternalError, reaches: true,
		},
		"reset":                   {fault: Fault{Reset: true}, want: lost},
		"reset after its effect":  {fault: Fault{Reset: true, AfterEffect: true}, want: lost, reaches: true},
		"no answer to its effect": {fault: Fault{Hang: true, AfterEffect: true}, want: hasGone, reaches: true},
		"half an answer":          {fault: Fault{Half: true}, want: lost, reaches: true},
		"no answer":               {fault: Fault{Hang: true}, want: hasGone},
		"a slow one":              {fault: Fault{Latency: time.Hour}, want: hasGone},
		"of another type": {
			fault:   Fault{Header: http.Header{"Content-Type": {"text/html"}}},
			want:    func(err error) bool { return err != nil && strings.Contains(err.Error(), "text/html") },
			reaches: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			target := &apiServer{}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			client, _ := throughAPIServer(t, target, Hooks{Before: func(context.Context, Call) Fault {
				if tt.fault.Hang || tt.fault.Latency > 0 {
					go func() { // the client goes a second after the call has come as far as it should
						for tt.reaches && len(target.all()) == 0 && ctx.Err() == nil {
							<-time.After(10 * time.Millisecond)
						}
						<-time.After(time.Second)
						cancel()
					}()
				}
				return tt.fault
			}})
			_, err := client.CoreV1().Nodes().Patch(ctx, "a", "application/merge-patch+json", []byte("{}"), metav1.PatchOptions{})
			if !tt.want(err) {
				t.Errorf("the client got %v", err)
			}
			if reached := len(target.all()) > 0; reached != tt.reaches {
				t.Errorf("the call reached the target: %t", reached)
			}
		})
	}
}

func TestAResetOfPlainHTTPIsOneToTheClient(t *testing.T) {
	config, _ := throughAWS(t, Hooks{Before: func(context.Context, Call) Fault { return Fault{Reset: true} }})
	_, err := ec2.NewFromConfig(config, func(o *ec2.Options) { o.RetryMaxAttempts = 1 }).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v, want a reset", err)
	}
}

func TestNothingPassesASeveredProxyUntilItIsMended(t *testing.T) {
	target := &apiServer{}
	client, p := throughAPIServer(t, target, Hooks{})
	w, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	<-w.ResultChan()
	p.Sever()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := client.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}); !isTimeout(err) {
		t.Errorf("the client got %v, want nothing in time", err)
	}
	if n := len(target.all()); n != 1 {
		t.Errorf("%d requests reached the target, want the watch alone", n)
	}
	p.Mend()
	// The connection is closed, because something was sent on it: a call may be lost with it.
	_, err = client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	for try := 0; lost(err) && try < 10; try++ {
		_, err = client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	}
	if err != nil {
		t.Error(err)
	}
}

func TestACallOfTheAPIServerIsServedThoughItsClientHasGone(t *testing.T) {
	target := &apiServer{slow: make(chan struct{})}
	served := make(chan int, 1)
	client, _ := throughAPIServer(t, target, Hooks{After: func(_ context.Context, _ Call, status int) { served <- status }})
	ctx := target.until(t, 1)
	if _, err := client.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v, want nothing", err)
	}
	close(target.slow)
	if status := <-served; status != http.StatusOK {
		t.Errorf("the call was answered %d", status)
	}
}

func TestACallThatIsCancelledTakesNoOtherWithIt(t *testing.T) {
	target := &apiServer{}
	client, _ := throughAPIServer(t, target, Hooks{})
	nodes, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Stop()
	<-nodes.ResultChan()
	ctx := target.until(t, 2)
	if _, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v, want nothing", err)
	}
	select {
	case <-nodes.ResultChan():
		t.Error("the watch of nodes has ended")
	case <-time.After(200 * time.Millisecond):
	}
	if requests := target.all(); len(requests) != 2 {
		t.Errorf("requests to the target: %q", requests)
	}
}

func lost(err error) bool {
	return err != nil && !isTimeout(err) && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}

func hasGone(err error) bool { return errors.Is(err, context.Canceled) }

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "deadline")
}

// record notes what the hooks are called for.
type record struct {
	mu    sync.Mutex
	lines []string
}

func (r *record) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func (r *record) hooks() Hooks {
	return Hooks{
		Before: func(_ context.Context, c Call) Fault { r.add("before " + c.String()); return Fault{} },
		After:  func(_ context.Context, c Call, _ int) { r.add("after " + c.String()) },
	}
}

// throughAWS is the configuration of a client of a simulated account, by way of a proxy.
func throughAWS(t *testing.T, hooks Hooks) (aws.Config, *awssim.Server) {
	t.Helper()
	account := awssim.New(awssim.Options{})
	t.Cleanup(account.Close)
	endpoint, err := account.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := AWS(t.Context(), endpoint, hooks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	config := account.Config()
	config.HTTPClient, config.BaseEndpoint = nil, aws.String(p.URL())
	return config, account
}

// throughAPIServer is a client of a target, by way of a proxy.
func throughAPIServer(t *testing.T, target *apiServer, hooks Hooks) (kubernetes.Interface, *Proxy) {
	t.Helper()
	server := httptest.NewUnstartedServer(target)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server:                   server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "secret"}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	dir := t.TempDir()
	direct := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, direct); err != nil {
		t.Fatal(err)
	}
	p, through, err := APIServer(t.Context(), direct, dir, hooks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	rest, err := clientcmd.BuildConfigFromFlags("", through)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	return client, p
}

// apiServer is a target with one node, which allows no evictions and never tells of
// pods. It records its requests.
type apiServer struct {
	record
	slow chan struct{} // if not nil, nothing is answered before it is closed
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	a.add(r.Proto + " " + r.Method + " " + r.URL.Path + " by " + r.Header.Get("Authorization"))
	if a.slow != nil {
		select {
		case <-a.slow:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	const node = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}`
	switch {
	case strings.HasSuffix(r.URL.Path, "/eviction"):
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)
	case strings.HasSuffix(r.URL.Path, "/pods"):
		<-r.Context().Done()
	case r.URL.Query().Get("watch") != "":
		_, _ = io.WriteString(w, `{"type":"ADDED","object":`+node+"}\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		_, _ = io.WriteString(w, node)
	}
}

// until is a context that ends when so many requests have reached the target.
func (a *apiServer) until(t *testing.T, requests int) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil && len(a.all()) < requests {
			<-time.After(10 * time.Millisecond)
		}
	}()
	return ctx
}

func TestTheDateOfAnAnswerCanBeWrong(t *testing.T) {
	config, _ := throughAWS(t, Hooks{Before: func(context.Context, Call) Fault { return Fault{Skew: 5 * time.Minute} }})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, *config.BaseEndpoint, strings.NewReader("Action=DescribeInstances&Version=2016-11-15"))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	date, err := http.ParseTime(answer.Header.Get("Date")) // of whole seconds
	least, most := begin.Add(5*time.Minute-time.Second), time.Now().Add(5*time.Minute)
	if err != nil || answer.StatusCode != http.StatusOK || date.Before(least) || date.After(most) {
		t.Errorf("%s, with the Date %s, want one from %s to %s: %v", answer.Status, date, least, most, err)
	}
}
