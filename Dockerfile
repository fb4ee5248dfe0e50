# syntax=docker/dockerfile:1

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# The same commit gives the same bytes: no C, no paths of this stage, no link-time id. Version and revision come
# from the repository, which therefore belongs to the context.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    git config --global --add safe.directory /src && \
    CGO_ENABLED=0 GOFLAGS= go build -trimpath -buildvcs=auto -ldflags='-s -w -buildid=' -o /processor ./cmd/processor

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /processor /processor
USER 65532:65532
EXPOSE 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["/processor"]
CMD ["--help"]
