# Every target that needs the virtual environment depends on $(READY), which creates it.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN := $(BIN)/python hack/run.py
# The first Python that is new enough; PYTHON=… selects another one.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help

.PHONY: help
help:  ## List all targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(READY)  ## Run a TrainJob to completion on a temporary control plane
	@$(RUN) demo

# Most tests wait for servers, so two cores serve four processes.
WORKERS := 4
.PHONY: test
test: $(READY)  ## Run all tests, in four processes; WORKERS=… sets their number, FLAGS='…' passes flags to pytest
	@PYTHONPATH=. $(RUN) build_tools
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(FLAGS)

.PHONY: test-unit test-integration test-e2e
test-unit: $(READY)  ## Run the unit tests
	@$(BIN)/pytest tests/unit
test-integration: $(READY)  ## Run the integration tests on etcd and kube-apiserver
	@$(BIN)/pytest -m integration
test-e2e: $(READY)  ## Run the end-to-end tests on a complete control plane
	@$(BIN)/pytest -m e2e

# The first release of the Kubeflow SDK and later ones; 0.1.0 does not work with the newest API types.
SDKS := 0.1.0 0.3.1 0.4.1 0.5.0
TYPES_0.1.0 := kubeflow-trainer-api==2.0.1
.PHONY: test-clients
test-clients: $(READY) $(SDKS:%=.clientsenv/%/.ready)  ## Test released Kubeflow SDKs and Kueue on a complete control plane
	@$(BIN)/pytest tests/clients $(FLAGS)
.clientsenv/%/.ready:
	@echo "installing the Kubeflow SDK $* …"
	@$(PYTHON) -m venv .clientsenv/$*
	@.clientsenv/$*/bin/pip install --quiet --disable-pip-version-check kubeflow==$* $(TYPES_$*)
	@touch $@

.PHONY: test-mpi
test-mpi: $(READY)  ## Test Open MPI 4 and 5, MPICH and Intel MPI from PyPI on network namespaces
	@$(BIN)/pytest tests/mpi $(FLAGS)

.PHONY: test-torch
test-torch: $(READY)  ## Test torchrun on process nodes, with torch from PyPI
	@$(BIN)/pytest tests/torch $(FLAGS)

.PHONY: dev
dev: $(READY)  ## Run the manager on a local control plane; NAME=… selects the control plane, PROCESS_NODES=… runs pods as processes on that number of nodes, FLAGS='…' passes flags to the manager
	@$(RUN) dev $(if $(NAME),--name $(NAME)) $(if $(PROCESS_NODES),--process-nodes $(PROCESS_NODES)) $(FLAGS)

.PHONY: check
check: $(READY)  ## Run linters, type checker, import rules and unit tests: about a minute on two cores
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder tests/test_lint.py tests/unit

.PHONY: generate
generate: $(READY)  ## Write all generated files: CRDs, merge keys, dashboard, docs/configuration.md, version
	@$(RUN) generate

.PHONY: bench bench-machinery
bench: bench-machinery  ## Run all benchmarks: about ten minutes
	@$(RUN) bench.parsing
	@$(RUN) bench.planning
	@$(RUN) bench.hostile
	@$(RUN) bench.endtoend
	@$(RUN) bench.admission
	@$(RUN) bench.memory
	@$(RUN) bench.attack
bench-machinery: $(READY)  ## Benchmark queue, informer, watch and client against other libraries
	@$(RUN) bench.machinery

.PHONY: image image-check
image: $(READY)  ## Build the image and its SBOM; requires BASE_IMAGE=…@sha256:… or ALLOW_TAG=1; optional: IMAGE, BUILD_IMAGE, PIP_CONF, CA
	@$(RUN) image $(if $(IMAGE),--tag $(IMAGE)) \
		$(if $(BASE_IMAGE),--base-image $(BASE_IMAGE)) $(if $(BUILD_IMAGE),--build-image $(BUILD_IMAGE)) \
		$(if $(ALLOW_TAG),--allow-tag) $(if $(ENGINE),--engine $(ENGINE)) $(if $(PIP_CONF),--pip-conf $(PIP_CONF)) $(if $(CA),--ca $(CA)) \
		$(if $(FLAGS),-- $(FLAGS))
image-check: $(READY)  ## Build the image from scratch, inspect it and run it; requires Debian and root
	@$(RUN) image.check $(if $(PIP_CONF),--pip-conf $(PIP_CONF)) $(if $(CA),--ca $(CA))

.PHONY: audit
audit: $(READY)  ## Look up known vulnerabilities of the locked dependencies; FLAGS='-s osv' uses OSV instead of PyPI
	@test -x .auditenv/bin/pip-audit || { $(PYTHON) -m venv .auditenv && .auditenv/bin/pip install --quiet pip-audit; }
	@$(RUN) audit --program .auditenv/bin/pip-audit $(if $(FLAGS),-- $(FLAGS))

.PHONY: fmt
fmt: $(READY)  ## Format the code and apply automatic fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: setup
setup: $(READY)  ## Create .venv with all development dependencies

# Touched last, so that an interrupted setup is repeated.
$(READY): requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo 'kftrainer requires Python 3.11 or newer: install it, or pass its path: `make PYTHON=/path/to/python3 …`.' >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) …"
	@$(PYTHON) -m venv $(VENV) || { echo 'Creating the virtual environment failed: on Debian and Ubuntu, install the package python3-venv.' >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock \
		|| { echo 'Installing the dependencies failed: the setup needs access to PyPI, or to a mirror that is configured for pip.' >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: lock
lock:  ## Select new versions of all dependencies and pin them
	@test -x .lockenv/bin/uv || { $(PYTHON) -m venv .lockenv && .lockenv/bin/pip install --quiet uv; }
	@.lockenv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate pyproject.toml -o requirements.lock
	@.lockenv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	@echo hatchling | .lockenv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate -c requirements-dev.lock - -o requirements-build.lock

.PHONY: clean
clean:  ## Delete the virtual environments and caches, except the built programs
	@rm -rf $(VENV) .lockenv .auditenv .clientsenv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
