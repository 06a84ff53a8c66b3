package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// What tenants write can be large: an object has up to 1.5 MB, a node hundreds of pods. client-go reads the whole
// answer to a list, then decodes all of it, and only then can its caller drop what it does not need. A Trimmer does
// that on the way, object by object, so the memory that an answer costs depends on how many objects it has and not on
// their size.

const (
	// An object up to freeSize counts for nothing in the budget: most have some kilobytes.
	freeSize = 32 << 10
	// largestObject bounds one object, as client-go bounds an event of a watch. The API server accepts 3 MiB.
	largestObject = 16 << 20
	// largestAnswer bounds all that is left of an answer. It has room for some 30,000 pods.
	largestAnswer = 16 << 20
	// largestHeader bounds what an answer has beside its objects.
	largestHeader = 64 << 10
)

var errTooLarge = fmt.Errorf("it has too many objects: more than %d bytes are left of them", largestAnswer)

// A Trimmed is one kind of object, and how an object of it is made smaller.
type Trimmed struct {
	// path is that of the resource; what it captures is the name of an object, empty for all objects.
	path     *regexp.Regexp
	protobuf func([]byte) ([]byte, error) // nil: the API server has it only as JSON
	json     func([]byte) ([]byte, error)
}

// A builtin is an object that the API server has in protobuf too.
type builtin[T any] interface {
	*T
	runtime.Object
	Unmarshal([]byte) error
	Marshal() ([]byte, error)
}

// TrimmedResource makes the answers to all requests for a namespaced resource smaller, such as pods of api/v1, also for
// its status: keep returns what is read of an object. It may be called concurrently.
func TrimmedResource[T any, O builtin[T]](version, resource string, keep func(O) O) Trimmed {
	return Trimmed{
		path: regexp.MustCompile(`/` + version + `/(?:namespaces/[^/]+/)?` + resource + `(?:/([^/]+)(?:/status)?)?$`),
		protobuf: func(object []byte) ([]byte, error) {
			o := O(new(T))
			if err := o.Unmarshal(object); err != nil {
				return nil, err
			}
			return keep(o).Marshal()
		},
		json: func(object []byte) ([]byte, error) {
			o := O(new(T))
			if err := json.Unmarshal(object, o); err != nil {
				return nil, err
			}
			small := keep(o)
			// an event of a watch is told by it
			small.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
			return json.Marshal(small)
		},
	}
}

// Trimmed makes the answers to all requests for a custom resource smaller: keep returns what is read of an object. It
// may be called concurrently.
func (c Custom[O, L]) Trimmed(keep func(O) O) Trimmed {
	return Trimmed{
		path: regexp.MustCompile(regexp.QuoteMeta(c.Path) + `(?:/([^/]+))?$`),
		json: func(object []byte) ([]byte, error) {
			o := c.Object()
			if err := json.Unmarshal(object, o); err != nil {
				return nil, err
			}
			return json.Marshal(keep(o))
		},
	}
}

// A Trimmer makes the answers of the API server smaller. Use one for all clients of a process: its budget bounds what
// all of them read at once. It may be used concurrently.
type Trimmer struct {
	kinds    []Trimmed
	budget   *semaphore.Weighted
	most     int64
	decoding sync.Mutex // held while a large object is decoded
}

// NewTrimmer returns a Trimmer for these kinds of objects. The large ones that are in memory at once have so many bytes
// in all; a larger one waits until it is alone. They are decoded one by one: a list of empty messages has two bytes
// for each, and takes some fifty when it is decoded.
func NewTrimmer(budget int64, kinds ...Trimmed) *Trimmer {
	t := &Trimmer{budget: semaphore.NewWeighted(budget), most: budget}
	for _, k := range kinds {
		t.kinds = append(t.kinds, Trimmed{k.path, t.oneByOne(k.protobuf), t.oneByOne(k.json)})
	}
	return t
}

// oneByOne is trim that works on one large object at a time.
func (t *Trimmer) oneByOne(trim func([]byte) ([]byte, error)) func([]byte) ([]byte, error) {
	if trim == nil {
		return nil
	}
	return func(object []byte) ([]byte, error) {
		if len(object) > freeSize {
			t.decoding.Lock()
			defer t.decoding.Unlock()
		}
		return trim(object)
	}
}

