# Every target makes its own environment in .venv/ and keeps it; nothing has to be installed first but some Python.
#   VERSION=3.13      with that version of Python
#   PYTHON=/path      with that interpreter
VERSION ?=
export PYTHON
environment = python=$$(.ci/environment $(VERSION)) &&

.NOTPARALLEL:
.PHONY: help demo bench bench-quick test lint format clean

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: ## train a small language model under tcmon and show the summary of the run
	@$(environment) "$$python" -m tcmon demo

test: ## run all tests; ARGS="-k name" picks some
	@$(environment) "$$python" -m pytest $(ARGS)

bench: ## measure what tcmon and other tools cost (12 minutes): bench/results/
	@$(environment) "$$python" -m bench $(ARGS)

bench-quick: ## a few of these figures (2 minutes)
	@$(environment) "$$python" -m bench --quick $(ARGS)

lint: ## run ruff and mypy
	@$(environment) set -x && "$$python" -m ruff check . && "$$python" -m ruff format --check . && "$$python" -m mypy

format: ## lay out the code, mend what ruff can mend
	@$(environment) "$$python" -m ruff check --fix . && "$$python" -m ruff format .

clean: ## remove environments and caches, keep runs
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find tcmon tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
