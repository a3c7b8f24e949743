# Every target makes .venv and installs what it needs, once. Needs only Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin

# What the environment says goes first: `OMP_NUM_THREADS=2 ONEDNN_MAX_CPU_ISA=AVX2 make test`.
# Some processors announce AMX and die of it, hence the first; two workers share the cores, hence the second.
test test-laws: export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
test test-laws: export OMP_NUM_THREADS ?= 1
# Threads that wait must not spin: two workers of two threads each would starve two cores.
test test-laws: export OMP_WAIT_POLICY ?= PASSIVE

SEEDS ?= 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20

.PHONY: install demo test test-laws test-slow lint bench docs clean

install: .venv/installed
demo: .venv/installed
	$(BIN)/regard demo

.venv/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Regard needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip
	touch $@

.venv/installed: .venv/pip pyproject.toml
	$(BIN)/pip install -q --disable-pip-version-check -e .
	touch $@

.venv/developer: .venv/installed
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

test: lint
	$(BIN)/pytest -n 2 --dist worksteal --durations 10

test-laws: .venv/developer  # the laws with other weights, batches and examples; without those that know no seed (marked `once`)
	@for seed in $(SEEDS); do \
	  echo "laws, seed $$seed"; \
	  $(BIN)/pytest tests/laws -n 2 --dist worksteal -m 'not slow and not gpu and not once' --law-seed $$seed || \
	    { echo "the laws fail for seed $$seed: pytest tests/laws --law-seed $$seed"; exit 1; }; \
	done

test-slow: .venv/developer
	$(BIN)/pytest -m slow --override-ini addopts="-q --strict-markers --import-mode=importlib"

lint: .venv/developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/developer
	$(BIN)/python benchmarks/train.py

docs: .venv/developer
	$(BIN)/python docs/figures.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
