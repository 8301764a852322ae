PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := video,train,export,hub,dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo lint types unit test clean

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
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=90

test: lint types unit

clean:
	rm -rf $(VENV) dicl-flow-demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
