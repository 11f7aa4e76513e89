# make demo   the comparison on embedded data        make test      the tests, a worker on every core (at most 8)
# make lint   format check, linter, strict types     make test-all  with the matrices that are exhaustive
# make format apply the formatter                    PYTEST_XDIST_AUTO_NUM_WORKERS=N sets the number of workers
# make docs   the documentation site, into site/
# make fuzz   300 bad inputs, each of which must end in one line; COUNT=800 has all that were written by hand
# make bench  ours, five peers and plain training side by side on this CPU: over an hour, 7 GB of environments
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
COUNT  ?= 300
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

PARALLEL := -n auto --maxprocesses 8 --dist worksteal

.PHONY: docs demo test test-all fuzz lint format bench clean

demo: $(VENV)/.installed
	$(BIN)/fairmean compare run.name=demo train.rounds=150 train.lr=0.2 train.lr_decay=0.99 --report report.html

test: $(VENV)/.ready
	$(BIN)/python -m pytest $(PARALLEL) -m 'not exhaustive'

test-all: $(VENV)/.ready
	$(BIN)/python -m pytest $(PARALLEL)

fuzz: $(VENV)/.ready
	$(BIN)/python -m tests.fuzz --count $(COUNT)

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.ready
	$(BIN)/zensical build --strict

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready
	$(PIP) '.[plot]'
	benchmarks/peers/make_venvs.sh
	$(BIN)/python benchmarks/bench.py table
	$(BIN)/python benchmarks/bench.py sweep
	$(BIN)/python benchmarks/bench.py report
	$(BIN)/python benchmarks/bench_local.py table
	$(BIN)/python benchmarks/bench_local.py growth
	$(BIN)/python benchmarks/bench_local.py report

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) .
	touch $@

$(VENV)/.ready: $(VENV)/.installed
	$(PIP) '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
