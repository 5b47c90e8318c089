# Targets: venv, quickstart, test, lint, bench. All of them set up .venv first.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: venv quickstart test lint bench clean

venv: $(STAMP)

$(STAMP): pyproject.toml hatch_build.py .ci/make-venv $(wildcard pddbench/replay/native/*.[ch])
	@bash .ci/make-venv $(VENV)
	@touch $@

quickstart: $(STAMP)
	@$(PY) -m pddbench run workloads/quickstart/experiment.toml $(ARGS)

test: $(STAMP)
	@$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP)
	@$(PY) -m ruff check pddbench tests
	@$(PY) -m ruff format --check pddbench tests
	@$(PY) -m mypy

bench: $(STAMP)
	@$(PY) -m pytest tests/bench -o python_files='bench_*.py' -s $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
