# `make reproduce` and `make test` are all a fresh machine needs: python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
# An environment variable, not -c: it also holds in pip's isolated build environment.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: reproduce test check bench newest clean

# Not into results/, which holds the trials of our own runs: a sweep would take those for its own and skip them.
reproduce: .venv/installed  ## every table and figure of the paper, on embedded data, into reproduced/
	$(BIN)/unitvar reproduce --out reproduced

test: .venv/installed  ## the test suite
	$(BIN)/python -m pytest

check: .venv/installed  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/installed  ## every benchmark, into benchmarks/results/ (leave the machine alone meanwhile)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

newest: .venv/installed  ## the newest torch into .venv, in place of the oldest one that is declared
	PIP_CONSTRAINT= $(BIN)/python -m pip install --upgrade torch

clean:  ## everything that the other targets made, except results
	rm -rf .venv build dist reproduced .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation starts again.
.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv (once; a few minutes on a slow connection)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $@
