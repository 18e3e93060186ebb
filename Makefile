# gpuloom: every target sets itself up. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo quick test pages test-training coverage chaos mutants check static api-check properties format bench live speed fidelity figures learning league heterogeneous elastic pollux reference pictures docs clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Make .venv with everything

$(STAMP): pyproject.toml src/gpuloom/__init__.py
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing gpuloom and its tools into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	@touch $@

demo: $(STAMP) ## Run eight small jobs on a scheduler of their own, and compare with the simulator
	@$(BIN)/gpuloom demo

# pytest puts its own code into each test file that it reads, once for each clone: two processes do that for all.
READ := build/tests-read-$(notdir $(VENV))

# Compiled modules are kept for the next run, and for the programs that tests start, wherever the machine says otherwise.
quick test pages test-training $(READ): export PYTHONDONTWRITEBYTECODE =

$(READ): | $(STAMP)
	@mkdir -p build
	@$(BIN)/python -m pytest --collect-only -qq tests/unit > $@.unit & other=$$!; \
	  $(BIN)/python -m pytest --collect-only -qq --ignore tests/unit > $@.rest; wait $$other; rm $@.unit $@.rest; touch $@

# More workers than cores: many tests wait for processes and for time to pass. Each begins with its share of the slow
# ones (tests/turns.py); who is done takes tests from others.
quick: $(STAMP) $(READ) ## Run the tests that take little time: while working (less than 2 minutes on 2 cores)
	@$(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow" --ignore tests/docs

test: $(STAMP) $(READ) ## Run all tests of the program (less than 12 minutes on 2 cores)
	@$(BIN)/python -m pytest -n 8 --dist worksteal --ignore tests/docs

pages: $(STAMP) $(READ) ## Run what the docs and the README say, page by page, as it is written
	@$(BIN)/python -m pytest -n 4 --dist worksteal tests/docs

# PyTorch and the frameworks are large: they have an environment of their own, and tests start their scripts with it.
TRAINING := build/training

test-training: $(STAMP) $(TRAINING)/.installed ## Run the tests with real PyTorch, Lightning, Transformers, Accelerate and Keras
	@GPULOOM_TRAINING=1 GPULOOM_TRAINING_PYTHON=$(TRAINING)/bin/python $(BIN)/python -m pytest -n 2 --dist worksteal tests/training

$(TRAINING)/.installed: tests/training/requirements.txt pyproject.toml
	@test -x $(TRAINING)/bin/python || "$(PYTHON)" -m venv $(TRAINING)
	@echo "installing PyTorch and the frameworks into $(TRAINING) (3.7 GB) …"
	@$(TRAINING)/bin/python -m pip install --quiet --quiet --disable-pip-version-check -r tests/training/requirements.txt --editable .
	@touch $@

coverage: $(STAMP) ## Print which part of the lines of each package the tests of `quick` run (TESTS=tests: all tests)
	@$(BIN)/python scripts/covered.py $(TESTS)

chaos: $(STAMP) ## Kill, cut off and fill at random what runs 500 jobs: does each end once? (SEEDS=1,2,3 JOBS=500 ON=slurm|pods)
	@$(BIN)/python tests/chaos.py $(if $(ON),--on $(ON)) --seeds $(or $(SEEDS),1,2,3) --jobs $(or $(JOBS),500) $(if $(KEEP),--keep $(KEEP))

mutants: $(STAMP) ## Put small faults into the program: would tests notice? (N=60 SEED=7 FILES="src/gpuloom/core PATH:LINE" TESTS=…)
	@$(BIN)/python scripts/mutants.py -n $(or $(N),60) $(if $(SEED),--seed $(SEED)) $(FILES) $(if $(TESTS),--tests $(TESTS))

static: $(STAMP) ## Format, lint, strict types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: static test pages ## All that CI runs

api-check: $(STAMP) ## Send the API 200 requests of each kind that fit its schema or don't (schemathesis)
	@GPULOOM_API_EXAMPLES=200 $(BIN)/python -m pytest tests/property/test_api_schema.py --timeout 3600

properties: $(STAMP) ## Try thirty times as many random examples as `test` does, and other ones each time (EXAMPLES=4)
	@GPULOOM_EXAMPLES=$(or $(EXAMPLES),4) $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 3600 tests/property

format: $(STAMP) ## Put the code in shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

live: $(STAMP) ## Run 60 jobs live under several policies, simulate them from their history, compare
	@$(BIN)/python bench/live_equals_simulated.py

speed: $(STAMP) ## Measure the live scheduler: submissions, latency, idle cost, restart, scheduling passes
	@$(BIN)/python bench/live_speed.py
	@$(BIN)/python bench/scheduling_pass.py

bench: $(STAMP) ## Measure the simulator's speed and print ratios
	@$(BIN)/python bench/simulator_speed.py

fidelity: $(STAMP) ## Rewrite docs/results/fidelity.md (public traces: docs/reference/data.md)
	@$(BIN)/python bench/fidelity.py
	@$(BIN)/python bench/fidelity_gavel.py

figures: $(STAMP) ## Rewrite docs/results/weaving.md: the Muri paper's figures and ours (public traces: docs/reference/data.md)
	@$(BIN)/python bench/figures.py

learning: $(STAMP) ## Rewrite docs/results/learning.md and its plot: how fast `rl` learns (public traces: docs/reference/data.md)
	@$(BIN)/python bench/learning.py

league: $(STAMP) ## Rewrite docs/results/league.md: every policy on every trace (public traces: docs/reference/data.md)
	@$(BIN)/python bench/league.py

heterogeneous: $(STAMP) ## Rewrite the figures of docs/results/heterogeneity.md (public traces: docs/reference/data.md)
	@$(BIN)/python bench/heterogeneous.py
	@$(BIN)/python bench/mixed.py

elastic: $(STAMP) ## Rewrite the figures of docs/results/elastic.md (public traces: docs/reference/data.md)
	@$(BIN)/python bench/elastic.py

pollux: $(STAMP) ## Rewrite docs/results/pollux.md: the figures of Pollux and ours (public traces: docs/reference/data.md)
	@$(BIN)/python bench/pollux.py

reference: $(STAMP) ## Rewrite the pages that list what the program has: commands, job fields, job.schema.json, layout
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/layout.py

pictures: $(STAMP) ## Draw the pictures of README and docs from what the program prints and draws
	@$(BIN)/python scripts/pictures.py

docs: $(VENV)/.docs ## Make a site of docs/ in build/docs (works offline, with search); warnings are errors
	@rm -rf build/docs
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

clean: ## Remove what was made
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
