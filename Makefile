# `make demo` and `make test` are the two commands a newcomer needs; both work from a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SRC    := src tests benchmarks scripts
# One process for each core, each with one thread: threads would wait for each other.
TEST   := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
# mkdocs-material's notice about its successor is no news about these docs.
export NO_MKDOCS_2_WARNING := 1

.PHONY: help install install-dev demo bench-demo bench-fashion-mnist bench-measure bench-draw test test-all check format docs lock clean

help:           ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

install: $(VENV)/.installed      ## build .venv from the lock file
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("flowtempo needs Python 3.10 or newer; set PYTHON=...") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements/default.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements/default.lock
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -e .
	touch $@

$(VENV)/.installed-dev: requirements/dev.lock requirements/dev-no-deps.txt $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements/dev.lock
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -r requirements/dev-no-deps.txt
	touch $@

demo: install   ## measure, design, train, generate, evaluate and report on digits (under 5 minutes)
	$(BIN)/flowtempo demo

test: install-dev   ## the test suite (about 12 minutes on 2 cores)
	$(TEST) -m "not slow"

test-all: install-dev   ## the test suite with the slow tests
	$(TEST)

check: install-dev   ## ruff, mypy, import-linter, the docs build
	$(BIN)/ruff check $(SRC)
	$(BIN)/ruff format --check $(SRC)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict -q

bench-demo: install   ## what `make demo` measures, kept in benchmarks/results
	$(BIN)/python benchmarks/demo.py

bench-fashion-mnist: install   ## the README's Fashion-MNIST run (about 10 minutes on 2 cores)
	$(BIN)/python benchmarks/fashion_mnist.py

MEASURED := paper fashion_mnist scale growth coverage reduction spectral gradient_cost design_error fits prediction
bench-measure: install   ## the measuring engine against its floors, the paper and the truth (about 40 minutes)
	for name in $(MEASURED); do $(BIN)/python benchmarks/measure/$$name.py || exit 1; done

bench-draw: install-dev   ## what a draw of 256 times costs, beside scipy's and diffusers' way
	$(BIN)/python benchmarks/draw.py

format: install-dev   ## format and fix what ruff can fix
	$(BIN)/ruff check --fix $(SRC)
	$(BIN)/ruff format $(SRC)

docs: install-dev   ## build the documentation into site/
	$(BIN)/mkdocs build --strict

# needs uv (https://docs.astral.sh/uv) on the PATH
lock:           ## resolve pyproject.toml into requirements/*.lock for every Python from 3.10
	uv pip compile --universal --python-version 3.10 pyproject.toml --extra demo \
	    -c requirements/constraints.in -o requirements/default.lock --no-header --no-annotate -q
	uv pip compile --universal --python-version 3.10 pyproject.toml --extra demo --extra dev \
	    -c requirements/default.lock -o requirements/dev.lock --no-header --no-annotate -q

clean:          ## remove what make built
	rm -rf $(VENV) site build *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
