# Everything here sets itself up: the first call makes .venv and installs what pyproject.toml names, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test lint types unit bench bench-gpu clean

demo: $(STAMP)
	$(BIN)/inferd run inferlets/extract/main.py --text "Ada Lovelace, 36"

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy sdk/inferd runtime/inferd_runtime grammar/inferd_grammar

unit: $(STAMP)
	$(BIN)/inferd build-runner
	$(BIN)/python -m pytest

bench: $(STAMP)
	$(BIN)/python benchmarks/first_light.py --quick

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --output build/gpu

$(STAMP): pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[runtime,outlines,dev]'
	touch $@

clean:
	rm -rf .venv
