# SPDX-License-Identifier: Apache-2.0
# Every verb has one line of help: `make help`. The first verb that you run sets everything up in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PYTHONS ?= python3.12 python3.13 python3.14
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
SEEDS ?= 200
ROUNDS ?= 20
JOBS ?= 1
WORKERS ?= logical
RUNS ?= 2000
N ?= 20000
INPUT ?=
FAULTS ?=
WORLD ?=
PARTITIONS ?= 10000 100000 1000000

.DEFAULT_GOAL := help
.PHONY: help install demo docs test verify pythons format-check lint types imports proto-check unit properties fix gen baseline clients sim \
        kill-quorum quorum-proofs replication-proofs group-proofs producer-proofs sql-proofs transform-proofs ingest-proofs \
        stream-proofs replay-proofs jepsen soak kill-broker fuzz hostile forks crash corrupt realdisk bench bench-quorum \
        bench-replication bench-stalls bench-scale bench-partitions bench-liveness bench-start bench-spark bench-peers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml sdk/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e './sdk[cli,spark,jre]' -e . --group dev
	@touch $(INSTALLED)

install: $(INSTALLED) ## Create .venv with everything for development

# Only these two need Sphinx: `docs`, and `test`, which checks that the site builds.
$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $(DOCS_INSTALLED)

docs: $(DOCS_INSTALLED) ## The documentation site, into build/docs/html; fails on any warning
	PYTHONPATH=docs/site $(BIN)/python -m sitebuild build/docs

demo: $(INSTALLED) ## PySpark ingest exactly once, replay, proof of equality (INPUT=file for your own records, FAULTS=1 kills an executor and a broker)
	$(BIN)/python -m integration_tests.scenarios.demo $(if $(INPUT),--input '$(INPUT)') $(if $(filter-out 0,$(FAULTS)),--faults)

# `make verify test` runs each test once, without coverage: `unit` runs the quick ones, and `test` the others.
test: $(INSTALLED) $(DOCS_INSTALLED) ## All tests: unit, property, real processes, Spark, clients in other languages; reports coverage
ifneq ($(filter verify unit,$(MAKECMDGOALS)),)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'spark or process or slow'
else
	$(BIN)/python -m pytest -q -m simulation
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not simulation' --cov --cov-report=term:skip-covered
endif

verify: format-check lint types imports proto-check unit ## Read-only gate: format, lint, types, contracts, protobuf, unit tests and smoke seeds

format-check: $(INSTALLED)
	$(BIN)/ruff format --check .

lint: $(INSTALLED)
	$(BIN)/ruff check .

# The second line is for programs that use `lograft`: every public name has a complete type. It looks up packages with the `python` of the PATH.
types: $(INSTALLED)
	$(BIN)/pyright
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=sdk $(BIN)/pyright --verifytypes lograft --ignoreexternal

imports: $(INSTALLED)
	$(BIN)/lint-imports --no-cache

proto-check: $(INSTALLED)
	$(BIN)/buf lint
	$(BIN)/buf format -d --exit-code > /dev/null
	$(BIN)/buf breaking --against proto/baseline.binpb
	PATH="$(BIN):$$PATH" $(BIN)/python proto/generate.py --check

pythons: ## Unit tests with each newer Python on this machine, each in its own .venv (PYTHONS="python3.13 /path/to/python3.14")
	@for python in $(PYTHONS); do \
	  if version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
	    echo "== $$($$python --version)"; $(MAKE) unit PYTHON="$$python" VENV=.venv-$$version || exit 1; \
	  else echo "== $$python: not on this machine"; fi; done

# Test files are shared out to as many processes as there are cores (WORKERS=0: one process).
unit: $(INSTALLED)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not spark and not process and not slow'

properties: $(INSTALLED) ## Property tests with other examples each time, ROUNDS=n times; the gate always takes the same ones
	for round in $$(seq $(ROUNDS)); do \
	  LOGRAFT_FUZZ_FACTOR=2 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --hypothesis-profile=default -m 'hypothesis and not spark and not process and not slow' || exit 1; \
	done

fix: $(INSTALLED) ## Format, and repair what can be repaired
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format -w

gen: $(INSTALLED) ## Generate the Python stubs from proto/
	PATH="$(BIN):$$PATH" $(BIN)/python proto/generate.py

baseline: $(INSTALLED) ## Make the present proto/ the baseline for `buf breaking` (only at a release)
	$(BIN)/buf build -o proto/baseline.binpb

clients: $(INSTALLED) ## Go, Java and Node clients, built from proto/ alone, against `lograft dev`; fails if a toolchain is missing
	$(BIN)/python -m integration_tests.scenarios.clients.run --require-all

sim: $(INSTALLED) ## Simulation of the quorum, or with WORLD=1 of whole clusters: SEEDS=n seeds in JOBS=n processes; checks the laws after every event
	$(BIN)/python -m $(if $(WORLD),integration_tests.simulation.run,metaquorum.testing.run) --seeds $(SEEDS) --jobs $(JOBS)

