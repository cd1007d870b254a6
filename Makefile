# Forebay. `make` alone prints the targets.
GO      ?= go
TOOL    := $(GO) tool -modfile=tools/go.mod
BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
# The client of Google Cloud Storage brings gRPC's xDS with it, 12 MB of the program; buckets are spoken to over HTTP.
TAGS    := disable_grpc_modules
FUZZTIME ?= 20s
ARGS    ?=
STORES  ?= $(HOME)/.cache/forebay/stores
SOAK    ?= 1h
STORM   ?= -storm 5000 -storm-broken 80 -storm-timed

.DEFAULT_GOAL := help
.PHONY: help build demo test race lint fuzz crash test-kafka test-s3 test-stores test-clients bench bench-mqtt bench-bridge bench-kafka bench-tier storm soak generate clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/forebay and bin/loadtest
	CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/forebay ./cmd/forebay
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/loadtest ./loadtest

demo: build ## run the whole way on this machine with the embedded upstream (ARGS="--duration 10s --outage 5s")
	$(BIN)/forebay demo $(ARGS)

test: ## run the tests, short forms (a few minutes)
	$(GO) test -short ./...

race: ## run the tests with the race detector, one package after the other
	$(GO) test -race -short -p 1 ./...

lint: ## gofumpt, vet, staticcheck
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofumpt-clean:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

fuzz: ## run every fuzz target for FUZZTIME (20s) each
	GO=$(GO) FUZZTIME=$(FUZZTIME) ./.ci/fuzz

crash: ## kill -9, full disk and power cut rounds, long form
	FOREBAY_CRASH=long $(GO) test -count=1 -timeout 60m -run 'Kill|Crash|Power|Full|EncryptedSpoolPasses' ./spool/... ./mqtt/... ./tiering ./cmd/forebay ./loadtest/...

test-kafka: ## tests against a real Apache Kafka (needs Java 17 and Maven; fetches 45 MB once)
	$(GO) test -count=1 -timeout 30m -run 'Kafka' ./bridge/kafkatest/... ./bridge/... ./loadtest/...

test-s3: ## tests against a server of S3, with broken connections too (builds both once, one minute)
	./.ci/stores $(STORES) s3
	FOREBAY_STORE_SERVERS=$(STORES) $(GO) test -count=1 -timeout 10m -run 'StoresS3' ./tiering/...

test-stores: ## tests against servers of S3, Azure Blob and Google Cloud Storage (needs Node.js, Python; fetches 300 MB once, four minutes)
	./.ci/stores $(STORES)
	FOREBAY_STORE_SERVERS=$(STORES) FOREBAY_PYTHON=$(STORES)/python/bin/python $(GO) test -count=1 -timeout 10m -run 'Stores' ./tiering/...

test-clients: ## foreign MQTT clients and kcat against the real binary (needs mosquitto-clients, Paho C, kcat, Node.js)
	$(GO) test -count=1 -timeout 10m -parallel 8 ./loadtest/clients/...

bench: ## the spool beside the disk's limit and other logs, figures beside their targets (ARGS="-quick", "-only loads", "-json")
	cd spool/bench && $(GO) run . $(ARGS)

bench-mqtt: build ## beside Mosquitto, NATS and mochi, in turns (needs mosquitto, strace; ARGS="-list", '-rows q1-*', "-rounds 1")
	cd loadtest/versus/peers && CGO_ENABLED=0 $(GO) build -o ../../../$(BIN)/peers .
	cd spool/bench && CGO_ENABLED=0 $(GO) build -o ../../$(BIN)/spoolbench .
	$(GO) run ./loadtest/versus $(ARGS)

storm: ## 5,000 TLS clients at once, 80 broken handshakes among them, beside clients that publish
	$(GO) test -count=1 -v -timeout 10m -run TestStorm ./loadtest/proof -args $(STORM)

soak: ## publish and subscribe for SOAK (1h): memory, goroutines and descriptors stay flat
	$(GO) test -count=1 -v -timeout 0 -run TestSoak ./loadtest/proof -args -soak $(SOAK) $(ARGS)

bench-bridge: ## the bridge beside the plain producer and beside Mosquitto with a bridge, an outage (Java 17, Maven, mosquitto; 20 minutes)
	$(GO) test -run '^$$' -bench 'KafkaBesidePlain|KafkaOneTopicStuck|KafkaExactlyOnce' -benchtime 1x -timeout 30m ./bridge
	$(GO) test -run '^$$' -bench 'WholeWay|Outage' -benchtime 1x -timeout 30m ./loadtest/proof

bench-kafka: ## publish to Kafka, p50 and p99 at 5,000 messages a second (needs Java 17 and Maven)
	$(GO) test -run '^$$' -bench PublishToKafka -benchtime 1x -count 5 ./loadtest/proof

bench-tier: ## a directory as the store: cold replay beside local, upload beside a plain copy, acknowledgements under upload
	$(GO) test -run '^$$' -bench Tier -benchtime 1x -count 3 ./tiering

generate: ## rewrite what is generated (configuration reference, schema, list of metrics)
	$(GO) generate ./...

clean: ## remove what was built
	rm -rf $(BIN) data
