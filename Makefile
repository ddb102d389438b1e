# `make run` and `make test` need nothing but Debian (or its like), Python 3.11 and make: they set up the rest themselves.
# Set-up is remembered by the files in .stamps and done again when what it depends on is newer.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SEEDS ?= 2000
JOBS ?= 2
# Compiled, the tests of real clusters wait more than they compute: with three for two processors, a third of the time.
JOBS_COMPILED ?= 4
COMPARED := throughput,paced,memory,subscriptions,wildcards,persistence,nats
ROUNDS ?= 50
MINUTES ?= 10
LOAD ?= 0
KINDS ?=
NODES ?= 3
FUZZ ?= 60
N ?= 20
DIR ?= starling

BIN := $(VENV)/bin
PY := $(BIN)/python
BANDIT := $(BIN)/bandit --quiet --configfile pyproject.toml --recursive src
INSTALL := scripts/install $(VENV)
# In the order of tests/conftest.py: the files of long tests first.
BY_FILE := --dist loadfile --no-loadscope-reorder
CHECKED := src tests bench compiling examples scripts/site_pages.py scripts/site_versions.py scripts/bill_of_materials.py scripts/oci_image.py setup.py

# Every test and every broker that a test starts would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help setup check setup-run setup-test ready-pure run cluster test interpreted test-all test-fast test-pure test-compiled test-long flaky durations coverage style types conformance instructions bench bench-suite bench-transports bench-million bench-copies bench-owners bench-comeback bench-pipeline test-lake chaos-pipeline comparison scale demo fuzz security crash sim chaos chaos-storage chaos-cluster chaos-copies chaos-operations lock proto site site-versions clean

VERBS := setup test check bench release

help: ## list the targets
	@for verb in $(VERBS); do sed -n "s/^\\($$verb\\):[^#]*## \\(.*\\)/  make \\1|\\2/p" $(MAKEFILE_LIST); done | column -t -s '|'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | grep -v -E '^  make ($(subst $(eval ) ,|,$(VERBS)))\|' | column -t -s '|'

# The first time they run interpreted, while the hot modules are compiled beside them.
run: system-run .stamps/runnable ## set everything up and run one broker (ARGS="--listen mqtt://127.0.0.1:1884 ...")
	@exec $(PY) -m compiling --meanwhile $(BIN)/starlingmq serve $(ARGS)

cluster: system-cluster .stamps/runnable ## set everything up and run a cluster of three nodes, etcd included (NODES=3 DIR=starling)
	@exec $(PY) -m compiling --meanwhile $(BIN)/starlingmq cluster up --nodes $(NODES) --dir $(DIR) $(ARGS)

# While the hot modules are compiled, with what the processors have left, the rest is set up, and what needs nothing
# compiled is run.
test: .stamps/installed ## set everything up and run all tests: style, types, interpreted, compiled
	@$(MAKE) -j 2 compiled-beside interpreted
	@$(MAKE) test-compiled

interpreted: ready-pure
	@$(MAKE) style
	@$(MAKE) types
	@$(MAKE) test-pure KINDS="and not compiled_suffices"

test-fast: .stamps/installed ## the quickest tests, interpreted, in less than a minute
	STARLINGMQ_PURE=1 $(PY) -m pytest -q -n $(JOBS) $(BY_FILE) --quickest 40 -m "not slow and not long and not compiled_only" $(ARGS)

test-pure: ready-pure
	STARLINGMQ_PURE=1 $(PY) $(COVERED) -m pytest -q -n $(JOBS) $(BY_FILE) -m "(not slow or interpreted_only) and not long and not compiled_only $(KINDS)" $(ARGS)

test-compiled: setup-test
	$(PY) -m pytest -q -n $(JOBS_COMPILED) $(BY_FILE) -m "not long and (hot or slow or compiled_only)" $(ARGS)

# First those that run interpreted only, as planted mistakes do; ARGS may name none of them (5).
test-long: setup-test ## the tests that take longest: rolling restarts, and Spark while everything is killed
	STARLINGMQ_PURE=1 $(PY) -m pytest -q -n $(JOBS) $(BY_FILE) -m "long and interpreted_only" $(ARGS) || [ $$? = 5 ]
	$(PY) -m pytest -q -n $(JOBS) $(BY_FILE) -m "long and not interpreted_only and not shipped" $(ARGS)

test-all: test ## everything: also what takes longest, sinks with their real packages, and attacks (two hours)
	@$(MAKE) test-long test-lake security

flaky: setup-test ## the tests that changed, N times on a quiet machine and N times beside six busy processes (N=20, ARGS="tests/net")
	$(PY) -m tests.flaky --times $(N) $(ARGS)

durations: setup-test ## run all tests as make test does and record what each file takes: the schedule of make test (tests/durations.tsv)
	$(MAKE) test-pure test-compiled KINDS="and not compiled_suffices" ARGS=--record-durations

