# Headrace: everything a developer runs. Needs make and Python 3.11 or newer, nothing else.
#   make setup PYTHON=python3.12   another interpreter
#   make setup UV=                 pip, though uv is there
#   make test ARGS="-k lease"      more arguments for the program behind demo, test, bench and race

PYTHON ?= python3
UV     ?= $(shell command -v uv 2>/dev/null)
ENGINE ?=
ARGS   ?=
MINUTES ?= 3
HOURS  ?=
SEED   ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers
PIP   := $(BIN)/python -m pip --quiet --disable-pip-version-check

# uv trusts the machine's certificates, as pip users behind a company proxy expect.
export UV_SYSTEM_CERTS ?= 1

# The build backend comes first and from the same pins, so that the build needs no isolated
# environment and picks no version of its own.
BACKEND := --constraint constraints.txt hatchling
EXTRAS  := dev
PROJECT  = --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'

# How many examples the long tests of the lab try: about as long as one engine takes before them.
RUNS = $$(awk 'BEGIN { print int(100 * $(if $(HOURS),60 * $(HOURS),$(MINUTES))) + 1 }')

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench lab race docs fmt clean install with-uv with-pip

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## install everything into .venv, from the pins in constraints.txt

demo: $(STAMP) ## run the demo
	@$(BIN)/python demo/main.py $(ARGS)

test: $(STAMP) ## run the tests
	@$(BIN)/pytest -q -n 2 --dist worksteal $(ARGS)

check: $(STAMP) ## check format, lint, types and layers
	@echo "check: format"
	@$(BIN)/ruff format --quiet --check . || { echo "check: run 'make fmt'" >&2; exit 1; }
	@echo "check: lint"
	@$(BIN)/ruff check --quiet .
	@echo "check: types"
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@echo "check: layers"
	@$(BIN)/lint-imports --no-logo

bench: $(STAMP) ## measure; one engine with ENGINE=sqlite or ENGINE=nats
	@$(BIN)/python bench/main.py $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

lab: $(STAMP) ## try to break every engine: MINUTES=3 or HOURS=1, ENGINE=sqlite, SEED=42
	@$(BIN)/python -m headrace.testing.lab --minutes $(MINUTES) $(if $(HOURS),--hours $(HOURS)) \
		$(if $(ENGINE),--engine $(ENGINE)) $(if $(SEED),--seed $(SEED))
	@echo "lab: random interleavings, beside the reference and under the checker"
	@HEADRACE_LAB_RUNS=$${HEADRACE_LAB_RUNS:-$(RUNS)} $(BIN)/pytest -q -n 2 -m lab $(ARGS)

race: $(PEERS) ## race against huey and taskiq-nats, and write docs/benchmarks.md; ENGINE=sqlite
	@$(BIN)/python bench/race/main.py $(if $(ENGINE),--engine $(ENGINE),--page docs/benchmarks.md) \
		$(ARGS)

docs: $(STAMP) ## write the generated pages of docs/
	@$(BIN)/python docs/generate.py

fmt: $(STAMP) ## format, and mend what the linter can
	@$(BIN)/ruff check --quiet --fix . ; lint=$$?; $(BIN)/ruff format . && exit $$lint

clean: ## remove .venv, caches and build output
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(MAKE) -s install
	@touch $@
	@echo "setup: ready in $(VENV)"

$(PEERS): $(STAMP)
	@$(MAKE) -s install EXTRAS=race
	@touch $@

install:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "setup: '$(PYTHON)' is not Python 3.11 or newer; name one that is:" \
			"make setup PYTHON=python3.12" >&2; exit 1; }
	@if test -z "$(UV)"; then $(MAKE) -s with-pip; \
		else $(MAKE) -s with-uv || { echo "setup: uv failed, trying pip" >&2; $(MAKE) -s with-pip; }; fi

with-uv:
	@echo "setup: installing with uv"
	@test -x $(BIN)/python || "$(UV)" venv --quiet --python "$(PYTHON)" $(VENV)
	@"$(UV)" pip install --quiet --python $(BIN)/python $(BACKEND)
	@"$(UV)" pip install --quiet --python $(BIN)/python $(PROJECT)

# A venv made by uv has no pip: venv adds it.
with-pip:
	@echo "setup: installing with pip, which takes a minute the first time"
	@$(PIP) --version >/dev/null 2>&1 || "$(PYTHON)" -m venv $(VENV)
	@$(PIP) install $(BACKEND)
	@$(PIP) install $(PROJECT)