kill-quorum: $(INSTALLED) ## kill -9 of the quorum leader while topics are created, ROUNDS=n times
	$(BIN)/python -m integration_tests.scenarios.kill_quorum --rounds $(ROUNDS)

quorum-proofs: $(INSTALLED) ## Quorum of real processes: kills, pauses, network partitions, lost disks, rolling restarts (ROUNDS=100 VOTERS="3 5" ONLY="...")
	$(BIN)/python -m integration_tests.scenarios.quorum_proofs.run $(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS)) \
		$(if $(VOTERS),--voters $(VOTERS)) $(if $(ONLY),--only $(ONLY))

replication-proofs: $(INSTALLED) ## Partitions on real brokers: kills, pauses, cuts, restarts, lost and full disks (ROUNDS=100 PROOF="..." REPLICAS=3 SEED=1)
	$(BIN)/python -m integration_tests.scenarios.replication_proofs.run $(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS)) \
		$(if $(PROOF),--only $(PROOF)) $(if $(REPLICAS),--replicas $(REPLICAS)) $(if $(SEED),--seed $(SEED))

group-proofs: $(INSTALLED) ## A group of 12 processes under load for MINUTES=30: members join, leave, crash, stall, the coordinator is killed (SEED=1 RATE=240 SESSION_MS=45000 ONLY="...")
	$(BIN)/python -m integration_tests.scenarios.group_proofs.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(RATE),--rate $(RATE)) $(if $(MEMBERS),--members $(MEMBERS)) $(if $(SESSION_MS),--session-ms $(SESSION_MS)) $(if $(ONLY),--only $(ONLY))

producer-proofs: $(INSTALLED) ## Producers with 8 batches in flight through KILLS=50 kills of leaders: order per key, each record once, every handle (SEED=1)
	$(BIN)/python -m integration_tests.scenarios.producer_proofs.run $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

jepsen: $(INSTALLED) ## Producers and consumers under random faults for MINUTES=n; a checker judges the history at the end (SEED=1 NEMESES="...")
	$(BIN)/python -m integration_tests.scenarios.jepsen.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(NEMESES),--only $(NEMESES)) $(if $(REPLICAS),--replicas $(REPLICAS))

soak: $(INSTALLED) ## Full-rate produce to servers that are also voters, for MINUTES=n: no election, no loss, no growth (FLUSH=ack)
	$(BIN)/python -m integration_tests.scenarios.soak.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FLUSH),--flush-policy $(FLUSH))

kill-broker: $(INSTALLED) ## kill -9 of the broker under producers with acks=all, ROUNDS=n times
	$(BIN)/python -m integration_tests.scenarios.kill_broker --rounds $(ROUNDS)

fuzz: $(INSTALLED) ## N=n mutated batches, frames and names from clients, and N=n requests and frames between servers, through real ports (SEED=1)
	$(BIN)/python -m integration_tests.scenarios.fuzz.run --inputs $(N) $(if $(SEED),--seed $(SEED))

hostile: $(INSTALLED) ## Hostile clients beside a healthy one: memory, descriptors, latencies (ONLY="idle channels readers sockets bombers huge")
	$(BIN)/python -m integration_tests.scenarios.hostile.run $(if $(ONLY),--only $(ONLY))

sql-proofs: $(INSTALLED) ## Records and offsets in one SQL transaction: KILLS=n kills between any two steps on each database, two owners (DATABASES="sqlite postgresql mariadb" MUTANT=...)
	$(BIN)/python -m integration_tests.scenarios.sql_offsets.run $(if $(KILLS),--kills $(KILLS)) $(if $(DATABASES),--databases $(DATABASES)) \
		$(if $(MUTANT),--mutant $(MUTANT)) $(if $(SEED),--seed $(SEED))

transform-proofs: $(INSTALLED) ## Exactly once: a consume-transform-produce program through KILLS=100 kills, of brokers too, and PAIRS=5 pairs of instances (SEED=1 BUDGET=14400)
	$(BIN)/python -m integration_tests.scenarios.exactly_once.run transform $(if $(KILLS),--kills $(KILLS)) $(if $(PAIRS),--pairs $(PAIRS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(BUDGET),--budget-s $(BUDGET)) $(if $(MUTANT),--mutant $(MUTANT))

ingest-proofs: $(INSTALLED) ## Exactly once: Spark ingest through a matrix of faults, RUNS=20 runs of each row: tasks, drivers, leaders, the cluster (SDK=1 ONLY="..." SEED=1 BUDGET=14400)
	$(BIN)/python -m integration_tests.scenarios.exactly_once.run matrix $(if $(filter command line environment,$(origin RUNS)),--runs $(RUNS)) \
		$(if $(SDK),--sdk) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED)) $(if $(BUDGET),--budget-s $(BUDGET))

