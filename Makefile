PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := video,train,export,hub,web,exr,bulk,docs,dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two workers; tests that share an expensive fixture stay together. A worker that dies ends the run: a
# restarted one might wait for work forever.
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup --max-worker-restart 0

.PHONY: setup demo lint types docs unit test quick slow campaign wheel clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# All checks depend on this stamp: it is newer than the files that say what to install.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[$(EXTRAS)]'
	touch $@

setup: $(VENV)/.installed

# The demo needs no extras: a bare machine gets the package alone, any environment will do.
$(BIN)/dicl-flow: | $(BIN)/python
	$(INSTALL) -e .

demo: | $(BIN)/dicl-flow
	$(BIN)/dicl-flow demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Warnings are errors, and so are references to names that do not exist.
docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky docs build/docs
	@echo 'documentation: build/docs/index.html'

unit: setup
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=90

# mypy and Sphinx use one core each; pytest uses both.
test: setup
	$(MAKE) -j2 lint types docs
	$(MAKE) unit

# Before a commit.
quick: setup
	$(PYTEST) -q -m 'not slow and not heavy'

# Too slow for every change: before a release.
slow: setup
	$(PYTEST) -m slow --timeout 1800

# Promises tried at random, for hours: make campaign CAMPAIGNS="files disks" SEED=1
CAMPAIGNS ?= $(filter-out __init__ report inputs forked killable commands known_motion,$(basename $(notdir $(wildcard campaigns/[a-z]*.py))))
SEED ?= 0
campaign: setup
	mkdir -p build/campaigns
	set -e; for name in $(CAMPAIGNS); do \
	    $(BIN)/python -m campaigns.$$name --seed $(SEED) -o build/campaigns/$$name.json; \
	done

# The wheel is built from the sdist, then tried in an empty environment, outside the checkout.
wheel: setup
	rm -rf dist
	$(BIN)/python -m build
	set -e; empty=$$(mktemp -d); trap 'rm -rf '"$$empty" EXIT; \
	$(PYTHON) -m venv "$$empty/venv"; \
	"$$empty/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
	    -c constraints.txt dist/*.whl; \
	cd "$$empty"; venv/bin/dicl-flow demo

clean:
	rm -rf $(VENV) dicl-flow-demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
