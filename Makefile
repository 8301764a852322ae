PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := video,train,export,hub,dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two workers; tests that share a dear fixture stay together. A worker that dies ends the run: a
# restarted one may be left waiting for work for ever.
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup --max-worker-restart 0

.PHONY: setup demo lint types unit test quick slow clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# All checks hang on this stamp: it is newer than the files that say what to install.
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

unit: setup
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=90

test: lint types unit

# What one runs before a commit.
quick: setup
	$(PYTEST) -q -m 'not slow and not heavy'

# What takes too long for every change: before a release.
slow: setup
	$(PYTEST) -m slow --timeout 1800

clean:
	rm -rf $(VENV) dicl-flow-demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
