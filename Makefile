# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

# Without bytecode, each of the many processes that the tests start compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-cluster test-pages test-rest test-kernels lint format docs release-check fuzz numbers kills sessions clean

demo: $(VENV)/.installed
	$(BIN)/golddiff demo --out demo

# Three side by side on two cores: those that start processes often wait for them. Lists that would
# compile the same loops at the same time start one after the other.
PAGES := tests/docs tests/studio tests/reliability
ifeq ($(shell uname -sm),Linux x86_64)
KERNELS := kernels-SSE kernels-AVX2
endif

test: $(VENV)/.installed
	$(MAKE) -O -j3 test-rest $(KERNELS) lint test-cluster test-pages

test-cluster:
	$(BIN)/python -m pytest tests/cluster

test-pages:
	$(BIN)/python -m pytest $(PAGES)

test-rest:
	$(BIN)/python -m pytest tests --ignore=tests/cluster $(PAGES:%=--ignore=%)

# The numerical tests as two other processors round, one without fused multiply-add: libraries and
# compiled loops choose their kernels by processor, and these choose those of older ones (x86 alone).
SSE := OPENBLAS_CORETYPE=Prescott MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic
AVX2 := OPENBLAS_CORETYPE=Haswell MKL_CBWR=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 NUMBA_CPU_NAME=haswell

test-kernels: $(KERNELS)

# Only the files that have such tests.
kernels-%: $(VENV)/.installed
	env $($*) NUMBA_CPU_FEATURES= NUMBA_CACHE_DIR=$(VENV)/numba/$* OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -m kernels $$(grep -rl --include='*.py' mark.kernels tests)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation, into site/; a warning is an error.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The wheel in a clean environment, and every command of README and guides from it.
release-check:
	$(PYTHON) tools/release_check.py

# The long checks of docs/results/reliability.md: hours, and fuzz goes on where it was stopped.
fuzz: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m reliability.fuzz

numbers: $(VENV)/.installed
	$(BIN)/python -m reliability.numbers

kills: $(VENV)/.installed
	$(BIN)/python -m reliability.kills

sessions: $(VENV)/.installed
	$(BIN)/python -m reliability.sessions

# --no-compile: Python compiles what it imports, a small part of all this.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,docs,studio,cluster]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
