# All it takes is Go, make and git: the tools come from the modules under hack/,
# the control plane of the tests is compiled from its own.

PACKAGE  := ./cmd/node-termination-handler
MODULE   := github.com/node-termination-handler/node-termination-handler
# What needs a control plane is under e2e; the rest is quick.
UNIT     := ./cmd/... ./internal/... ./docs ./e2e/awssim
E2E      := ./e2e/...
TOOL     := go tool -modfile=hack/tools/go.mod
# The race detector needs a C compiler; Go knows whether there is one.
RACE     := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
HELM     := go -C hack/helm tool helm
# A tag such as v1.2.3 is the version; between tags it is named after the commit.
VERSION  ?= $(or $(patsubst v%,%,$(shell git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null)),0.0.0-g$(shell git rev-parse --short HEAD))
RELEASE   = go -C hack/release run . -version $(VERSION) -commit $(shell git rev-parse HEAD) $(if $(FIPS),-fips) $(if $(PLATFORMS),-platforms $(PLATFORMS)) $(RELEASE_FLAGS)
# The commit of the binary: dirty if what it is made of has changed since.
BUILT     = $(shell git rev-parse --short=12 HEAD)$(shell git diff --quiet HEAD -- cmd internal go.mod go.sum || echo -dirty)
DIST     := $(CURDIR)/dist
# Nine targets: an hour in all.
FUZZTIME ?= 7m
BENCH    ?= .

# What make prometheus has fetched.
export PATH := $(PATH):$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/node-termination-handler/prometheus/usr/bin

MODULES  := iac release karpenter browser

.PHONY: help build prometheus chromium test test-all unit race iac e2e e2e-all scenarios demo playground storm chaos faults faults-virtual lives soak figures matrix image chart release notes lint lint-hack $(MODULES:%=lint-%) lint-workflows lint-windows fmt generate pictures bench fuzz vuln clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## compile the program to bin/
	go build $(TRIM) -o bin/ $(PACKAGE)

prometheus: ## fetch Prometheus, which the tests of alerts and dashboard need
	hack/prometheus.sh

chromium: ## install Chromium, which the tests of the page need
	hack/chromium.sh

test: unit iac e2e ## run the tests of the gate: unit, stories, fuzz seeds, templates, scenarios; make test-all has the rest

test-all: ## play everything, for hours: the gate, all scenarios, race detector, other Kubernetes, chaos, faults, lives, soak, fuzzing, release; STEPS="chaos soak": of these
	@hack/test-all $(STEPS)

# What is compiled here has no path of this directory in it: another clone finds it in Go's cache.
TRIM   := -trimpath
# The limit is for what hangs, not for what is slow. go vet is a part of make lint.
GOTEST := go test $(TRIM) -vet=off -ldflags='-s -w' -timeout 60m

unit: ## run the tests that need no control plane
	$(GOTEST) $(UNIT)

# The race detector makes tests several times slower, and tells nothing of memory: what plays many rounds plays
# a tenth with it, and what takes minutes even so is left out with SHORT=-short, as in the gate (e2e/race).
race: ## the same with the race detector; PACKAGES=./internal/queue: of these
	$(GOTEST) $(RACE) $(SHORT) $(or $(PACKAGES),$(UNIT))

# What CloudFormation and IAM say comes from npm. Without it these tests are
# skipped, but fail where CI is set. Go does not see when files of another module
# change: hence -count=1.
iac: ## test the templates in deploy/cloudformation and deploy/terraform
	cd hack/iac && $(GOTEST) -count=1 ./...

# What takes long or minutes to compile is left to e2e-all: see e2e/tier.
e2e: SHORT := -short
e2e: scenarios ## run the end-to-end tests of the gate on a real control plane; KUBERNETES=1.35: on that of this version

e2e-all: ## run all end-to-end tests
	@echo "compiling the program as it is released, unless that was done before: 2 to 3 minutes on 2 cores"
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /dev/null $(PACKAGE)
	@echo "compiling the FIPS variant, unless that was done before: 2 to 3 minutes on 2 cores"
	@CGO_ENABLED=0 GOFIPS140=certified go build -trimpath -o /dev/null $(PACKAGE)
	@echo "compiling Karpenter, unless that was done before: 2 to 4 minutes on 2 cores"
	@go -C hack/karpenter build -ldflags '-s -w' -o /dev/null .
	@go -C hack/browser tool -n browser >/dev/null
	@$(MAKE) scenarios SEEDS='-fault-seed 0'

