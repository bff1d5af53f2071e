# `make reproduce` and `make test` are all a fresh machine needs: python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
# An environment variable, not -c: it also holds in pip's isolated build environment.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what it imports; compiling everything that is there takes 220 MB more. An option, as PIP_NO_COMPILE=1 asks pip to compile.
INSTALL := $(BIN)/python -m pip install --no-compile

.PHONY: reproduce test docs fuzz attack check smoke bench newest clean

reproduce: .venv/reproduction  ## every table and figure of the paper, on embedded data, into reproduced/
	$(BIN)/unitvar-paper reproduce --out reproduced

test: .venv/development  ## the test suite
	$(BIN)/python -m pytest

docs: .venv/docs  ## the site, tutorials run and links checked, into build/site
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs build/site
	$(BIN)/python .ci/links.py build/site

GRAPHS ?= 1000
SEED ?= 0
fuzz: .venv/development  ## 1,000 random networks: what flows against what was predicted; SEED=100000 for others
	$(BIN)/python -m tests.composition.fuzz --graphs $(GRAPHS) --seed $(SEED)

attack: .venv/development  ## faults, odd models, loaders, processes, files and sizes: what held, into docs/reliability.md
	$(BIN)/python -W ignore -m tests.attack.run; held=$$?; $(BIN)/python -m tests.attack.table && exit $$held

check: .venv/development  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

smoke: .venv/development  ## build wheel and sdist, install each alone, and try them
	$(BIN)/python .ci/smoke.py

bench: .venv/development  ## every benchmark, into benchmarks/results/ (leave the machine alone meanwhile)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

newest: .venv/development .venv/docs  ## the newest torch into .venv, in place of the oldest one that is declared
	PIP_CONSTRAINT= $(INSTALL) --upgrade torch

clean:  ## everything that the other targets made, except results
	rm -rf .venv build dist reproduced .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src reproduction zoo tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted installation starts again. What reproduces the paper is a part of what tests need.
PACKAGES := pyproject.toml reproduction/pyproject.toml constraints.txt

.venv/reproduction: $(PACKAGES)
	@echo "Installing into .venv (once; a few minutes on a slow connection)"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable . --editable ./reproduction
	touch $@

.venv/development: $(PACKAGES)
	@echo "Installing into .venv, with what the tests need (once; a few minutes on a slow connection)"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[dev]' --editable './reproduction[ray]'
	$(INSTALL) --no-deps timm  # without torchvision, which the zoo does not need
	touch .venv/reproduction $@

.venv/docs: $(PACKAGES)
	@echo "Installing into .venv, with what the docs need (once; a minute more)"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[docs]'
	touch $@