// hold waits until an object of so many bytes may be read. release is to be called when it has been decoded. The error
// is the cause of ctx.
func (t *Trimmer) hold(ctx context.Context, size int64) (release func(), err error) {
	if size <= freeSize {
		return func() {}, nil
	}
	held := min(size, t.most)
	if err := t.budget.Acquire(ctx, held); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { t.budget.Release(held) }, nil
}

// Wrap is for [k8s.io/client-go/rest.Config.Wrap].
func (t *Trimmer) Wrap(next http.RoundTripper) http.RoundTripper {
	return transport{next, func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err != nil || response.StatusCode >= http.StatusMultipleChoices {
			return response, err
		}
		return t.trim(request, response)
	}}
}

// trim makes the answer to a request smaller.
func (t *Trimmer) trim(request *http.Request, response *http.Response) (*http.Response, error) {
	at := slices.IndexFunc(t.kinds, func(k Trimmed) bool { return k.path.MatchString(request.URL.Path) })
	if at < 0 {
		return response, nil
	}
	contentType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")) // an unknown one is passed on
	kind := t.kinds[at]
	a := answer{
		kind: kind, body: bufio.NewReader(response.Body), from: response.Body,
		hold: func(size int64) (release func(), err error) { return t.hold(request.Context(), size) },
	}
	if watches, _ := strconv.ParseBool(request.URL.Query().Get("watch")); watches {
		switch {
		case contentType == runtime.ContentTypeProtobuf && kind.protobuf != nil:
			response.Body = &trimmedWatch{answer: a, next: a.protobufEvent}
		case contentType == runtime.ContentTypeJSON:
			events := json.NewDecoder(a.body)
			response.Body = &trimmedWatch{answer: a, next: func() ([]byte, error) { return a.jsonEvent(events) }}
		}
		return response, nil
	}
	list := request.Method == http.MethodGet && kind.path.FindStringSubmatch(request.URL.Path)[1] == ""
	var small []byte
	var err error
	switch {
	case contentType == runtime.ContentTypeProtobuf && kind.protobuf != nil:
		small, err = a.protobufAnswer(-1, list)
	case contentType == runtime.ContentTypeJSON:
		small, err = a.jsonAnswer(list)
	default:
		return response, nil
	}
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the answer to %s %s: %w", request.Method, request.URL.Path, err)
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(small)), int64(len(small))
	response.Header.Set("Content-Length", strconv.Itoa(len(small)))
	return response, nil
}

// An answer is the body of one.
type answer struct {
	kind Trimmed
	hold func(size int64) (release func(), err error) // waits until an object of so many bytes may be read
	body *bufio.Reader
	from io.Closer

	scratch []byte // for objects up to freeSize, which trim does not keep
}

// protobufMagic begins an object of Kubernetes in protobuf; a runtime.Unknown follows.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
var protobufMagic = []byte("k8s\x00")

// The fields of messages of Kubernetes.
const (
	unknownTypeMeta = 1
	unknownRaw      = 2
	listItems       = 2
	eventType       = 1 // comes before the object
	eventObject     = 2
	extensionRaw    = 1
)

// protobufAnswer returns a list or an object with smaller objects. It has so many bytes; if size is negative, it is
// all of the body.
func (a *answer) protobufAnswer(size int64, list bool) ([]byte, error) {
	magic := make([]byte, len(protobufMagic))
	if _, err := io.ReadFull(a.body, magic); err != nil || !bytes.Equal(magic, protobufMagic) {
		return nil, fmt.Errorf("it does not begin as protobuf of Kubernetes does: %w", noEOF(err))
	}
	if size >= 0 {
		if size -= int64(len(magic)); size < 0 {
			return nil, io.ErrUnexpectedEOF
		}
	}
	small, another := magic, false // another: it is an object of another kind, such as a Status
	err := a.eachField(size, func(field protowire.Number, size int64) (err error) {
		var value []byte
		switch {
		case field == unknownRaw && list:
			value, err = a.protobufList(size)
		case field == unknownRaw && !another:
			value, err = a.object(size, a.kind.protobuf)
		default:
			if value, err = a.read(size, largestHeader); err == nil && field == unknownTypeMeta {
				var meta runtime.TypeMeta
				another = meta.Unmarshal(value) == nil && meta.Kind == "Status"
			}
		}
		small = appendField(small, field, value)
		return err
	})
	return small, err
}

