# syntax=docker/dockerfile:1
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=dev COMMIT=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" \
    -o /node-termination-handler ./cmd/node-termination-handler

FROM gcr.io/distroless/static:nonroot
COPY --from=build /node-termination-handler /node-termination-handler
USER 65532:65532
ENTRYPOINT ["/node-termination-handler"]
