# make setup once, then: make check, make test, make wheel
PYTHON ?= python

.PHONY: view check test test-all wheel

view:  ## gives every file its import name for mypy
	@mkdir -p .view && ln -sfn .. .view/foredraft

check: view
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest -m "not slow and not gpu"

test-all:
	$(PYTHON) -m pytest -m "not gpu"

wheel:
	$(PYTHON) -m build
