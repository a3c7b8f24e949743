# Every target makes .venv and installs what it needs, once. Needs only Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-slow lint bench docs clean

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
	ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal  # some announce AMX and have none

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
