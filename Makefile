# The two commands that matter: `make run` and `make test`. Both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOMS := actors doors messages midstream providers rules stores supervisors

.DEFAULT_GOAL := help
.PHONY: help run test races mutants check lint types imports guards wheel schema bench clean FORCE

help:
	@echo "make run    watch the demo: answers that break a rule are cut, corrected, finished"
	@echo "make test   run the tests"
	@echo "make races  the race tests under 20,000 schedules each (SEEDS=... FROM=...)"
	@echo "make mutants  take each guard away in a copy, and see that a test fails"
	@echo "make check  lint, types, import rules, and the places of the guards"
	@echo "make wheel  build the wheel, install it alone, and run the demo from it"
	@echo "make bench  the benchmarks"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "midstream needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=69"

# A strict editable install links each file by itself, so it is renewed when a file is
# added or goes away.
$(VENV)/files: FORCE | $(BIN)/python
	@find $(ROOMS) -type f -not -name '*.pyc' | sort > $@.new
	@cmp -s $@.new $@ || mv $@.new $@
	@rm -f $@.new

$(VENV)/with-%: pyproject.toml README.md $(VENV)/files | $(BIN)/python
	@echo "setting up midstream[$*] in $(VENV)"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable '.[$*]' --config-settings editable_mode=strict
	@touch $@

run: $(VENV)/with-all
	@$(BIN)/midstream demo

# On all cores, and one more for tests that wait for processes; with ARGS="-n0" one after the
# other, as a debugger needs it.
WORKERS = $(shell $(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

# The tests start the program some hundred times: what it is compiled to is kept, also where
# the environment forbids that.
test: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/with-test
	$(PYTEST) $(ARGS)

SEEDS ?= 20000
FROM ?= 0

races: $(VENV)/with-test
	$(PYTEST) tests/races --races-seeds $(SEEDS) --races-from $(FROM) $(ARGS)

mutants: $(VENV)/with-test
	$(BIN)/python tests/mutants.py $(ARGS)

check: lint types imports guards

lint: $(VENV)/with-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/with-check
	$(BIN)/pyright

imports: $(VENV)/with-check
	cd $(VENV) && bin/lint-imports ../pyproject.toml

# Whether every guard is still where the list of mutants says; none is broken.
guards: $(VENV)/with-check
	@$(BIN)/python tests/mutants.py --list > /dev/null
	@$(BIN)/python tests/planted.py --list > /dev/null

wheel: $(VENV)/with-test
	$(BIN)/pytest tests/midstream/test_wheel.py

schema: $(VENV)/with-all
	$(BIN)/python -P -c "from midstream.messages.wire_schema import schema_text; print(schema_text(), end='')" > docs/websocket.schema.json

bench: $(VENV)/with-test
	$(BIN)/python bench/matching.py
	$(BIN)/python bench/latency.py
	$(BIN)/python bench/websocket.py
	$(BIN)/python bench/gateway.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
