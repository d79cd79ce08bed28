# Every target brings the machine up to date first; what is done is not done again.
PYTHON ?= python3
BIN := .venv/bin
# A third process of tests works while others wait for a service: with two, two quiet cores were idle a seventh of the time.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --durations 20

.DEFAULT_GOAL := help
.PHONY: help setup demo test journeys up down pictures bench faults flights cluster cluster-faults

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv and the jars, once
	@$(PYTHON) -I lake_assets/services/bootstrap.py

demo: setup ## from nothing to the end: late data in, a correct dimension out
	@$(BIN)/lake demo

test: setup ## style, types, imports, documentation, tests
	@$(PYTHON) -I lake_assets/services/bootstrap.py --tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m 'not (journey or faults or cluster)'

journeys: setup ## long plays: services, faults, executors, backups, histories
	@$(PYTHON) -I lake_assets/services/bootstrap.py --tests
	$(PYTEST) --dist load --maxschedchunk 1 -m journey

up: setup ## start the services
	@$(BIN)/lake up

down: setup ## stop them
	@$(BIN)/lake down

flights: setup ## a year of real flights through the lake, compared with pandas
	@LAKE_HOME=$${LAKE_HOME:-.lake/flights} $(BIN)/python -m examples.flights

faults: setup ## kill services while data flow, and write what heals how fast into docs/reliability.md
	@$(BIN)/python -m benchmarks.faults
	@$(PYTHON) -I lake_assets/services/bootstrap.py --tests
	$(PYTEST) -m faults

cluster: setup ## the demos on Spark standalone, S3, PostgreSQL, three brokers, an ensemble and two code servers
	@$(BIN)/python -m benchmarks.cluster
	@$(PYTHON) -I lake_assets/services/bootstrap.py --tests
	$(PYTEST) -m cluster

cluster-faults: setup ## kill, pause and disturb these servers while data flow, and write docs/reliability.md
	@$(BIN)/python -m benchmarks.cluster --faults 50

pictures: setup ## play the demos, and take the pictures of README and docs in a browser
	@$(PYTHON) -I lake_assets/services/bootstrap.py --tests
	@$(BIN)/python -m benchmarks.pictures

bench: setup ## print the measured figures
	@$(BIN)/python -m benchmarks
