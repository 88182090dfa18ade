# Everything a person types. Each target does its own set-up on a machine with Python 3.11 or newer.
.DEFAULT_GOAL := help
.PHONY: help demo up turn test check bench browser format lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(STAMP)  ## Install, start everything, load the story, stay in front; Ctrl-C stops it all
	@exec $(BIN)/python -m flywheel.supervisor --demo

up: $(STAMP)  ## The same with an empty project
	@exec $(BIN)/python -m flywheel.supervisor

turn: $(STAMP)  ## One whole turn of the wheel, headless; the last line of stdout is its result as JSON
	@$(BIN)/python -m workers.turn

test: $(DEV_STAMP) browser  ## All tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(DEV_STAMP)  ## Lint, format, types, import contracts, migrations, deployment checks, templates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy flywheel workers tests manage.py
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run
	FLYWHEEL_HTTPS=yes FLYWHEEL_HOME=var/check $(BIN)/python manage.py check --deploy --fail-level WARNING
	$(BIN)/djlint templates --lint

bench: $(DEV_STAMP)  ## Benchmarks, as a table and as bench.json
	$(BIN)/python -m tests.bench

browser:  ## Chromium for the browser tests, from Debian's packages where we may install
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no chromium: install the package chromium, or the browser tests are skipped" >&2

format:  ## Format everything
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock: $(DEV_STAMP)  ## Write constraints.txt from what is installed
	$(BIN)/pip freeze --exclude-editable --exclude pip --exclude setuptools | sed 's/+cpu$$//' > constraints.txt

clean:  ## Remove the virtual environment and the data directory
	rm -rf $(VENV) var

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Flywheel needs Python 3.11 or newer, %s is %d.%d" % (sys.executable, *sys.version_info[:2]) if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null \
		&& $(PYTHON) -m venv $(VENV); } || { echo "python3 -m venv does not work: install the package python3-venv" >&2; exit 1; }

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[train]' >&2
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[train,redis,dev]' >&2
	@touch $@
