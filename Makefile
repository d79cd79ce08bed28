# Every target brings the machine up to date first. A file in .venv says that a step is done: it is not done again
# until something that it depends on has changed.
PYTHON ?= python3
BIN := .venv/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
PACKAGES := .venv/packages-$(VERSION).done
CONFIGURATION := lake_assets/services/configuration
JARS := $(CONFIGURATION)/jars.lock $(wildcard $(CONFIGURATION)/ivy*.xml)
# A third process of tests works while others wait for a service: with two, two quiet cores were idle a seventh of the time.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --durations 20

.DEFAULT_GOAL := help
.PHONY: help setup tests-setup style types imports documentation collected demo test journeys up down pictures bench faults flights cluster cluster-faults

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/jars.done ## .venv and the jars, once

tests-setup: .venv/jars-of-tests.done
	@if [ -n "$$(command -v chromium || command -v chromium-browser || command -v google-chrome)" ]; then :; \
	elif [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && [ -n "$$(command -v apt-get)" ]; then \
		apt-get --quiet --option Acquire::Retries=3 update && \
		apt-get --quiet --option Acquire::Retries=3 install --yes --no-install-recommends chromium; \
	else echo "Pages are not looked at in a browser: no Chromium is on the path. Install chromium to test them."; fi

$(PACKAGES): requirements.lock
	@case "$(VERSION)" in 3.1[1-9]) ;; *) echo "Python $(VERSION) will not do. Install 3.11 or later, then: make PYTHON=python3.11"; exit 1;; esac
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2> /dev/null || { echo "No Java runs. Install 17 or 21, or set JAVA_HOME."; exit 1; }
	@[ "$$(df -Pk . | awk 'NR == 2 {print $$4}')" -ge 3000000 ] || { echo "Less than 3 GB of disk space are free. Free some, then run the command again."; exit 1; }
	@echo "Installing the locked packages into .venv (about 1 GB; some minutes the first time)"
	@$(PYTHON) -m venv $(if $(wildcard .venv/bin/python$(VERSION)),,--clear) .venv
	@# --no-deps: the lock names all packages, and without it pip cannot check the hash of a package with extras.
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@touch $@

# No build tool: it would be a download that the lock does not name.
$(BIN)/lake: $(PACKAGES) Makefile
	@echo "$(CURDIR)" > "$$(echo .venv/lib/python*/site-packages)/lake_assets.pth"
	@printf '#!/bin/sh\nexec "$$(dirname "$$(readlink -f "$$0")")/python" -P -m lake_assets.cli.main "$$@"\n' > $@
	@chmod +x $@

.venv/jars.done: $(BIN)/lake $(JARS)
	@$(BIN)/lake setup
	@touch $@

.venv/jars-of-tests.done: .venv/jars.done
	@$(BIN)/lake setup --with pinot --with postgresql --with s3
	@touch $@

demo: setup ## from nothing to the end: late data in, a correct dimension out
	@$(BIN)/lake demo

style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

documentation:
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# What is compiled is kept, also where the environment forbids it: else each process of the tests compiles it anew. What
# cannot be collected, the tests tell.
collected:
	$(BIN)/python -m compileall -q lake_assets lake_assets_tests benchmarks examples
	-@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq --numprocesses 0 > /dev/null 2>&1

# mypy needs as long as all others, and one core.
test: tests-setup ## style, types, imports, documentation, tests
	@$(MAKE) --no-print-directory --jobs 2 types style imports documentation collected
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m 'not (journey or faults or cluster)'

journeys: tests-setup ## long plays: services, faults, backups, histories
	$(PYTEST) --dist load --maxschedchunk 1 -m journey $$(grep -rl journey lake_assets_tests --include='test_*.py')

up: setup ## start the services
	@$(BIN)/lake up

down: setup ## stop them
	@$(BIN)/lake down

flights: setup ## a year of real flights through the lake, compared with pandas
	@LAKE_HOME=$${LAKE_HOME:-.lake/flights} $(BIN)/python -m examples.flights

faults: tests-setup ## kill services while data flow, and write what heals how fast into docs/reliability.md
	@$(BIN)/python -m benchmarks.faults
	$(PYTEST) -m faults

cluster: tests-setup ## the demos on Spark standalone, S3, PostgreSQL, three brokers, an ensemble and two code servers
	@$(BIN)/python -m benchmarks.cluster
	$(PYTEST) -m cluster

cluster-faults: setup ## kill, pause and disturb these servers while data flow, and write docs/reliability.md
	@$(BIN)/python -m benchmarks.cluster --faults 50

pictures: tests-setup ## play the demos, and take the pictures of README and docs in a browser
	@$(BIN)/python -m benchmarks.pictures

bench: setup ## print the measured figures
	@$(BIN)/python -m benchmarks
