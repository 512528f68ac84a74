# Every target creates and reuses .venv; no services and nothing but Python 3.11 and make are needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
.DEFAULT_GOAL := help
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
# Only what a lock file names, and of it only files whose hashes it holds.
LOCKED = install --require-hashes --no-deps --requirement
LOCKS := requirements.lock requirements-cpu.lock requirements-cuda.lock
.PHONY: help install demo test test-fast test-long soak gpu-check lint audit up guide bench sbom screenshots lock mlflow flower helm axe clean

help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The lock file is installed in full first; the project itself adds nothing to it. PyPI's build of torch for Linux on
# x86-64 wants CUDA's libraries; the CPU build, where pip finds one, does not.
$(STAMP): pyproject.toml $(LOCKS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(LOCKED) requirements-cpu.lock || echo "no CPU build of torch that pip can find: taking the one of PyPI"
	$(PIP) $(LOCKED) requirements.lock
	if $(BIN)/python -c "from importlib.metadata import requires; exit(not any('nvidia' in name for name in requires('torch')))"; \
		then $(PIP) $(LOCKED) requirements-cuda.lock; fi
	$(PIP) install --no-deps --no-build-isolation --editable .
	$(PIP) check
	@touch $@

install: $(STAMP) ## Install Quantmill into .venv
	@echo "Installed. Run: $(BIN)/quantmill --help, or first: source $(BIN)/activate"

demo: $(STAMP) ## Train a small CNN, quantize it through the service, print the report
	$(BIN)/quantmill demo

# One process more than there are cores, as tests wait for others, too; five at most (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test-fast: $(STAMP) ## Run one case of each short unit test that needs neither a service nor real data: under a minute
	$(PYTEST) tests/unit -m fast $(PYTEST_ARGS)

test: $(STAMP) ## Run the tests but for the long ones (PYTEST_ARGS="-n 0": in one process)
	$(PYTEST) -m "not long" $(PYTEST_ARGS)

test-long: $(STAMP) ## Run what make test leaves out, and properties with 200 examples (SLICE=name: a part, see tests/slices.toml)
	$(PYTEST) -m "long or hypothesis" --hypothesis-profile=long $$($(BIN)/python -m tools.slices --tests $(SLICE)) $(PYTEST_ARGS)

soak: $(STAMP) ## Break a service under load and count what it lost (SOAK_MINUTES, SOAK_JOBS, SOAK_SEED, SOAK_BACKEND)
	$(BIN)/python -m tests.fault.soak

gpu-check: $(STAMP) ## Check what a GPU is used for on this machine's, beside the CPU, within 8 minutes (GPU_ARGS=--dry-run: without one)
	$(BIN)/python -m benchmarks.gpu $(GPU_ARGS)

lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: ## Compare the lock files with PyPI's advisories; needs the network
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --requirement requirements.lock --requirement requirements-cuda.lock --no-deps --disable-pip --strict

up: $(STAMP) ## Start the service on the embedded default (SQLite, no broker, local files)
	$(BIN)/quantmill up

guide: $(VENV)-guide/.installed ## Build docs/ into service/docs/site, which the service serves at /guide
	$(VENV)-guide/bin/zensical build --strict --clean

bench: $(STAMP) ## Print the tables of docs/benchmarks.md; needs the real models and data (QUANTMILL_DATA)
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.advice
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.equalization
	$(BIN)/python -m benchmarks.finetune
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.qat
	$(BIN)/python -m benchmarks.qat --equality
	$(BIN)/python -m benchmarks.seeds
	$(BIN)/python -m benchmarks.sanity
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.submit_latency
	$(BIN)/python -m benchmarks.weights

sbom: $(STAMP) ## Print the bill of materials of .venv, in CycloneDX (images: docker build --target sbom --output sbom .)
	@$(BIN)/python tools/sbom.py

screenshots: $(STAMP) ## Pictures of the pages, light, dark and narrow, in build/screenshots; needs chromium
	$(BIN)/python -m tools.screenshots

lock: $(STAMP) ## Resolve the lock files from pyproject.toml (LOCK_ARGS=--upgrade: with the newest versions)
	$(BIN)/python tools/lock.py $(LOCK_ARGS)

# Beside .venv: their packages are many, and few need them. The project itself is read from the checkout.
$(VENV)-mlflow/.installed $(VENV)-flower/.installed $(VENV)-guide/.installed $(VENV)-helm/.installed: $(VENV)-%/.installed: requirements-%.lock
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip --quiet --disable-pip-version-check $(LOCKED) requirements-$*.lock
	@touch $@

mlflow: $(VENV)-mlflow/.installed ## Install the servers of MLflow and S3 that tests of hand-overs and buckets need; without them they skip

flower: $(VENV)-flower/.installed ## Install Flower, with which the test of Celery's monitoring looks; without it that skips

helm: $(VENV)-helm/.installed ## Install Helm, which renders the chart for its tests; without it they skip

# One script of one package: its version and digest stand in the tool.
$(VENV)-axe/axe.min.js: tools/axe.py
	$(PYTHON) tools/axe.py $(VENV)-axe

axe: $(VENV)-axe/axe.min.js ## Fetch axe-core, with which the pages are checked; without it those tests skip

clean: ## Remove the virtual environments and caches
	rm -rf $(VENV) $(VENV)-audit $(VENV)-mlflow $(VENV)-flower $(VENV)-guide $(VENV)-helm $(VENV)-axe service/docs/site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
