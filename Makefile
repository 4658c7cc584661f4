# Everything a developer does, in one place. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := bash
# Always the whole workspace: a package built alone has other features, and builds all again.
XTASK := cargo run --locked --quiet --bin xtask --

.PHONY: help
help: ## this list
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+)[a-z -]*:.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: test
test: tools-ministack tools-sam tools-consumer ## all tests, with the servers they need
	$(XTASK) test

.PHONY: demo
demo: tools-ministack tools-sam ## deals by the hundred on the deployed template, with trouble, and the books at the end
	$(XTASK) demo

.PHONY: invoke
invoke: tools-ministack tools-sam ## one function on one event: FUNCTION=deposit-confirmed EVENT=events/…
	@if [ -z "$(FUNCTION)" ] || [ -z "$(EVENT)" ]; then \
	  echo "usage: make invoke FUNCTION=deposit-confirmed EVENT=events/deposit-confirmed/confirmed.json"; exit 2; fi
	$(XTASK) invoke "$(FUNCTION)" "$(EVENT)"

.PHONY: deploy-local up send down
deploy-local up: tools-ministack tools-sam ## the real template deployed on this machine, with Kafka behind it; again: what changed
	$(XTASK) up
send: ## a sample's records onto that Kafka: EVENT=events/deposit-confirmed/confirmed.json
	@if [ -z "$(EVENT)" ]; then echo "usage: make send EVENT=events/deposit-confirmed/confirmed.json"; exit 2; fi
	$(XTASK) send "$(EVENT)"
down: ## stops what `make up` started
	$(XTASK) down

.PHONY: sam-local
sam-local: tools-ministack tools-sam ## every file in events/ through `sam local invoke`, held against the expected answers
	$(XTASK) sam-local

.PHONY: stories
stories: tools-ministack tools-sam ## tells tools/testbed/stories on the deployed template, and writes down what comes of it
	$(XTASK) stories

.PHONY: soak
soak: tools-ministack tools-sam ## relays and Apache Kafka killed under load: FACTS=50000
	ESCROW_SOAK_FACTS=$(or $(FACTS),50000) $(XTASK) soak

.PHONY: bench-relay
bench-relay: tools-ministack tools-sam ## the relay against a bare rdkafka loop, and what an idle pass costs: FACTS=1000000
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=3 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	  cargo run --locked --quiet --release --bin xtask -- bench-relay

.PHONY: run-sample-consumer
run-sample-consumer: tools-consumer ## shows what the relay publishes, each message once: ARGS="--until-idle 5"
	@.tools/consumer/bin/python tools/sample-consumer/sample_consumer.py $(ARGS)

.PHONY: check
check: ## formatting, lints, generated files, template
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(XTASK) events --check
	$(XTASK) diagram --check
	$(XTASK) schemas --check
	tools/check-template
	$(XTASK) catalog > .tools/catalog.json
	.tools/sam/bin/python tools/python/compare.py .tools/catalog.json .tools/translated/template.json

.PHONY: events
events: ## make the files in events/ from the code
	$(XTASK) events

.PHONY: diagram
diagram: ## make docs/state-machine.md from the code
	$(XTASK) diagram

.PHONY: schemas
schemas: ## make docs/events.md from docs/schemas
	$(XTASK) schemas

.PHONY: tools-ministack tools-sam tools-consumer
tools-ministack:
	@tools/setup ministack
tools-sam:
	@tools/setup sam
tools-consumer:
	@tools/setup consumer

.PHONY: clean
clean: ## what was built; the tools stay
	cargo clean
