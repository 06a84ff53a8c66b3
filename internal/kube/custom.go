package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// A Custom lists and watches the objects of a custom resource, in all namespaces, as JSON. O has the fields
// of an object that the caller reads, L is a list of them. The dynamic client of client-go keeps whole
// objects, as maps.
//
// A resource that the API server does not have is an error for which
// [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is true.
type Custom[O, L runtime.Object] struct {
	Client rest.Interface // of any API group
	// Path is that of the resource: /apis/GROUP/VERSION/RESOURCE.
	Path    string
	Object  func() O // a new one
	Objects func() L // a new one
}

// List implements [Objects].
func (c Custom[O, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	list := c.Objects()
	result := c.get(opts).Do(ctx)
	err := result.Error() // unlike that of Raw it says what the API server says
	if err == nil {
		body, _ := result.Raw() // the error is the same
		err = json.Unmarshal(body, list)
	}
	if err != nil {
		return list, fmt.Errorf("list %s: %w", c.Path, err)
	}
	return list, nil
}

// Watch implements [Objects].
func (c Custom[O, L]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	body, err := c.get(opts).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", c.Path, err)
	}
	return watch.NewStreamWatcher(eventDecoder[O]{json.NewDecoder(body), body, c.Object}, nil), nil
}

// eventDecoder reads the events of a watch. It implements [watch.Decoder].
type eventDecoder[O runtime.Object] struct {
	events *json.Decoder
	body   io.Closer
	object func() O
}

// Decode implements watch.Decoder. What cannot be read ends the watch, after which another one begins.
func (d eventDecoder[O]) Decode() (watch.EventType, runtime.Object, error) {
	var e struct {
		Type   watch.EventType
		Object json.RawMessage
	}
	if d.events.Decode(&e) != nil {
		return "", nil, io.EOF
	}
	var object runtime.Object = d.object()
	if e.Type == watch.Error {
		object = &metav1.Status{}
	}
	if json.Unmarshal(e.Object, object) != nil {
		return "", nil, io.EOF
	}
	return e.Type, object, nil
}

// Close implements watch.Decoder.
func (d eventDecoder[O]) Close() { _ = d.body.Close() }

// IsWatchListSemanticsUnSupported makes a reflector list before it watches.
func (Custom[O, L]) IsWatchListSemanticsUnSupported() bool { return true }

func (c Custom[O, L]) get(opts metav1.ListOptions) *rest.Request {
	// A client of another group may ask for protobuf, which custom resources do not have.
	return c.Client.Get().AbsPath(c.Path).VersionedParams(&opts, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeJSON)
}
