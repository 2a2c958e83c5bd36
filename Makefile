# make run: a model answers.  make test: the test suite.  Both from a fresh clone with Python >= 3.10, a C++17 compiler and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The portable kernels: what documents show is the same on every processor.
COG     = OCTAVO_ISA=generic $(BIN)/cog -I tools
PROMPT ?= What is the capital of France? Answer in one sentence.

.PHONY: help run test test-all bench-smoke lint sanitize sanitize-threads docs clean

help:            ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: $(VENV)/.installed        ## install, fetch SmolLM2-135M-Instruct, answer a prompt
	@$(BIN)/octavo generate --model smollm2-135m --chat --max-tokens 64 --temperature 0 --prompt "$(PROMPT)"

test: $(VENV)/.installed-test  ## install, then the test suite
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(VENV)/.installed-test  ## the test suite with the larger matrix
	$(BIN)/python -m pytest -n 2

bench-smoke: $(VENV)/.installed-test  ## every benchmark, tiny: that each runs and prints its JSON
	$(BIN)/python tools/bench_smoke.py

lint: $(VENV)/.installed-lint  ## types, style, layers, size budgets, generated docs
	$(BIN)/mypy
	$(BIN)/ruff check src tests tools examples benchmarks
	$(BIN)/ruff format --check src tests tools examples benchmarks
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py
	$(COG) --check docs/*.md docs/book/*.md

sanitize: $(VENV)/.installed-test  ## the tests of kernels, programs and weights under AddressSanitizer and UndefinedBehaviorSanitizer
	PYTHON=$(BIN)/python tools/sanitize.sh address

sanitize-threads: $(VENV)/.installed-test  ## the tests of programs and their threads under ThreadSanitizer
	PYTHON=$(BIN)/python tools/sanitize.sh thread

clean:           ## remove what was built
	rm -rf $(VENV) build

SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc src -name '*.cpp' -o -name '*.h' -o -name '*.py') \
           $(wildcard src/octavo/server/dashboard/*)

INSTALL := tools/install.sh $(BIN)/python

$(VENV)/.build-tools: pyproject.toml
	@test -x $(BIN)/python || { echo "Making a virtual environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Fetching the build tools"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet 'scikit-build-core>=0.10' 'nanobind>=2.4' cmake ninja
	@touch $@

$(VENV)/.installed: $(VENV)/.build-tools $(SOURCES)
	@$(INSTALL) .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.build-tools $(SOURCES)
	@$(INSTALL) '.[test,clients,browser]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-lint: $(VENV)/.build-tools $(SOURCES)
	@$(INSTALL) '.[test,clients,browser,lint]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

docs: $(VENV)/.installed-lint  ## write the generated parts of the documentation anew
	$(COG) -r docs/*.md docs/book/*.md
