package kubesim

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// A codec is one of the two encodings that the API server speaks.
type codec struct {
	index  int // of what is kept for each codec
	info   runtime.SerializerInfo
	stream string // the content type of a watch
}

const codecCount = 2

var (
	jsonCodec     = newCodec(0, runtime.ContentTypeJSON)
	protobufCodec = newCodec(1, runtime.ContentTypeProtobuf)
)

func newCodec(index int, mediaType string) *codec {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	c := &codec{index: index, info: info, stream: mediaType}
	if mediaType != runtime.ContentTypeJSON {
		c.stream += ";stream=watch"
	}
	return c
}

// codecFor is that of an answer: the first one that the client accepts.
func codecFor(r *http.Request) *codec {
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		mediaType, _, err := mime.ParseMediaType(accepted)
		switch {
		case err != nil:
		case mediaType == runtime.ContentTypeProtobuf:
			return protobufCodec
		case mediaType == runtime.ContentTypeJSON:
			return jsonCodec
		}
	}
	return jsonCodec
}

// write answers with an object, which has its TypeMeta.
func (c *codec) write(w http.ResponseWriter, code int, object runtime.Object) {
	var body bytes.Buffer
	if err := c.info.Serializer.Encode(object, &body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", c.info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes()) // the client may have gone
}

// frame is one event of a watch as it is sent.
func (c *codec) frame(kind watch.EventType, object runtime.Object) ([]byte, error) {
	raw, err := runtime.Encode(c.info.Serializer, object)
	if err != nil {
		return nil, err
	}
	var framed bytes.Buffer
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	err = c.info.StreamSerializer.Encode(event, c.info.StreamSerializer.NewFrameWriter(&framed))
	return framed.Bytes(), err
}

// readBody reads the object that a request brings; without a body into stays as it is.
func readBody[T runtime.Object](r *http.Request, into T) (T, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) == 0 {
		return into, err
	}
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	return into, err
}