stream-proofs: $(INSTALLED) ## Exactly once: BATCHES=100 micro-batches from topic to topic, the driver killed 10 times and brokers 5 times (SEED=1 BUDGET=14400)
	$(BIN)/python -m integration_tests.scenarios.exactly_once.run streaming $(if $(BATCHES),--batches $(BATCHES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(BUDGET),--budget-s $(BUDGET))

replay-proofs: $(INSTALLED) ## Replays by time range and key beside filters over full reads, and one of MANY=10000000 records with flat memory (SEED=1)
	$(BIN)/python -m integration_tests.scenarios.exactly_once.run replay $(if $(MANY),--many $(MANY)) $(if $(SEED),--seed $(SEED))

forks: $(INSTALLED) ## Children forked beside clients at work, N=n of each case: multiprocessing, os.fork, gunicorn, Celery, Spark (ONLY="..." BUDGET=3600)
	$(BIN)/python -m integration_tests.scenarios.forks.run $(if $(filter command line environment,$(origin N)),--children $(N)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(BUDGET),--budget-s $(BUDGET))

crash: $(INSTALLED) ## Log engine: a crash at every disk call, RUNS=n runs compared with a model, and mutants that must be found
	$(BIN)/python -m integration_tests.crash.run --runs $(RUNS)

corrupt: $(INSTALLED) ## Log engine: N=n random damages to real directories; no wrong bytes, no silent gap
	$(BIN)/python -m integration_tests.crash.corrupt --cases $(N)

realdisk: $(INSTALLED) ## Log engine: a full tmpfs, a failing fsync, and kill -9 under load, ROUNDS=n times
	$(BIN)/python -m integration_tests.crash.real_disk $(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS))

bench: $(INSTALLED) ## Throughput and latency beside their ceilings; writes benchmarks/results/
	$(BIN)/python -m benchmarks.run

bench-quorum: $(INSTALLED) ## Metadata changes of three voters beside three members of etcd (ETCD=program)
	$(BIN)/python -m benchmarks.quorum_run $(if $(ETCD),--etcd '$(ETCD)')

bench-replication: $(INSTALLED) ## Three replicas beside three bare processes that replicate the same bytes; latency of acks
	$(BIN)/python -m benchmarks.replication_run --write benchmarks/results

bench-stalls: $(INSTALLED) ## The quorum's times in the simulator: leaderships, commits and kills at 0 to 20 % lost messages; writes benchmarks/results/
	$(BIN)/python -m benchmarks.quorum_stalls --jobs $(JOBS) --write benchmarks/results

bench-liveness: $(INSTALLED) ## How long clients and brokers take to recover when their connections die without a sign
	$(BIN)/python -m benchmarks.dead_connections

bench-start: $(INSTALLED) ## How long imports of the SDK and commands of the command line take (BESIDE=checkout to compare)
	$(BIN)/python -m benchmarks.client_start $(if $(BESIDE),--beside '$(BESIDE)')

bench-spark: $(INSTALLED) ## Ingest and replay through Spark, beside its Kafka connector and its own ceilings; needs Maven and Java 17 (SIZES="5000000x100 1000000x1024" ROUNDS=3 REPLICAS=3 POLICIES="fsync")
	$(BIN)/python -m benchmarks.spark_run --write benchmarks/results $(if $(SIZES),--sizes $(SIZES)) $(if $(REPLICAS),--replicas $(REPLICAS)) \
		$(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS)) $(if $(POLICIES),--policies $(POLICIES)) $(if $(ONLY),--only '$(ONLY)')

bench-peers: $(INSTALLED) ## Each client beside Apache Kafka with confluent-kafka, in turns; needs Maven and Java 17 (ROUNDS=3 SCALE=0.1 ONLY="send_many" BEFORE=checkout SPARK=1)
	$(BIN)/python -m benchmarks.peers_run $(if $(ONLY),--only '$(ONLY)',--write benchmarks/results) $(if $(SCALE),--scale $(SCALE)) \
		$(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS)) $(if $(BEFORE),--before '$(BEFORE)') $(if $(SPARK),--spark)

bench-scale: $(INSTALLED) ## The quorum with many partitions (PARTITIONS='10000 100000 1000000'): time, memory, failover, a lost broker
	$(BIN)/python -m benchmarks.scale_run --partitions $(PARTITIONS)

bench-partitions: $(INSTALLED) ## Brokers with 1,000, 20,000 and 100,000 idle partitions: creation, stop, start, memory (SIZES="1000 20000")
	$(BIN)/python -m benchmarks.partitions_run --write benchmarks/results $(if $(SIZES),--partitions $(SIZES))

clean: ## Remove the virtual environment and build folders
	rm -rf $(VENV) .venv-* build dist .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
