# make image makes the same image without a container engine. The version of Go is
# that of the toolchain line in go.mod.
FROM --platform=$BUILDPLATFORM golang:1.26.8@sha256:3c3e25a4da13fd0478eed2df1eb35a0e667094a7124d3993a6a1d30f71c17e79 AS build
ARG TARGETOS TARGETARCH VERSION=0.0.0-dev COMMIT=unknown GOFIPS140=off
WORKDIR /src
COPY go.mod go.sum ./
COPY hack/release/go.mod hack/release/go.sum hack/release/
RUN go mod download && go -C hack/release mod download
COPY LICENSE ./
COPY cmd cmd
COPY internal internal
COPY hack/release hack/release
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" \
    -o /node-termination-handler ./cmd/node-termination-handler
RUN GOFIPS140=off go -C hack/release run . rootfs /rootfs /node-termination-handler

# There is no base image: the CA certificates, the user, /tmp and the licences are ours.
FROM scratch
COPY --from=build /rootfs/ /
COPY --from=build /node-termination-handler /node-termination-handler
USER 65532:65532
ENTRYPOINT ["/node-termination-handler"]
