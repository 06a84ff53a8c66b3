package kubesim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The resources that change.
const (
	resourceNodes = "nodes"
	resourcePods  = "pods"
)

// requests is the record of what was asked. The zero value is ready; methods may be called concurrently.
type requests struct {
	mu  sync.Mutex
	all []answered
}

type answered struct {
	at   time.Time // when it came
	what string
}

func (r *requests) note(at time.Time, what string, code int) {
	if code >= http.StatusBadRequest {
		what += fmt.Sprintf(" %d", code)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, answered{at, what})
}

// Requests counts the requests that came in a span of time, each as its verb and resource, such as "list pods",
// with the code of the answer if it is an error's.
func (s *Server) Requests(from, to time.Time) map[string]int {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	counts := map[string]int{}
	for _, r := range s.requests.all {
		if r.at.After(from) && r.at.Before(to) {
			counts[r.what]++
		}
	}
	return counts
}

// A request as the handler of its route gets it.
type request struct {
	*http.Request

	codec *codec
	name  string // of the object
}

// A route answers one verb of one resource.
type route struct {
	what    string // as it is counted
	cost    cost
	latency time.Duration
	// answer returns what is to be sent, with its TypeMeta, and the code of a success.
	answer func(request) (runtime.Object, int, error)
}

// handler is the API.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	l := s.options.Latency
	ofNode, ofPod := writeCost(s.options.NodeWatches, s.width), writeCost(s.options.PodWatches, s.width)
	for pattern, r := range map[string]route{
		"GET /api/v1/nodes/{name}":                             {"get nodes", read, l.Get, s.getNode},
		"PATCH /api/v1/nodes/{name}":                           {"patch nodes", ofNode, l.Write, s.patchNode},
		"PATCH /api/v1/nodes/{name}/status":                    {"patch nodes/status", ofNode, l.Write, s.patchNodeStatus},
		"DELETE /api/v1/namespaces/default/pods/{name}":        {"delete pods", ofPod, l.Write, s.deletePod},
		"POST /api/v1/namespaces/default/pods/{name}/eviction": {"create pods/eviction", ofPod, l.Eviction, s.evictPod},
		"POST /api/v1/namespaces/{namespace}/events":           {"create events", read, l.Write, acceptEvent},

		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {
			"create selfsubjectaccessreviews", read, l.Get, allow,
		},
		"GET /apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}": {"get leases", read, l.Get, s.getLease},
		"POST /apis/coordination.k8s.io/v1/namespaces/{namespace}/leases":       {"create leases", read, l.Write, s.setLease},
		"PUT /apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}": {"update leases", read, l.Write, s.setLease},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, r) })
	}
	collections := map[string]collection{
		"/api/v1/nodes":                   {resource: resourceNodes, list: s.listNodes, bytesEach: nodeBytes},
		"/api/v1/pods":                    {resource: resourcePods, list: s.listPods, bytesEach: podBytes},
		"/api/v1/namespaces/default/pods": {resource: resourcePods, list: s.listPods, bytesEach: podBytes},

		"/apis/storage.k8s.io/v1/volumeattachments": {resource: "volumeattachments", list: s.noVolumeAttachments},
	}
	for path, c := range collections {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, req *http.Request) { s.serveCollection(w, req, c) })
	}
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, _ = w.Write([]byte(`{"major":"1","minor":"36","gitVersion":"v1.36.0"}`))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		s.requests.note(time.Now(), req.Method+" "+req.URL.Path, http.StatusNotFound)
		http.NotFound(w, req) // as of a resource that the API server does not have
	})
	return mux
}

// serve answers a request about one object.
func (s *Server) serve(w http.ResponseWriter, req *http.Request, r route) {
	came := time.Now()
	if !s.enter(w, req, r.what, r.cost) {
		return
	}
	defer s.flow.leave(r.cost)
	s.pause(req, r.latency)
	in := request{Request: req, codec: codecFor(req), name: req.PathValue("name")}
	object, code, err := r.answer(in)
	if err != nil {
		object, code = statusOf(err)
	}
	s.requests.note(came, r.what, code)
	in.codec.write(w, code, object)
}

// enter takes the seats of a request. If it is refused, enter answers it, and returns false.
func (s *Server) enter(w http.ResponseWriter, req *http.Request, what string, c cost) bool {
	came := time.Now()
	retryAfter, ok := s.flow.enter(req.Context(), c)
	if ok {
		return true
	}
	s.requests.note(came, what, http.StatusTooManyRequests)
	w.Header().Set("Retry-After", fmt.Sprint(retryAfter))
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
	return false
}

// pause is the latency of a request, which the end of the request cuts short.
func (s *Server) pause(req *http.Request, latency time.Duration) {
	if latency == 0 {
		return
	}
	timer := time.NewTimer(time.Duration((0.5 + rand.Float64()) * float64(latency)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
	}
}

// statusOf is the answer that tells an error.
func statusOf(err error) (runtime.Object, int) {
	reason, ok := err.(apierrors.APIStatus)
	if !ok {
		reason = apierrors.NewBadRequest(err.Error())
	}
	status := reason.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status, int(cmp.Or(status.Code, http.StatusInternalServerError))
}
