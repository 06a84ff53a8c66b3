package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
)

// keepName keeps of a pod what identifies it.
func keepName(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
}

func largePod(name string, size int) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), ResourceVersion: "7"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Env: []corev1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", size)}},
		}}},
	}
}

func encode(t testing.TB, contentType string, o runtime.Object) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok {
		t.Fatal(contentType)
	}
	body, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), o)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// trimmedClient returns a client of an API server that serves as handle does, whose pods are trimmed.
func trimmedClient(t testing.TB, trimmer *Trimmer, handle http.HandlerFunc) *Clients {
	t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.EnableHTTP2 = true // as the API server
	server.StartTLS()
	t.Cleanup(server.Close)
	config := &rest.Config{
		Host: server.URL + "/k8s/clusters/c-1", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
	}
	config.Wrap(trimmer.Wrap)
	clients, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

var bothTypes = []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}

func TestPodsAreTrimmedInEveryAnswer(t *testing.T) {
	for _, contentType := range bothTypes {
		t.Run(contentType, func(t *testing.T) {
			trimmer := NewTrimmer(1<<20, TrimmedResource("api/v1", "pods", keepName))
			clients := trimmedClient(t, trimmer, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", contentType)
				one := largePod("one", 2<<20)
				switch {
				case strings.HasSuffix(r.URL.Path, "/pods/gone") && r.Method == http.MethodDelete:
					_, _ = w.Write(encode(t, contentType, &metav1.Status{Status: metav1.StatusSuccess, Message: "deleted"}))
				case strings.HasSuffix(r.URL.Path, "/pods/missing"):
					w.WriteHeader(http.StatusNotFound)
					_, _ = w.Write(encode(t, contentType, &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404}))
				case strings.HasSuffix(r.URL.Path, "/pods/one"), strings.HasSuffix(r.URL.Path, "/pods/one/status"):
					_, _ = w.Write(encode(t, contentType, &one))
				case strings.HasSuffix(r.URL.Path, "/nodes"):
					_, _ = w.Write(encode(t, contentType, &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{
						Name: "n", Labels: map[string]string{"a": "b"},
					}}}}))
				default:
					list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"}}
					for k := range 5 {
						list.Items = append(list.Items, largePod(fmt.Sprint(k), k*100_000))
					}
					_, _ = w.Write(encode(t, contentType, list))
				}
			})
			list, err := clients.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"}}
			for k := range 5 {
				pod := largePod(fmt.Sprint(k), 0)
				want.Items = append(want.Items, *keepName(&pod))
			}
			list.TypeMeta = metav1.TypeMeta{}
			if diff := cmp.Diff(want, list); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
			one := largePod("one", 0)
			for name, get := range map[string]func() (*corev1.Pod, error){
				"get": func() (*corev1.Pod, error) {
					return clients.CoreV1().Pods("ns").Get(t.Context(), "one", metav1.GetOptions{})
				},
				"patch": func() (*corev1.Pod, error) {
					return clients.CoreV1().Pods("ns").Patch(t.Context(), "one", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
				},
				"patch of the status": func() (*corev1.Pod, error) {
					return clients.CoreV1().Pods("ns").Patch(t.Context(), "one", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
				},
			} {
				pod, err := get()
				if err != nil {
					t.Fatal(name, err)
				}
				pod.TypeMeta = metav1.TypeMeta{}
				if diff := cmp.Diff(keepName(&one), pod); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			if err := clients.CoreV1().Pods("ns").Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if err := clients.CoreV1().Pods("ns").Delete(t.Context(), "missing", metav1.DeleteOptions{}); err == nil {
				t.Error("an answer 404 is no error")
			}
			nodes, err := clients.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Labels["a"] != "b" {
				t.Errorf("nodes: %v, %v", nodes, err)
			}
		})
	}
}