coverage: ready-pure ## line and branch coverage of the interpreted half of make test (build/coverage/index.html)
	@mkdir -p build/coverage && $(BIN)/coverage erase
	@$(MAKE) test-pure KINDS="and not compiled_suffices" COVERED="-m coverage run"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report --format=total --precision=2

test-lake: setup-test .stamps/lake ## sinks with their real packages: Delta, Kafka, PostgreSQL (needs Maven and PostgreSQL)
	$(IN_LAKE) $(PY) -m pytest -q tests/lake $(ARGS)

check: style types ## style and types: what a commit must pass

# bandit takes twenty times as long for almost the same rules: make security has it.
style: .stamps/installed ## ruff
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: .stamps/installed .stamps/spark ## mypy --strict, no module exempted
	$(BIN)/mypy --strict $(CHECKED)

conformance: setup-run ## the ledger of the specification's statements and the tests that hold them
	$(PY) -m tests.conformance.check $(ARGS)

instructions: setup-test ## count instructions a message with callgrind, and write the bounds of the tests (ARGS='--profile "QoS 1, 1:1"')
	$(PY) -m tests.instructions $(ARGS)

bench: setup-test ## measure against mosquitto, amqtt and nats-server, side by side
	$(PY) -m bench $(ARGS)

bench-suite: setup-test ## the Open MQTT Benchmark Suite's scenarios by their names, scaled to this machine (ARGS="--peers starlingmq,mosquitto")
	$(PY) -m bench.suite $(ARGS)

bench-transports: setup-test ## TLS and WebSocket beside plain TCP: connections, memory, messages (ARGS="--peers starlingmq,mosquitto")
	$(PY) -m bench.transports $(ARGS)

bench-million: setup-test ## as many idle connections as this machine holds, and what a million would take (ARGS="--memory 1536")
	$(PY) -m bench.million $(ARGS)

bench-copies: setup-test ## the cost of copies: CPU of a message, latency of PUBACK, catching up, takeover (ARGS="--rate 2000")
	$(PY) -m bench.copies $(ARGS)

bench-owners: setup-test ## CONNECT in a cluster of three and at a node alone (ARGS="--rounds 1000")
	$(PY) -m bench.owners $(ARGS)

bench-comeback: setup-test ## 20,000 clients of three nodes come back at once (ARGS="--clients 5000")
	$(PY) -m bench.comeback $(ARGS)

bench-pipeline: setup-test ## measure streams into Spark: rows/s, freshness, what reading costs publishers (ARGS="--rows 500000")
	$(PY) -m bench.pipeline $(ARGS)

comparison: setup-test ## measure beside mosquitto, amqtt and nats-server, and write docs/COMPARISON.md (half an hour)
	$(PY) -m bench --only $(COMPARED) --out out/comparison $(ARGS)
	$(PY) -m bench.comparison

scale: setup-test ## count what clusters of up to 30 nodes and 100,000 clients cost, and write docs/SCALE.md
	$(PY) -m bench --only paced,memory,cluster --peers starlingmq --out out/scale
	$(PY) -m bench.scale --results out/scale/results.json $(ARGS)

demo: system-demo setup-run $(if $(findstring --no-spark,$(ARGS)),,.stamps/spark) ## three nodes, 1,000 devices, Spark, and what happens when a node dies (ARGS="--devices 200 --minutes 2")
	@exec $(BIN)/starlingmq demo $(ARGS)

fuzz: setup-run ## mutated packets into the decoder and a live broker (ARGS="--seconds 60")
	$(PY) -m tests.fuzz $(ARGS)

security: setup-test ## attack it: the security tests, every fuzzer for a minute (FUZZ=60), ruff's S rules, bandit
	$(BIN)/ruff check src
	$(BANDIT)
	$(PY) -m pytest -q -n $(JOBS) $(BY_FILE) -m "security and not long" $(ARGS)
	$(PY) -m tests.fuzz --each $(FUZZ)

crash: setup-run ## lives of a broker that crashes between any two steps on a disk that fails (SEEDS=2000, ARGS="--replay SEED")
	$(PY) -m tests.storage.seeds --seeds $(SEEDS) $(ARGS)

sim: setup-run ## whole clusters in virtual time with drawn faults (SEEDS=1000; SEED=n replays one with a trace)
	$(PY) -m tests.sim --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-storage: setup-run ## kill a broker under load again and again, with every journal and durability (ROUNDS=50)
	$(PY) -m tests.storage.killing --rounds $(ROUNDS) $(ARGS)

