VENV ?= .venv
PORT ?= 3000
PYTHON ?= python3
ENGINE ?= docker
FLAVOUR ?= cpu
BIN = $(abspath $(VENV))/bin
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
TORCH = torch==2.13.0
LOCK = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--quiet --custom-compile-command "make lock"
BESIDE_TORCH = --override requirements/overrides.txt --no-emit-package torch --no-emit-package torchvision

.PHONY: help demo test test-all install check lint bench image lock clean chromium

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.$(FLAVOUR) ## serve the shipped models with the web page [PORT=3000 FLAVOUR=cpu|cuda]
	VENV="$(VENV)" ./assay serve --port $(PORT)

test: $(VENV)/.dev chromium ## run the default tests [JOBS=2]
	$(PYTEST)

test-all: $(VENV)/.dev chromium ## run all tests, slow ones too
	$(PYTEST) -m "slow or not slow"

install: $(VENV)/.dev $(VENV)/.$(FLAVOUR:cpu=dev) ## make the environment for everything [FLAVOUR=cpu|cuda]

check: lint test ## format, lint, imports, types, tests

lint: $(VENV)/.dev ## check format, style, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	PATH="$(BIN):$$PATH" $(BIN)/pyright

bench: $(VENV)/.dev ## run all benchmarks
	$(BIN)/python -m benchmarks

image: $(VENV)/.dev ## build the bento and its image [ENGINE=docker|podman|buildah FLAVOUR=cpu|cuda]
	$(BIN)/python -m deploy.image --engine $(ENGINE) --flavour $(FLAVOUR) $(OPTIONS)

lock: ## pin requirements/*.in again (needs uv in VENV, and CPU builds of torch in UV_INDEX or UV_FIND_LINKS)
	for name in cpu gpu dev sbom peers/art peers/litserve peers/mlserver; do \
		$(LOCK) $(BESIDE_TORCH) requirements/$$name.in -o requirements/$$name.txt; done
	for name in foreign adv-lib attentions; do \
		$(LOCK) --no-deps requirements/peers/$$name.in -o requirements/peers/$$name.txt; done
	$(LOCK) --constraint requirements/cpu.txt requirements/torch-cpu.in -o requirements/torch-cpu.txt
	$(LOCK) --constraint requirements/gpu.txt requirements/torch-cuda.in -o requirements/torch-cuda.txt

clean: ## remove what was made here, except runs and state
	rm -rf $(VENV) build
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
	rm -rf .pytest_cache .ruff_cache .import_linter_cache

# torch goes first and alone: the user's pip settings decide between a CPU and a CUDA build.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install "$(TORCH)"
	@touch $@

$(VENV)/.cpu: requirements/cpu.txt | $(VENV)/.torch
	$(BIN)/pip install --no-deps -r requirements/cpu.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/cpu.txt | $(VENV)/.torch
	$(BIN)/pip install --no-deps -r requirements/dev.txt
	@rm -f $(VENV)/.cuda
	@touch $(VENV)/.cpu $@

# Both builds of ONNX Runtime have the same files: one goes before the other comes.
$(VENV)/.cuda: requirements/gpu.txt | $(VENV)/.torch
	$(BIN)/pip uninstall --yes onnxruntime onnxruntime-gpu
	$(BIN)/pip install --no-deps -r requirements/gpu.txt
	VENV="$(VENV)" ./assay runtimes
	@touch $@

chromium:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && apt-get install -y -qq chromium chromium-driver; } || \
		echo "Chromium is missing: the browser test will be skipped"
