PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: train test test-slow test-system test-slurm test-all lint

# The default run, set-up included.
train: $(VENV)/.installed
	$(BIN)/python -m pipeline.train

# What a newcomer waits for: a few minutes on two cores.
test: $(VENV)/.installed-test
	$(PYTEST)

# Real processes that are hurt, every benchmark, Triton's interpreter, torch.compile, the README's commands.
test-slow: $(VENV)/.installed-test
	$(PYTEST) -m "slow and not system and not slurm" --durations=20

# What needs system packages, long builds or large packages: Chromium, torch_sparse (10 to 15 minutes to compile, once),
# and the trackers wandb and mlflow (about 150 MB).
test-system: $(VENV)/.installed-sparse $(VENV)/.installed-trackers
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	$(BIN)/python -m pytest -m system

test-slurm: $(VENV)/.installed-test
	command -v slurmd >/dev/null || { apt-get update -qq && apt-get install -y -qq slurm-wlm munge >/dev/null; }
	$(BIN)/python -m pytest -m slurm

test-all: lint test test-slow test-system test-slurm

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(INSTALL) -e .[test]
	touch $@

$(VENV)/.installed-sparse: $(VENV)/.installed-test build/sparse
	$(INSTALL) --no-index build/sparse/*.whl
	touch $@

$(VENV)/.installed-trackers: $(VENV)/.installed-test
	$(INSTALL) -e .[wandb,mlflow]
	touch $@

# Neither package has a wheel on PyPI, and both compile one file after the other.
build/sparse: | $(VENV)/.installed
	$(INSTALL) setuptools wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation --no-deps \
	    --wheel-dir $@.part torch_scatter torch_sparse
	mv $@.part $@
