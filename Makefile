# Every target creates and reuses .venv; no services and nothing but Python 3.11 and make are needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast soak lint audit up bench lock clean

help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The lock file is installed in full first; the project itself adds nothing to it.
$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## Train a small CNN, quantize it through the service, print the report
	$(BIN)/quantmill demo

test-fast: $(STAMP) ## Run the unit tests that need neither a service nor real data and are no long ones
	$(BIN)/python -m pytest tests/unit -m "not slow and not redis and not data" -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

test: $(STAMP) ## Run every test, one process per core (PYTEST_ARGS="-n 0": one in all)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

soak: $(STAMP) ## Break a service under load and count what it lost (SOAK_MINUTES, SOAK_JOBS, SOAK_SEED, SOAK_BACKEND)
	$(BIN)/python -m tests.fault.soak

lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: ## Compare requirements.lock with PyPI's advisories; needs the network
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip --strict

up: $(STAMP) ## Start the service on the embedded default (SQLite, filesystem broker, local files)
	$(BIN)/quantmill up

bench: $(STAMP) ## Print the tables of docs/benchmarks.md; needs the real models and data (QUANTMILL_DATA)
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.advice
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.equalization
	$(BIN)/python -m benchmarks.finetune
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.qat
	$(BIN)/python -m benchmarks.qat --equality
	$(BIN)/python -m benchmarks.seeds
	$(BIN)/python -m benchmarks.sanity
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.submit_latency

lock: $(STAMP) ## Resolve requirements.lock anew from pyproject.toml
	$(BIN)/python -m piptools compile --quiet --all-extras --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links \
		--upgrade --constraint constraints.txt --output-file requirements.lock pyproject.toml
	# A local build's tag, and the project itself (its extras name it), do not belong into the lock file.
	sed -i 's/^\(torch==[0-9.]*\)+cpu/\1/; /^quantmill @/d' requirements.lock

clean: ## Remove the virtual environments and caches
	rm -rf $(VENV) $(VENV)-audit .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
