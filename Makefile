# Commands for contributors; see CONTRIBUTING.md. Each is a single command, so make is optional.

GO ?= go

.DEFAULT_GOAL := help
.PHONY: help build run test check deep gen bench matrix

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build ./service
	$(GO) build -o service .

run: build ## Run the demo: temporary data, two receivers, sample events (ARGS="--listen 127.0.0.1:9443")
	./service serve --demo $(ARGS)

# An in-memory file system with 1 GB free, if there is one. The drills of make check write to a
# disk.
memory := $(shell { df -P /dev/shm | awk 'NR == 2 && $$4 > 1048576 { print "/dev/shm" }'; } 2>/dev/null)

# -w leaves out DWARF, which takes half the time of linking; stack traces do not need it.
PACKAGES ?= ./dispatcher ./store/... ./api ./web ./internal/... ./...
test: build ## Run the short tests of every package, those that take longest first (TESTFLAGS=-race)
	$(if $(memory),TMPDIR=$(memory)) GOGC=400 SERVICE_TEST_BINARY=$(CURDIR)/service \
		$(GO) test -ldflags=-w -short -timeout 20m -p 4 -parallel 4 $(TESTFLAGS) $(PACKAGES)

check: ## Run what blocks a push, 8 minutes; installs missing tools when run as root
	bash .ci/run

deep: ## Run the deep shards whose files have changed since REV (REV=origin/main), 15 minutes each
	bash .ci/deep --since $(or $(REV),origin/main)

matrix: build ## Run the full failover matrix, about 30 minutes; RUN selects tests (RUN=TestMatrix/kill)
	SERVICE_TEST_BINARY=$(CURDIR)/service $(GO) test -v -count 1 -timeout 90m -run '$(or $(RUN),.)' ./test/matrix -matrix.full

gen: ## Regenerate the templ code and the asset bundle
	$(GO) generate ./...

bench: ## Run the benchmarks; BENCH selects some of them (BENCH=Publish)
	$(GO) test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem ./webhook ./store/... ./dispatcher/... ./api
