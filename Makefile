PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# Workers of the test run; every one of them uses one thread.
WORKERS ?= auto

.PHONY: help demo test lint types format clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: $(VENV)/.run  ## plain against checkpointed decoding, with scores, on the trained model in the package
	$(BIN)/statewise demo

test: $(VENV)/.dev  ## all tests; those that need a GPU or GSM8K's files skip where there is none
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.dev  ## ruff: lint and format
	$(BIN)/ruff check src tests train
	$(BIN)/ruff format --check src tests train

types: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff fix what it can
	$(BIN)/ruff check --fix src tests train
	$(BIN)/ruff format src tests train

clean:  ## remove the environment and what tools have cached
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing statewise and PyTorch into $(VENV) (once)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing statewise, PyTorch and the development tools into $(VENV) (once)"
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.run
