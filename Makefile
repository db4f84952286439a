# Conveniences around pip and the patevolve command. PYTHON must be 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check types bench clean

demo: .venv/demo.installed ## four hospitals, one command; the same as: pip install -e '.[demo]' && patevolve demo
	$(BIN)/patevolve demo heart

test: .venv/test.installed check ## everything that CI runs
	$(BIN)/pytest

check: .venv/test.installed types ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p patevolve

bench: .venv/test.installed ## ratios of speed and size, a few minutes on an idle machine: docs/performance.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench.py

# The folders are mapped to patevolve.* by setuptools; mypy finds them through links of the same shape.
types:
	mkdir -p .types/patevolve
	for folder in client server shared; do ln -sfn ../../$$folder .types/patevolve/$$folder; done

.venv/demo.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

.venv/test.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf .venv .types build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
