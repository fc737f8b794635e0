PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# Where this is set, every process of every run would compile the tests again, with their assertions: 4 s each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-of test-avx2 test-slow test-exhaustive test-sample test-system test-slurm test-gpu test-all lint format docs site-version wheel sdist \
	gpu-packages test-newest test-oldest

# The default run, set-up included.
train: $(VENV)/.installed
	$(BIN)/python -m pipeline.train

# What a newcomer waits for: a few minutes on two cores.
test: $(VENV)/.installed-test
	$(PYTEST)

# The same tests as on a processor without AVX-512, in our kernels and in torch's.
test-avx2: $(VENV)/.installed-test
	PARALLEL_EPOCHS_SIMD=avx2 ATEN_CPU_CAPABILITY=avx2 $(PYTEST)

# The quick tests of one file or folder: make test-of FILE=pipeline/knowledge/ranking.py
test-of: $(VENV)/.installed-test
	tests=$$($(BIN)/python -m tests.helpers.mirror $(FILE)) && $(BIN)/python -m pytest $$tests

# Real processes that are hurt, every benchmark, Triton's interpreter, torch.compile, the README's commands.
# It has five workers, since much of the time these tests wait: for kills, limits of time and other processes.
test-slow: $(VENV)/.installed-test
	$(PYTEST) -n 5 -m "slow and not exhaustive and not system and not slurm and not gpu" --durations=20

# These tests repeat slow ones with more options, sizes and moments. Run them before a release.
test-exhaustive: $(VENV)/.installed-test
	$(PYTEST) -n 5 -m exhaustive --durations=20

# One in ten of them, others each day.
test-sample: $(VENV)/.installed-test
	mkdir -p build
	$(BIN)/python -m pytest -o addopts= -q -n 0 -m exhaustive --collect-only | grep :: | awk -v day=$$(date +%j) 'NR % 10 == day % 10' > build/sample.txt
	$(PYTEST) -n 5 -m exhaustive @build/sample.txt

# What needs system packages, long builds or large packages: Chromium, torch_sparse (3 minutes to compile, once),
# the kernels of the wheel (3 minutes of processor time, once), the trackers wandb and mlflow (about 150 MB), Ray
# (about 250 MB), the schema of Kubeflow's jobs, and mkdocs.
test-system: $(VENV)/.installed-sparse $(VENV)/.installed-trackers $(VENV)/.installed-engines $(VENV)/.installed-docs
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	$(PYTEST) -m system

test-slurm: $(VENV)/.installed-test
	command -v slurmd >/dev/null || { apt-get update -qq && apt-get install -y -qq slurm-wlm munge >/dev/null; }
	$(BIN)/python -m pytest -m slurm

# On a machine with an NVIDIA GPU: the Triton kernels, and training.
test-gpu: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m gpu

# A fresh environment: the wheel, and what pip gives it without constraints. torch for CUDA comes along, 6 GB in all,
# which are deleted in the end. After a failure they stay in build/newest.
test-newest: wheel
	rm -rf build/newest && $(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --no-cache-dir "parallel-epochs[test] @ file://$$(ls -t $(CURDIR)/dist/*.whl | head -n 1)"
	cd build/newest && bin/parallel-epochs train hydra.run.dir=first && bin/parallel-epochs predict run=first predictions=first.pt
	build/newest/bin/python -m pytest -n 2 --dist worksteal
	rm -rf build/newest

# The same tests with the oldest versions that pyproject.toml allows, in build/oldest.
test-oldest:
	rm -rf build/oldest && $(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --quiet -c .ci/oldest.txt -e .[test]
	build/oldest/bin/python -m pytest -n 2 --dist worksteal
	rm -rf build/oldest

# The packages that a machine with a GPU, torch and PyG may lack, for its Python 3.12: 11 MB in build/gpu-packages.
# One of them has no wheel, and is Python alone.
GPU_PACKAGES := hydra-core omegaconf pymetis ogb outdated littleutils beartype pytest-timeout
gpu-packages: $(VENV)/.installed
	rm -rf build/gpu-packages
	$(INSTALL) --target build/gpu-packages --no-deps --no-compile --only-binary :all: --python-version 3.12 \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 $(GPU_PACKAGES)
	$(INSTALL) --target build/gpu-packages --no-deps --no-compile antlr4-python3-runtime
	@du -sh build/gpu-packages

test-all: lint test test-slow test-exhaustive test-system test-slurm

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@[ ! -x $(BIN)/clang-format ] || $(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h')

# The C++ in the style of .clang-format.
format: $(VENV)/.installed-test
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h')

# README and docs/*.md as a site with search: build/site/index.html. A broken link ends the build.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "built build/site; its search needs a server: $(BIN)/python -m http.server --directory build/site"

# Puts the pages of a version, make site-version VERSION=1.2.3, on the branch gh-pages, beside those of others.
site-version: $(VENV)/.installed-docs
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 SITE_VERSIONS=mike mike deploy --update-aliases "$(basename $(VERSION))" latest
	PATH="$(CURDIR)/$(BIN):$$PATH" mike set-default latest

# A wheel, dist/*.whl, with every kernel compiled for each level of vector instructions: for this machine, or for
# TARGET=linux-aarch64 (which needs g++-aarch64-linux-gnu) or TARGET=darwin-aarch64 (which needs the package ziglang).
# The libraries are kept in build/kernels: their names say which sources and flags they are of.
wheel: $(VENV)/.installed-test
	rm -rf build/lib* build/bdist.*  # setuptools would pack what an older build left there
	[ "$(TARGET)" != darwin-aarch64 ] || [ "$$(uname)" = Darwin ] || $(INSTALL) ziglang
	PARALLEL_EPOCHS_KERNELS=build/kernels PARALLEL_EPOCHS_TARGET=$(TARGET) $(BIN)/python -m pip wheel --quiet \
		--disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls -l dist

# The sources as a package, dist/*.tar.gz. pip compiles no kernel when it installs them; they are compiled on first use.
sdist: $(VENV)/.installed-test
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; print(build_sdist('dist'))"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing PyTorch, PyG and what they need into $(VENV), which takes minutes and is silent. pip downloads 0.4 GB"
	@echo "(1.3 GB unpacked) where it finds PyTorch for CPUs, and several GB where it takes PyTorch for CUDA"
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the packages of the tests into $(VENV)"
	$(INSTALL) -e .[test]
	touch $@

$(VENV)/.installed-sparse: $(VENV)/.installed-test build/sparse
	$(INSTALL) --no-index build/sparse/*.whl
	touch $@

$(VENV)/.installed-trackers: $(VENV)/.installed-test
	$(INSTALL) -e .[wandb,mlflow]
	touch $@

$(VENV)/.installed-engines: $(VENV)/.installed-test
	$(INSTALL) -e .[ray] kubeflow-trainer-api
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) -e .[docs]
	touch $@

build/sparse: | $(VENV)/.installed
	$(INSTALL) setuptools wheel
	$(BIN)/python .ci/build_sparse.py $@.part
	mv $@.part $@
