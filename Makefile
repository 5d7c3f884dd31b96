# Berth. `make` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
RUN := $(VENV)/bin/python
# Python that creates the environment: make up PYTHON=python3.12
PYTHON ?=
# Keeps workspaces running when the portal stops: make up KEEP=1, make down KEEP=1
KEEP ?=
keep = $(if $(KEEP),--keep-workspaces)
BERTH_HOME ?= var
NOTEBOOK_ENV = $(abspath $(BERTH_HOME))/environments/notebook

# Tests whose behavior depends on whether the node worker runs as root: sandboxes, networks, filters, probe folders.
ordinary = tests/security tests/provisioning/local/test_local_sandbox.py tests/provisioning/local/test_scratch.py

.PHONY: ldap documents screenshots help up down status test test-all test-compose test-kernel test-ordinary lint types check bench clean environment environment-dev notebook \
	notebook-if-possible

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: ## Start everything on this machine; Ctrl-C stops it (KEEP=1 keeps workspaces running)
	@python=$$(scripts/python.sh $(PYTHON)) && "$$python" scripts/venv.py portal up
	@exec $(RUN) -m portal.embedded up $(keep)

down: ## Stop what `make up` started (KEEP=1 keeps workspaces running)
	@test -x $(RUN) || { echo "  Berth is not installed here yet: make up"; exit 0; }; \
	exec $(RUN) -m portal.embedded down $(keep)

status: ## Show services and count workspaces; exit code: 0 all run, 1 some, 3 none
	@test -x $(RUN) || { echo "  Berth is not installed here yet: make up"; exit 3; }; \
	exec $(RUN) -m portal.embedded status

test: environment-dev notebook-if-possible ## Run the tests (ARGS: arguments of pytest)
	@exec $(RUN) -m tests.suite quick $(ARGS)

test-all: environment-dev notebook-if-possible ## Run all tests on both databases; continues an earlier run of this commit
	@exec $(RUN) -m tests.suite full $(ARGS)

test-ordinary: environment-dev ## Run the sandbox tests again as an ordinary user (needs root; ARGS: arguments of pytest)
	@PYTHONDONTWRITEBYTECODE=1 $(RUN) -m tests.ordinary_user -q -n 2 -m "not engine and not browser" $(or $(ARGS),$(ordinary))

test-kernel: environment-dev ## Run the tests of project quotas in a virtual machine (needs root, takes minutes)
	@$(RUN) -m pytest -q -n 0 -p no:cacheprovider tests/kernel/virtual.py $(ARGS)

test-compose: environment-dev ## Test the image and compose.yaml on a Docker engine, with an upgrade (needs root, takes 15 minutes)
	@$(RUN) -m pytest -q -n 0 -x --capture=no -p no:cacheprovider tests/compose/whole.py $(ARGS)

lint: environment-dev ## Check style and import rules
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(VENV)/bin/lint-imports

types: environment-dev ## Check types
	@$(RUN) -m mypy portal provisioning

check: lint types ## Check style, types and migrations
	@$(RUN) manage.py makemigrations --check --dry-run
	@$(RUN) manage.py check

bench: environment-dev notebook ## Measure the time from click to notebook, compared with other systems
	@BERTH_TEST_NOTEBOOK_ENV="$(NOTEBOOK_ENV)" exec $(RUN) -m bench.start_latency $(ARGS)

clean: ## Remove environments and caches; other data in var/ is kept
	@if test -x $(RUN) && $(RUN) -m portal.embedded status >/dev/null 2>&1; then \
		echo "  ! Berth runs. Stop it first: make down"; exit 1; fi
	rm -rf $(VENV) $(BERTH_HOME)/environments .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis test-results
	find portal provisioning tests -name __pycache__ -type d -prune -exec rm -rf {} +

ldap: environment ## Install the packages for sign-in with LDAP (needs a compiler, libldap-dev, libsasl2-dev)
	@$(RUN) -m pip install --quiet --no-deps --require-hashes --disable-pip-version-check -r requirements/ldap.lock

screenshots: environment-dev notebook ## Take the screenshots of docs/ with a simulated pool (needs Chromium)
	@$(RUN) -m tests.documents.screenshots

documents: environment-dev ## Generate pages of docs/: commands, codes, states, drivers
	@$(RUN) -m tests.documents.reference

environment:
	@python=$$(scripts/python.sh $(PYTHON)) && "$$python" scripts/venv.py portal

environment-dev:
	@python=$$(scripts/python.sh $(PYTHON)) && "$$python" scripts/venv.py dev

notebook-if-possible: environment-dev
	@test -n "$$BERTH_TEST_NOTEBOOK_ENV" || $(RUN) -m portal.embedded notebook || \
		echo "  no notebook environment: the tests that need one are skipped"

notebook:
	@exec $(RUN) -m portal.embedded notebook