func TestPodsOfAWatchAreTrimmed(t *testing.T) {
	for _, contentType := range bothTypes {
		t.Run(contentType, func(t *testing.T) {
			clients := trimmedClient(t, NewTrimmer(1<<20, TrimmedResource("api/v1", "pods", keepName)), func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", contentType+";stream=watch")
				if contentType == runtime.ContentTypeJSON {
					w.Header().Set("Content-Type", contentType)
				}
				large, bookmark := largePod("large", 2<<20), corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					ResourceVersion: "11", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
				}}
				send := func(kind watch.EventType, o runtime.Object) {
					event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: encode(t, contentType, o)}}
					if contentType == runtime.ContentTypeJSON {
						_ = json.NewEncoder(w).Encode(event)
						return
					}
					body, err := event.Marshal()
					if err != nil {
						t.Error(err)
					}
					_ = binary.Write(w, binary.BigEndian, uint32(len(body)))
					_, _ = w.Write(body)
				}
				send(watch.Added, &large)
				send(watch.Bookmark, &bookmark)
				w.(http.Flusher).Flush()
				send(watch.Deleted, &large)
				send(watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
			})
			w, err := clients.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			var got []string
			for event := range w.ResultChan() {
				switch o := event.Object.(type) {
				case *corev1.Pod:
					got = append(got, fmt.Sprintf("%s %q %d containers, version %s, %d annotations",
						event.Type, o.Name, len(o.Spec.Containers), o.ResourceVersion, len(o.Annotations)))
				case *metav1.Status:
					got = append(got, fmt.Sprintf("%s %d %s", event.Type, o.Code, o.Message))
				}
			}
			want := []string{
				`ADDED "large" 0 containers, version 7, 0 annotations`, `BOOKMARK "" 0 containers, version 11, 1 annotations`,
				`DELETED "large" 0 containers, version 7, 0 annotations`, `ERROR 410 `,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnAnswerThatIsCutIsAnErrorAndNoShorterList(t *testing.T) {
	for _, contentType := range bothTypes {
		list := &corev1.PodList{}
		for k := range 3 {
			list.Items = append(list.Items, largePod(fmt.Sprint(k), 300))
		}
		body := encode(t, contentType, list)
		for length := range bytes.TrimSpace(body) {
			a := answer{
				kind: TrimmedResource("api/v1", "pods", keepName), hold: func(int64) (func(), error) { return func() {}, nil },
				body: bufio.NewReader(io.MultiReader(bytes.NewReader(body[:length]), iotest.ErrReader(io.ErrUnexpectedEOF))),
			}
			read := func(list bool) ([]byte, error) { return a.protobufAnswer(-1, list) }
			if contentType == runtime.ContentTypeJSON {
				read = a.jsonAnswer
			}
			if small, err := read(true); err == nil {
				t.Fatalf("%s: %d of %d bytes give %q", contentType, length, len(body), small)
			}
		}
	}
}

func TestAnEventThatIsCutIsAnErrorAndNoOtherEvent(t *testing.T) {
	pod := largePod("one", 300)
	event := metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: encode(t, runtime.ContentTypeProtobuf, &pod)}}
	body := framed(t, event)
	trimmed := func(body []byte) ([]byte, error) {
		a := answer{
			kind: TrimmedResource("api/v1", "pods", keepName), hold: func(int64) (func(), error) { return func() {}, nil },
			body: bufio.NewReader(bytes.NewReader(body)),
		}
		return a.protobufEvent()
	}
	for length := range body {
		if small, err := trimmed(body[:length]); err == nil || length > 0 && errors.Is(err, io.EOF) {
			t.Fatalf("%d of %d bytes give %q, %v", length, len(body), small, err)
		}
	}
	small, err := trimmed(body)
	event.Object.Raw = encode(t, runtime.ContentTypeProtobuf, keepName(&pod))
	if want := framed(t, event); err != nil || !bytes.Equal(small, want) {
		t.Errorf("%q, %v, want %q", small, err, want)
	}
	for _, length := range []uint32{largestObject + 1, math.MaxUint32} {
		if small, err := trimmed(binary.BigEndian.AppendUint32(nil, length)); err == nil || !strings.HasPrefix(err.Error(), "it has an event of ") {
			t.Errorf("an event of %d bytes gives %q, %v", length, small, err)
		}
	}
}