# What the tests run is compiled first: a test that waits for a compiler is late. The scenarios of ./e2e wait most of the time,
# so that ten fit on two cores, if nothing else runs. With more the API server answers after seconds, and nothing ends sooner.
# They run the binary, which Go's cache of test results does not know of: hence -count=1. A scenario that failed is played
# again alone: see e2e/again.
scenarios:
	@echo "compiling the program, Helm and kubectl, unless that was done before: 3 to 5 minutes on 2 cores"
	@go build $(TRIM) -o /dev/null $(PACKAGE)
	@go -C hack/helm tool -n helm >/dev/null
	@go -C hack/helm tool -n kubectl >/dev/null
	$(GOTEST) -count=1 -v -run '^TestBuild$$' ./e2e/sandbox
	rc=0; $(GOTEST) $(SHORT) -count=1 $(filter-out ./e2e ./e2e/awssim,$(patsubst $(MODULE)/%,./%,$(shell go list $(E2E)))) || rc=1; \
	go run $(TRIM) ./e2e/again $(TRIM) -vet=off -ldflags='-s -w' -timeout 60m $(SHORT) -parallel 10 ./e2e $(SEEDS) && exit $$rc

# A version takes 4 to 6 minutes to compile on 2 cores, the first time, and 6 to play.
matrix: ## play the scenarios on each version of Kubernetes, or on that of KUBERNETES; write the table of docs/support.md
	@go -C hack/helm tool -n helm >/dev/null
	@go -C hack/helm tool -n kubectl >/dev/null
	go run ./e2e/matrix

demo: ## see it work: three notices, three drained nodes, a killed leader
	@echo "compiling the controller and the demo: the first time takes 2 to 3 minutes on 2 cores"
	@go build $(TRIM) -o bin/ $(PACKAGE) ./e2e/demo
	@bin/demo -handler bin/node-termination-handler

playground: ## the demo's cluster, AWS and handler to try the commands on, until Ctrl-C
	@echo "compiling the controller and the demo: the first time takes 2 to 3 minutes on 2 cores"
	@go build $(TRIM) -o bin/ $(PACKAGE) ./e2e/demo
	@bin/demo -handler bin/node-termination-handler -playground bin/playground.env

# The binary as the Dockerfile makes it; options by name, such as NODES=300 PODS=5.
storm: ## measure a storm of notices: NODES, PODS, KIND, STOP, FOREIGN, LATENCY, EC2RATE, IDLE, ARGS
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.commit=$(BUILT)' -o bin/ $(PACKAGE)
	go run ./e2e/storm -nodes $(or $(NODES),100) -pods $(or $(PODS),10) -kind $(or $(KIND),spot) -stop $(or $(STOP),100ms) \
		-foreign $(or $(FOREIGN),0) -latency $(or $(LATENCY),0) -ec2-rate $(or $(EC2RATE),0) -idle $(or $(IDLE),0) $(ARGS)

# A push takes REGISTRY_USER and REGISTRY_PASSWORD, or else what docker login has written.
image: ## write the image to dist/image, an OCI layout; PLATFORMS=linux/amd64,linux/arm64; FIPS=1; PUSH=REGISTRY/NAME:TAG pushes it
	$(RELEASE) image $(DIST)/image $(PUSH)

chart: ## pack the Helm chart of VERSION into dist/; PUSH=oci://REGISTRY/PATH publishes it
	$(RELEASE) chart $(DIST)
	$(if $(PUSH),$(HELM) push $(DIST)/node-termination-handler-$(VERSION).tgz $(PUSH))

# Seven programs are compiled: a quarter of an hour on 2 cores, the first time.
release: ## write archives, SBOMs, chart, images, licences, provenance and checksums of VERSION to dist/
	$(RELEASE) all $(DIST)

notes: ## print what the changelog says about VERSION
	$(RELEASE) notes

# An hour on 2 cores, most of it spent waiting for leases to run out. More plays beside each other slow down the
# control plane, and takeovers with it. All three parts are played, though one fails.
chaos: ## kill the leader before and after its calls, and print a table
	go test -c -o bin/chaos.test ./e2e
	cd e2e && rc=0; \
	../bin/chaos.test -chaos -test.timeout 45m -test.run ThoughTheAPIServerAnswersLate || rc=1; \
	../bin/chaos.test -chaos -test.timeout 150m -test.run MayBeKilledAtAny -test.parallel 6 || rc=1; \
	exit $$rc

# What is measured in MiB, in megabytes a second, or against a few seconds, is so on a machine that has nothing else to do.
figures: ## measure what a handler takes that rests, and how it copes with large pods, many connections, 500 drains to resume
	go test -c -o bin/chaos.test ./e2e
	cd e2e && ../bin/chaos.test -chaos -test.timeout 45m -test.parallel 1 -test.run 'LargeObjectsOfOneTenant|AtRestItTakesLittle|Resumes500Nodes'
	go test ./internal/app -count=1 -v -run 20000Connections -flood-minute

