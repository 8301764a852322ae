PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := video,train,export,hub,web,exr,hdf5,bulk,docs,dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two workers; tests that share an expensive fixture stay together. A worker that dies ends the run: a
# restarted one might wait for work forever.
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup --max-worker-restart 0
# Tests take less time if bytecode is kept, whatever the environment says, and freed memory (glibc).
unexport PYTHONDONTWRITEBYTECODE
export MALLOC_MMAP_THRESHOLD_ := 33554432
export MALLOC_TRIM_THRESHOLD_ := 1073741824
export MALLOC_TOP_PAD_ := 67108864

.PHONY: setup demo lint types docs unit test quick coverage slow campaign release wheel bounds audit clean

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
	$(PYTEST)

# mypy and Sphinx use one core each; pytest uses both.
test: setup
	$(MAKE) -j2 lint types docs
	$(MAKE) unit

# Before a commit.
quick: setup
	$(PYTEST) -q -m 'not slow and not heavy'

# Before a release: tracing makes the tests a third slower.
coverage: setup
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=90

# Too slow for every change: before a release.
slow: setup
	$(PYTEST) -m slow --timeout 1800

# Promises tried at random, for hours: make campaign CAMPAIGNS="files disks" SEED=1
CAMPAIGNS ?= $(basename $(notdir $(shell grep -l '^if __name__' campaigns/*.py)))
SEED ?= 0
campaign: setup
	mkdir -p build/campaigns
	set -e; for name in $(CAMPAIGNS); do \
	    $(BIN)/python -m campaigns.$$name --seed $(SEED) -o build/campaigns/$$name.json; \
	done

# New weights, and all that the pages say and show of them; CONTRIBUTING.md has the rest:
# make release WEIGHTS=my.safetensors PHOTOS=photos DATASETS=pairs STEPS=gpu
STEPS ?= all
WORK ?= build/release
release: setup
	$(BIN)/python -m benchmarks.release $(if $(WEIGHTS),'$(WEIGHTS)') --steps '$(STEPS)' \
	    $(if $(PHOTOS),--photos '$(PHOTOS)') $(if $(DATASETS),--datasets '$(DATASETS)') --work '$(WORK)'

# The wheel is built from the sdist, twice: the same commit gives the same bytes, whatever the umask
# and the times of files. Then it is tried in an empty environment, outside the checkout.
wheel: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
wheel: setup
	rm -rf dist build/again
	umask 022; $(BIN)/python -m build
	umask 022; $(BIN)/python -m build --outdir build/again
	cmp dist/*.whl build/again/*.whl
	set -e; empty=$$(mktemp -d); trap 'rm -rf '"$$empty" EXIT; \
	$(PYTHON) -m venv "$$empty/venv"; \
	"$$empty/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
	    -c constraints.txt dist/*.whl; \
	cd "$$empty"; venv/bin/dicl-flow demo

# The lowest versions that pyproject.toml allows, all extras that estimate, and a slice of the tests.
# A wheel of the lowest torch may be hard to find: make bounds TORCH=2.13.0
TORCH ?= 2.11.0
bounds:
	rm -rf build/bounds
	$(PYTHON) -m venv build/bounds
	$(PYTHON) tests/support/lowest_versions.py $(TORCH) > build/bounds/lowest.txt
	build/bounds/bin/python -m pip install --quiet --disable-pip-version-check \
	    -r build/bounds/lowest.txt pytest pytest-timeout pytest-xdist hypothesis httpx
	PYTHONPATH=src build/bounds/bin/python -m pytest -q -m 'not slow' \
	    tests/cli/test_cli.py tests/files/test_files.py tests/files/test_images.py \
	    tests/network/test_weights.py tests/network/test_hub.py \
	    tests/estimation/test_estimator.py tests/video/test_video.py \
	    tests/video/test_video_progress.py tests/web/test_serve.py

# Known weaknesses of what is installed; needs the database of pip-audit, which is on the network.
# A package that the database does not know fails, too (--strict).
audit: setup
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip list --format freeze --exclude-editable > build/audit/installed.txt
	sed "s/+.*//" build/audit/installed.txt > build/audit/public.txt
	build/audit/bin/pip-audit --strict --no-deps --disable-pip -r build/audit/public.txt

clean:
	rm -rf $(VENV) dicl-flow-demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
