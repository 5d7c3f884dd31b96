# Berth. `make` shows what there is.
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
RUN := $(VENV)/bin/python
# Set to use a certain Python for making the environment: make up PYTHON=python3.12
PYTHON ?=
# Set to leave workspaces running when the portal stops: make up KEEP=1, make down KEEP=1
KEEP ?=
keep = $(if $(KEEP),--keep-workspaces)
BERTH_HOME ?= var
NOTEBOOK_ENV = $(abspath $(BERTH_HOME))/environments/notebook
CHECKED = portal provisioning tests scripts bench

.PHONY: help up down status test lint types check bench clean environment environment-dev notebook

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: environment ## Start everything on this machine; Ctrl-C stops it (KEEP=1 leaves workspaces running)
	@exec $(RUN) -m portal.embedded up $(keep)

down: ## Stop what `make up` started (KEEP=1 leaves workspaces running)
	@test -x $(RUN) || { echo "  Berth is not installed here yet: make up"; exit 0; }; \
	exec $(RUN) -m portal.embedded down $(keep)

status: ## What runs, and how many workspaces; exit code 0 all, 1 some, 3 nothing
	@test -x $(RUN) || { echo "  Berth is not installed here yet: make up"; exit 3; }; \
	exec $(RUN) -m portal.embedded status

test: environment-dev ## Run every test, on every database that is here
	@exec $(RUN) -m tests.run $(ARGS)

lint: environment-dev ## Check style and the directions of imports
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(VENV)/bin/lint-imports

types: environment-dev ## Check types
	@$(RUN) -m mypy portal provisioning

check: lint types ## Lint, types, and that models and migrations agree
	@$(RUN) manage.py makemigrations --check --dry-run
	@$(RUN) manage.py check

bench: environment-dev notebook ## Measure: from click to notebook, beside others
	@BERTH_TEST_NOTEBOOK_ENV="$(NOTEBOOK_ENV)" exec $(RUN) -m bench.start_latency $(ARGS)

clean: ## Remove environments and caches; what is in var/ stays, but for its environments
	@if test -x $(RUN) && $(RUN) -m portal.embedded status >/dev/null 2>&1; then \
		echo "  ! Berth runs. Stop it first: make down"; exit 1; fi
	rm -rf $(VENV) $(BERTH_HOME)/environments .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis test-results
	find portal provisioning tests -name __pycache__ -type d -prune -exec rm -rf {} +

environment:
	@python=$$(scripts/python.sh $(PYTHON)) && "$$python" scripts/venv.py portal

environment-dev:
	@python=$$(scripts/python.sh $(PYTHON)) && "$$python" scripts/venv.py dev

notebook:
	@exec $(RUN) -m portal.embedded notebook
