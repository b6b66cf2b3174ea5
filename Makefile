# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format docs fuzz numbers kills clean

demo: $(VENV)/.installed
	$(BIN)/golddiff demo --out demo

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The API reference, from the docstrings; a test tells when it is out of date.
docs: $(VENV)/.installed
	$(BIN)/python docs/make_api.py

# The long checks of docs/reliability.md: hours, and fuzz goes on where it was stopped.
fuzz: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m reliability.fuzz

numbers: $(VENV)/.installed
	$(BIN)/python -m reliability.numbers

kills: $(VENV)/.installed
	$(BIN)/python -m reliability.kills

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,studio,cluster]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
