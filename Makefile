PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := video,train,export,dev

.PHONY: setup lint types unit test clean

# Everything hangs on this stamp: it is newer than the files that say what to install.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

setup: $(VENV)/.installed

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=90

test: lint types unit

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