# A test that fails fails the target, though its output is filtered.
faults faults-virtual lives: SHELL := bash
faults faults-virtual lives: .SHELLFLAGS := -o pipefail -c

# On the real control plane, by way of proxies: the calls of two replicas of the binary.
faults: ## let every call fail in every way, and print a table; bin/faults.log has why a play failed
	mkdir -p bin
	go test ./e2e -count=1 -run NothingIsLostWhateverCall -faults -parallel 14 -timeout 2h -v | tee bin/faults.log | grep -e '^ok' -e FAIL -e ' | '

faults-virtual: ## the same in virtual time, for the calls of a whole installation
	go test ./internal/controller -run NothingIsLost -faults -fault-runs 200 -fault-seed 0 -timeout 2h -v | grep -e '^ok' -e FAIL -e ' | ' -e fault-seed

# Each is a few machines over minutes to days of virtual time. A history that fails is
# printed with its seed; hack/lives-mutants tells what would be found.
lives: ## play 10,000 random lives of nodes against the invariants
	go test ./internal/controller -count=1 -run '^TestLives$$' -lives 10000 -lives-seed 0 -timeout 2h -v | grep -v -e '^=== ' -e '--- PASS'

lint: ## check the code: golangci-lint, which has go vet; and that each planted defect fits it
	hack/lives-mutants 0
	$(TOOL) golangci-lint run --allow-parallel-runners ./...

lint-hack: $(MODULES:%=lint-%) lint-workflows ## the same for the modules under hack; and the workflows: actionlint

$(MODULES:%=lint-%): lint-%:
	cd hack/$* && go tool -modfile=../tools/go.mod golangci-lint run --allow-parallel-runners ./...

lint-workflows:
	go tool -modfile=hack/tools/actionlint/go.mod actionlint -shellcheck= -pyflakes= .github/workflows/*.yml

lint-windows: ## compile the program for Windows
	CGO_ENABLED=0 GOOS=windows go build -trimpath -o /dev/null $(PACKAGE)

fmt: ## format the code
	$(TOOL) golangci-lint fmt ./...

generate: ## write anew what comes from the code: help, options, notices, metrics, pictures, the figures of storms, the chart's values, the manifests, the schema of the policy file
	go test $(PACKAGE) -run 'Help' -update
	go test ./internal/policyfile -run Schema -update
	go test ./internal/overview -run TheDoc -update
	go test ./internal/options -run 'Options|Chart' -update
	go test ./internal/telemetry -run 'MetricsDoc|PictureOfTheDoc' -update
	go test ./internal/webhook -run PictureOfTheDoc -update
	go test ./internal/controller -run NoticesDoc -update
	go test ./e2e/storm/figures -update
	go test ./e2e/helm -short -update

# The page and the dashboard show storms in the sandbox, and the page a day that nobody has waited for.
pictures: ## take the pictures in docs/pictures: of the page, with Chromium, and of the dashboard, with Prometheus
	@rm -rf bin/pictures && mkdir -p bin/pictures/day docs/pictures
	go test -count=1 ./e2e -run 'EveryPanelOfTheDashboardHasData|TestAStormIsSeenOnThePage' -pictures $(CURDIR)/bin/pictures
	go test -count=1 ./e2e/browser -run TestAStormIsSeen -pictures $(CURDIR)/bin/pictures/day
	cp bin/pictures/dashboard.svg docs/pictures/dashboard.svg
	cp bin/pictures/light.png docs/pictures/page.png
	cp bin/pictures/day/dark.png docs/pictures/page-day.png
	chmod 644 docs/pictures/*

soak: ## handle 100,000 notices one after another and see that nothing grows
	go test ./internal/controller -run NothingGrows -soak 100000 -timeout 2h

# Both are measured in one run on one machine: a time by itself says nothing.
bench: ## compare the benchmarks that match BENCH (default: all) with those of BASE (default: the last release, else HEAD)
	@hack/bench '$(BENCH)' '$(BASE)'

fuzz: ## run each fuzz target for FUZZTIME (default: 7m, an hour in all)
	@hack/fuzz $(FUZZTIME)

# It asks vuln.go.dev, which not every machine can reach.
vuln: ## look the dependencies up in Go's database of vulnerabilities
	$(TOOL) govulncheck ./...

clean: ## remove bin/ and dist/; the compiled control plane stays in the user's cache directory
	rm -rf bin dist
