# make run      set up and open the console          make setup   set up only
# make test     set up and run all tests             make lint    style, types, import rules
# Tests run in two processes, one of which has the engine.
# Options: PYTHON=python3.12  DEVICE=cpu|cuda (default: what is found)  ARGS="--port 9000"

PYTHON ?= python3
DEVICE ?= auto
ARGS ?=
BIN := .venv/bin
BENCHMARKS := start flight_record port ui_tax swap gateway telemetry

.PHONY: run setup test lint format conformance bench lock test-programs clean

run: setup
	@$(BIN)/llmconsole $(ARGS)

setup:
	@$(PYTHON) scripts/setup.py --device $(DEVICE)

test: setup test-programs
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# vLLM's own entrypoint tests against our port and against vllm serve.
conformance: setup
	@$(BIN)/python -m benchmarks.conformance $(ARGS)

bench: setup
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; done

# Programs that tests drive: tmux, nginx, redis-server.
test-programs:
	@sh scripts/test_programs.sh

# Resolve the lock files again; needs uv. Pins stay as they are unless LOCK_FLAGS="--upgrade-package NAME" says so.
# The overrides drop packages that break or bloat an install: see locks/README.md.
UV ?= uv
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
COMPILE = $(UV) pip compile -q pyproject.toml --extra dev --python-version 3.11 --no-header \
	--index-strategy unsafe-best-match $(LOCK_FLAGS)
lock:
	$(COMPILE) --extra cpu --override locks/overrides-cpu.txt $(if $(TORCH_CPU_INDEX),--extra-index-url $(TORCH_CPU_INDEX)) -o locks/cpu.txt
	$(COMPILE) --extra cuda --override locks/overrides-cuda.txt --python-platform x86_64-manylinux_2_28 -o locks/cuda.txt

clean:
	rm -rf .venv build *.egg-info