// framed is an event as it is in the body of a watch.
func framed(t *testing.T, event metav1.WatchEvent) []byte {
	t.Helper()
	body, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// Whoever may write objects that the API server has only as JSON must not stop the drains by their size either.
func TestObjectsInJSONShareTheBudgetToo(t *testing.T) {
	pod := largePod("large", 100_000)
	list := encode(t, runtime.ContentTypeJSON, &corev1.PodList{Items: []corev1.Pod{largePod("small", 10), pod}})
	object := encode(t, runtime.ContentTypeJSON, &pod)
	event := fmt.Appendf(nil, `{"type":"ADDED","object":%s}`, object)
	for name, read := range map[string]func(*answer) ([]byte, error){
		"list": func(a *answer) ([]byte, error) {
			a.body = bufio.NewReader(bytes.NewReader(list))
			return a.jsonAnswer(true)
		},
		"object": func(a *answer) ([]byte, error) {
			a.body = bufio.NewReader(bytes.NewReader(object))
			return a.jsonAnswer(false)
		},
		"event": func(a *answer) ([]byte, error) { return a.jsonEvent(json.NewDecoder(bytes.NewReader(event))) },
	} {
		held, most := int64(0), int64(0)
		hold := func(size int64) (func(), error) {
			held += size
			most = max(most, held)
			return func() { held -= size }, nil
		}
		if _, err := read(&answer{kind: TrimmedResource("api/v1", "pods", keepName), hold: hold}); err != nil || most < 100_000 || held != 0 {
			t.Errorf("%s: %v; %d bytes were held at most, and %d are still", name, err, most, held)
		}
	}
}

func TestAnAnswerThatIsTooLargeIsAClearErrorAndNoShorterList(t *testing.T) {
	of := func(pods, size int) *corev1.PodList {
		list := &corev1.PodList{}
		for k := range pods {
			list.Items = append(list.Items, largePod(fmt.Sprint(k), size))
		}
		return list
	}
	keepAll := func(pod *corev1.Pod) *corev1.Pod { return pod }
	for name, tt := range map[string]struct {
		keep func(*corev1.Pod) *corev1.Pod
		list *corev1.PodList
		want string // of the error; empty: there is none
	}{
		"as much as may be left": {keepAll, of(15, 1<<20), ""},
		"too much is left":       {keepAll, of(18, 1<<20), "/api/v1/pods: it has too many objects: more than 16777216 bytes are left of them"},
		"an object is too large": {keepName, of(1, largestObject+1), ", more than 16777216"},
	} {
		for _, contentType := range bothTypes {
			t.Run(name+", "+contentType, func(t *testing.T) {
				lists, asked := []*corev1.PodList{tt.list, of(2, 10)}, atomic.Int32{}
				trimmer := NewTrimmer(1<<20, TrimmedResource("api/v1", "pods", tt.keep))
				clients := trimmedClient(t, trimmer, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", contentType)
					_, _ = w.Write(encode(t, contentType, lists[asked.Add(1)-1])) // the first may still be written then
				})
				got, err := clients.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
				switch {
				case tt.want == "" && (err != nil || len(got.Items) != len(tt.list.Items)):
					t.Errorf("%d pods, %v", len(got.Items), err)
				case tt.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tt.want)):
					t.Errorf("the error is %v, want …%s", err, tt.want)
				}
				if got, err = clients.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil || len(got.Items) != 2 {
					t.Errorf("the next list: %d pods, %v", len(got.Items), err)
				}
				if !trimmer.budget.TryAcquire(trimmer.most) {
					t.Error("a part of the budget is not given back")
				}
			})
		}
	}
}

// 900 MB of pods, by as many lists at once as drains may make.
func TestTheMemoryOfAListDoesNotDependOnTheSizeOfItsPods(t *testing.T) {
	checkMemory(t, largePod("a", 1_400_000), 5, 128, 96<<20)
}

// An empty message takes many times the two bytes that it has in the answer.
func TestTheMemoryOfAListDoesNotDependOnWhatItsPodsAreMadeOf(t *testing.T) {
	pod := largePod("a", 10)
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: make([]corev1.NodeSelectorTerm, 700_000)},
	}}
	checkMemory(t, pod, 2, 16, 190<<20) // one takes some 80 MiB, and one before it may not be collected yet
}

// checkMemory makes so many lists of pods at once, which take so many bytes at most.
func checkMemory(t *testing.T, pod corev1.Pod, pods, lists int, most uint64) {
	if race.Enabled() {
		t.Skip("it takes memory of its own")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as the program has it
	list := &corev1.PodList{Items: slices.Repeat([]corev1.Pod{pod}, pods)}
	body := encode(t, runtime.ContentTypeProtobuf, list)
	clients := trimmedClient(t, NewTrimmer(8<<20, TrimmedResource("api/v1", "pods", keepName)), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(body)
	})
	goruntime.GC() // what another test has left is no part of it
	before, peak := heap(), uint64(0)
	ctx, stop := context.WithCancel(t.Context())
	var watching, all sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			peak = max(peak, heap())
			time.Sleep(time.Millisecond)
		}
	})
	for range lists {
		all.Go(func() {
			if got, err := clients.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil || len(got.Items) != pods {
				t.Error(err)
			}
		})
	}
	all.Wait()
	stop()
	watching.Wait()
	t.Logf("%d lists of %d MB each: %d MiB at most", lists, len(body)/1e6, (peak-min(before, peak))>>20)
	if peak > before+most {
		t.Errorf("%d MiB more at most, want %d", (peak-before)>>20, most>>20)
	}
}

// heap is how many bytes the objects had that were in use when the garbage collector looked last. What it has not freed
// yet hangs on how fast the machine is.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
