# Two commands do everything on a machine with Python 3.11+ and make: `make demo` and `make test`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# Further arguments for pytest, as in: make test ARGS="tests/indexes -x"
ARGS ?=
# Tests that run side by side; Spark's are all in one of the processes.
JOBS ?= 2
# The soak's random choices; give the seed of a failed run to see it again.
SEED ?= $(shell date +%s)

.PHONY: help env demo test soak lint format types bench reference wheel clean

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

env: ## Make .venv complete (all other targets do this first)
	@.ci/bootstrap

demo: env ## Show what windrow does, on generated data
	@$(BIN)/windrow demo

test: env ## Run the test suite (not the long sweeps)
	$(BIN)/pytest -n $(JOBS) --dist loadscope $(ARGS)

soak: env ## Run the long sweeps: soak tests, and all property tests with many examples (SEED=... repeats a run)
	WINDROW_PROFILE=soak $(BIN)/pytest -m "soak or hypothesis" --timeout 7200 -o faulthandler_timeout=7000 --hypothesis-seed=$(SEED) $(ARGS)

lint: env ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env ## Format the code and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: env ## Check types
	$(BIN)/mypy

bench: ## Run all benchmarks beside other stores (installs them first; ARGS=--full for all sizes)
	@.ci/bootstrap peers
	$(BIN)/windrow bench all $(ARGS)

reference: env ## Build the reference of the Python interface, with search, into build/reference/
	$(BIN)/python docs/api_reference.py build/reference

wheel: env ## Build a source distribution into dist/, and of it a wheel, which installs without a compiler
	rm -rf dist/windrow-*
	$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > build/sdist.log
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/windrow-*.tar.gz

clean: ## Remove everything that can be made again
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