chaos: system-cluster setup-run ## a cluster that is broken on purpose under clients that go from node to node; a report (MINUTES=10, SEED=n, LOAD=n busy processes beside, ARGS="--etcd-away 0.33")
	$(PY) -m tests.cluster.chaos --minutes $(MINUTES) --nodes $(NODES) --load $(LOAD) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-cluster: system-cluster setup-run ## break a cluster under load: nodes, etcds, links (ROUNDS=50, NODES=3, SEED=n)
	$(PY) -m tests.cluster.chaos --rounds $(ROUNDS) --nodes $(NODES) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-copies: system-cluster setup-test ## kill a node and delete its data directory, again and again, under load (ROUNDS=50, SEED=n, ARGS="--copies 3")
	$(PY) -m tests.cluster.chaos_copies --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-operations: system-cluster setup-run ## operate a cluster with copies under load while nodes, disks and etcd fail (ARGS="--copies 3 --min-copies 2 --only etcd"; "full" mounts disks: root)
	$(PY) -m tests.cluster.copies_operations $(ARGS)

chaos-pipeline: setup-test .stamps/lake ## one stream into eight sinks, each row once, while everything is killed (ROUNDS=30, ARGS="--seed n --copies 2")
	$(IN_LAKE) $(PY) -m tests.lake.killing --rounds $(if $(filter file,$(origin ROUNDS)),30,$(ROUNDS)) $(ARGS)

lock: .stamps/installed ## lock files with hashes in requirements/, of pyproject.toml (ARGS=--upgrade: the newest versions)
	UV=$(BIN)/uv scripts/lock $(ARGS)

proto: .stamps/installed ## the Python of net/proto from its .proto files
	$(PY) -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/starlingmq/net/proto/*.proto
	@# mypy --strict wants to know what a mapping maps.
	sed -i 's/_Mapping\]/_Mapping[str, object]]/g' src/starlingmq/net/proto/*_pb2.pyi

site: .stamps/installed ## the documentation as pages, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

site-versions: .stamps/installed ## the pages of each release and of this tree beside each other, in build/sites
	@$(BIN)/python scripts/site_versions.py

setup: setup-test ## everything that run and test need

setup-run: system-run compiled
setup-test: ready-pure compiled
ready-pure: system-test .stamps/installed .stamps/js .stamps/spark

.PHONY: system-run system-cluster system-demo system-test
system-run:
	@PYTHON=$(PYTHON) scripts/system-packages run
system-cluster:
	@PYTHON=$(PYTHON) scripts/system-packages cluster
system-demo:
	@PYTHON=$(PYTHON) scripts/system-packages demo
system-test:
	@PYTHON=$(PYTHON) scripts/system-packages test

.stamps/venv: | system-run
	@$(PYTHON) -c 'import sys; sys.exit("error: StarlingMQ needs Python 3.11 or newer; PYTHON=... names another one" if sys.version_info < (3, 11) else 0)'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(@D) && touch $@

.stamps/uv: requirements/uv.txt .stamps/venv
	$(INSTALL) --require-hashes --requirement requirements/uv.txt
	@touch $@

# Exact versions with hashes; the ranges in pyproject.toml are for users who install the package.
# Compiling is left to a later step, which knows when it is due again.
.stamps/runnable: pyproject.toml requirements/run.txt requirements/build.txt src/starlingmq/_version.py .stamps/uv
	$(INSTALL) --require-hashes --requirement requirements/run.txt --requirement requirements/build.txt
	STARLINGMQ_PURE=1 $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.stamps/installed: pyproject.toml requirements/dev.txt src/starlingmq/_version.py .stamps/uv
	$(INSTALL) --require-hashes --requirement requirements/dev.txt
	STARLINGMQ_PURE=1 $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: compiled compiled-beside
# It looks by itself whether anything has changed (compiling/checkout.py).
compiled: .stamps/installed
	@$(PY) -m compiling

compiled-beside: .stamps/installed
	@nice -n 10 $(PY) -m compiling

# Several hundred megabytes: for tests, not for who runs a broker.
.stamps/spark: requirements/spark.txt .stamps/installed
	$(INSTALL) --require-hashes --requirement requirements/spark.txt
	@touch $@

# A Spark for which these packages exist, which may be older than the one of the other tests.
LAKE := build/lake
IN_LAKE = STARLINGMQ_LAKE=$(CURDIR)/$(LAKE) PYTHONPATH=$(CURDIR)/$(LAKE)/pyspark

.stamps/lake: scripts/lake tests/lake/packages.xml tests/lake/kafka.xml .stamps/spark
	@PYTHON=$(PYTHON) scripts/system-packages lake
	scripts/lake $(PY) $(LAKE)
	@touch $@

.stamps/js: tests/js/package.json tests/js/package-lock.json | system-test
	cd tests/js && npm ci --silent --no-audit --no-fund --ignore-scripts
	@mkdir -p $(@D) && touch $@

clean: ## remove everything that was built or installed here
	rm -rf .stamps $(VENV) build dist src/*.egg-info tests/js/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench -name '*.so' -delete -o -name __pycache__ -type d -prune -exec rm -rf {} +

include packaging.mk