func (a *answer) protobufList(size int64) (small []byte, err error) {
	err = a.eachField(size, func(field protowire.Number, size int64) (err error) {
		if len(small) > largestAnswer {
			return errTooLarge
		}
		var value []byte
		if field == listItems {
			value, err = a.object(size, a.kind.protobuf)
		} else {
			value, err = a.read(size, largestHeader)
		}
		small = appendField(small, field, value)
		return err
	})
	return small, err
}

func appendField(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// eachField calls do for each field of a message of so many bytes, or up to the end of the body if size is negative. do
// reads the field. All fields of these messages are of bytes.
func (a *answer) eachField(size int64, do func(field protowire.Number, size int64) error) error {
	for size != 0 {
		tag, err := binary.ReadUvarint(a.body)
		if errors.Is(err, io.EOF) && size < 0 {
			return nil
		}
		if err != nil {
			return noEOF(err)
		}
		field, wire := protowire.DecodeTag(tag)
		n, err := binary.ReadUvarint(a.body)
		if err != nil {
			return noEOF(err)
		}
		if wire != protowire.BytesType || n > math.MaxInt32 {
			return fmt.Errorf("field %d of an answer has the wire type %d and the length %d", field, wire, n)
		}
		length := int64(n)
		if size > 0 {
			size -= int64(protowire.SizeVarint(tag)+protowire.SizeVarint(n)) + length
			if size < 0 {
				return fmt.Errorf("field %d of an answer is longer than what it is part of", field)
			}
		}
		if err := do(field, length); err != nil {
			return err
		}
	}
	return nil
}

// object reads an object of so many bytes, and returns it smaller. Large ones wait for others.
func (a *answer) object(size int64, trim func([]byte) ([]byte, error)) ([]byte, error) {
	release, err := a.hold(size)
	if err != nil {
		return nil, err
	}
	defer release()
	if size > freeSize {
		object, err := a.read(size, largestObject)
		if err != nil {
			return nil, err
		}
		return trim(object)
	}
	a.scratch = slices.Grow(a.scratch[:0], int(size))[:size]
	if _, err := io.ReadFull(a.body, a.scratch); err != nil {
		return nil, noEOF(err)
	}
	return trim(a.scratch)
}

func (a *answer) read(size, most int64) ([]byte, error) {
	if size < 0 || size > most {
		return nil, fmt.Errorf("it has a part of %d bytes, more than %d", size, most)
	}
	b := make([]byte, size)
	_, err := io.ReadFull(a.body, b)
	return b, noEOF(err)
}

// noEOF returns an error that no caller takes for the end of the answer.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// jsonAnswer is protobufAnswer for JSON.
func (a *answer) jsonAnswer(list bool) ([]byte, error) {
	decoder := json.NewDecoder(a.body)
	if !list {
		var object json.RawMessage
		if err := decoder.Decode(&object); err != nil {
			return nil, noEOF(err)
		}
		var meta metav1.TypeMeta
		if json.Unmarshal(object, &meta) == nil && meta.Kind == "Status" {
			return object, nil
		}
		return a.jsonObject(object)
	}
	var small bytes.Buffer
	err := copyElements(decoder, &small, "{}", func() error {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		fmt.Fprintf(&small, "%q:", key)
		if key == "items" {
			return copyElements(decoder, &small, "[]", func() error { return a.jsonItem(decoder, &small) })
		}
		var value json.RawMessage
		err = decoder.Decode(&value)
		small.Write(value)
		return err
	})
	return small.Bytes(), err
}

// copyElements copies a JSON object or array with these delimiters; next copies its next element.
func copyElements(decoder *json.Decoder, to *bytes.Buffer, delimiters string, next func() error) error {
	start, err := decoder.Token()
	if err != nil {
		return noEOF(err)
	}
	if start == nil {
		to.WriteString("null")
		return nil
	}
	if start != json.Delim(delimiters[0]) {
		return fmt.Errorf("%v where %c belongs", start, delimiters[0])
	}
	to.WriteByte(delimiters[0])
	for first := true; decoder.More(); first = false {
		if !first {
			to.WriteByte(',')
		}
		if err := next(); err != nil {
			return noEOF(err)
		}
	}
	to.WriteByte(delimiters[1])
	_, err = decoder.Token() // the other delimiter, or an error
	return noEOF(err)
}

// jsonItem copies an object of a list, smaller.
func (a *answer) jsonItem(decoder *json.Decoder, small *bytes.Buffer) error {
	var object json.RawMessage
	if err := decoder.Decode(&object); err != nil {
		return err
	}
	trimmed, err := a.jsonObject(object)
	if err == nil && small.Len() > largestAnswer {
		err = errTooLarge
	}
	small.Write(trimmed)
	return err
}

// jsonObject returns an object smaller. Large ones, which are in memory already, wait until others are decoded.
func (a *answer) jsonObject(object []byte) ([]byte, error) {
	if len(object) > largestObject {
		return nil, fmt.Errorf("it has an object of %d bytes, more than %d", len(object), largestObject)
	}
	release, err := a.hold(int64(len(object)))
	if err != nil {
		return nil, err
	}
	defer release()
	return a.kind.json(object)
}

// A trimmedWatch is the body of a watch whose events have smaller objects. One goroutine may read it.
type trimmedWatch struct {
	answer
	next  func() ([]byte, error) // reads an event from the body, and returns it smaller
	event []byte                 // what has not been read of the last event
}

// Read implements io.Reader.
func (w *trimmedWatch) Read(p []byte) (n int, err error) {
	for len(w.event) == 0 {
		if w.event, err = w.next(); err != nil {
			return 0, err
		}
	}
	n = copy(p, w.event)
	w.event = w.event[n:]
	return n, nil
}

// Close implements io.Closer.
func (w *trimmedWatch) Close() error { return w.from.Close() }

// protobufEvent reads an event: its length in four bytes, and a metav1.WatchEvent.
func (a *answer) protobufEvent() ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(a.body, length[:]); err != nil {
		return nil, err // io.EOF is the end of the watch
	}
	size := int64(binary.BigEndian.Uint32(length[:]))
	if size > largestObject {
		return nil, fmt.Errorf("it has an event of %d bytes, more than %d", size, largestObject)
	}
	small, kind := length[:], ""
	err := a.eachField(size, func(field protowire.Number, size int64) (err error) {
		var value []byte
		if field == eventObject && ofObject(kind) {
			value, err = a.extension(size)
		} else {
			value, err = a.read(size, largestHeader)
		}
		if field == eventType {
			kind = string(value)
		}
		small = appendField(small, field, value)
		return err
	})
	binary.BigEndian.PutUint32(small, uint32(len(small)-len(length))) //nolint:gosec // it is small
	a.scratch = nil                                                   // the next event may be minutes away
	return small, err
}

// extension is a runtime.RawExtension with a smaller object.
func (a *answer) extension(size int64) (small []byte, err error) {
	err = a.eachField(size, func(field protowire.Number, size int64) error {
		if field != extensionRaw {
			return fmt.Errorf("an event has a field %d in its object", field)
		}
		object, err := a.protobufAnswer(size, false)
		small = appendField(small, field, object)
		return err
	})
	return small, err
}

func (a *answer) jsonEvent(events *json.Decoder) ([]byte, error) {
	var event struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	err := events.Decode(&event)
	if err == nil && ofObject(event.Type) {
		event.Object, err = a.jsonObject(event.Object)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(event)
}

// ofObject reports whether an event of a watch is about an object. Others tell of the watch: errors and bookmarks.
func ofObject(event string) bool {
	switch watch.EventType(event) {
	case watch.Added, watch.Modified, watch.Deleted:
		return true
	default:
		return false
	}
}
