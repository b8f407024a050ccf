# `make demo` and `make test` work on a fresh machine with Python 3.11, make and gcc: they build .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt src/bayesmooth/_kernels.c

.PHONY: demo test test-fast lint bench docs wheel clean

demo: .venv/.demo
	$(BIN)/bayesmooth demo --out out/demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: .venv/.dev  # the inner loop: no slow kinds, no doctests, the tests that failed last time first
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" --failed-first tests

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/.dev  # `python -m benchmarks --help` lists them with their time
	$(BIN)/python -m benchmarks

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "site/index.html"

wheel:
	$(PYTHON) .ci/library.py

clean:
	rm -rf .venv build dist out site .mypy_cache .pytest_cache .ruff_cache .hypothesis src/bayesmooth/*.so src/*.egg-info

.venv/.demo: $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv (once)"
	$(PIP) -e ".[audit,train]"
	@touch $@

.venv/.dev: .venv/.demo
	$(PIP) -e ".[dev]"
	@touch $@

.venv/.docs: .venv/.demo
	$(PIP) -e ".[docs]"
	@touch $@
