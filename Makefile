# Everything a developer runs. `make test` needs Go, a C compiler (race detector), and either a Docker engine or
# a JDK and Maven; on Debian as root the services' other packages are installed on the way.

GO      ?= go
# Two packages at a time: the tests share the machine with Kafka and Postgres.
P       ?= 2
PKGS    ?= ./...
TIMEOUT ?= 20m
FUZZ    ?= 10s
# Kept when GOFLAGS says otherwise: `processor version` reads the revision from the build info.
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto

.PHONY: build test test-short test-long model lint fmt vet vuln fuzz-smoke compose demo bench services ci clean

build:
	$(BUILD) -o bin/processor ./cmd/processor

# Real Kafka, PostgreSQL and Redis; running ones are used as they are.
services:
	scripts/services up

test: services
	$(GO) test -race -p $(P) -timeout $(TIMEOUT) $(PKGS)

# While editing: no race detector, and tests that look at testing.Short do less.
test-short: services
	$(GO) test -short -p $(P) -timeout 5m $(PKGS)

# Uncached and three times over, against what only shows now and then.
test-long: services
	EFFECTONCE_E2E_SEEDS=5 $(GO) test -race -p $(P) -timeout 60m -count 3 $(PKGS)

# The protocol's model with budgets that take ten minutes and more, and 5 GiB; `make test` has the small ones.
model:
	EFFECTONCE_MODEL=large $(GO) test -v -count 1 -timeout 3h ./internal/model

# The linter's dependencies have a module of their own. Cold, it takes about three minutes to compile.
bin/tools/%: tools/go.mod tools/go.sum
	CGO_ENABLED=0 $(GO) build -C tools -trimpath -buildvcs=false -o ../$@ $(TOOL)

bin/tools/golangci-lint: TOOL = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
bin/tools/govulncheck: TOOL = golang.org/x/vuln/cmd/govulncheck

lint: bin/tools/golangci-lint
	bin/tools/golangci-lint run $(PKGS)

fmt: bin/tools/golangci-lint
	bin/tools/golangci-lint fmt $(PKGS)

vet:
	$(GO) vet $(PKGS)
	GOOS=linux GOARCH=arm64 $(GO) vet $(PKGS)
	GOOS=darwin GOARCH=arm64 $(GO) vet $(PKGS)

# Known vulnerabilities in what the program calls; says so when the database cannot be reached.
vuln: bin/tools/govulncheck
	scripts/vulncheck $(PKGS)

# Every fuzz target for a short while, from its seeds.
fuzz-smoke:
	GO=$(GO) FUZZ=$(FUZZ) scripts/fuzz-smoke $(PKGS)

compose:
	scripts/compose-check

demo: build
	bin/processor demo

bench: build services
	bin/processor bench throughput

ci:
	.ci/run

clean:
	scripts/services down --data
	rm -rf bin dist
