# `make demo` and `make test` need Python >= 3.11, git, make and a pip that reaches a package index.
PYTHON ?= python3
BIN := .venv/bin
# Tests start many processes: without its cache each would compile torch anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test lint types tests coverage drill docs wheel audit hashes clean

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.installed: requirements.lock requirements.hashes pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Masquerade needs Python 3.11 or newer; call make PYTHON=python3.11"'
	$(PYTHON) -m venv .venv
	@# Python compiles what is imported; compiling all of it takes a minute longer.
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps --require-hashes -r requirements.hashes
	@# Every index has builds of its own of torch under one version, so that no hash fits all.
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c requirements.lock "$$(grep ^torch== requirements.lock)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: .venv/.installed  ## train and compare six methods on the embedded digits (80 s of one core, once .venv is built)
	rm -rf out/demo
	$(BIN)/masquerade compare --config runs/digits.toml --out out/demo

test: lint  ## everything that must hold: lint, types, the decoder's coverage, tests
	@# Types and coverage take one core each; tests take both, and end with the slowest parts.
	$(MAKE) --no-print-directory -j 2 --output-sync=target types coverage
	$(MAKE) --no-print-directory tests

lint: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.installed
	$(BIN)/mypy

tests: .venv/.installed
	$(BIN)/pytest -n 2 --dist worksteal -m "not drill"

coverage: .venv/.installed  ## show that short tests take every branch of the decoder
	$(BIN)/coverage run --branch --include='*/masquerade/wire/*' -m pytest $(addprefix tests/wire/test_,codec.py bits.py session.py attacks.py)
	$(BIN)/coverage report --include='*/wire/codec.py,*/wire/bits.py' --fail-under=100 -m

drill: .venv/.installed  ## the long checks
	$(BIN)/pytest -n 2 --dist worksteal -m drill --timeout=1800

docs: .venv/.installed  ## build the site, out/site/index.html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -c docs/site -d build/doctrees -b html . out/site
	@echo "The site begins at out/site/index.html"

wheel: .venv/.installed  ## build the wheel, and the list of what it consists of (CycloneDX)
	rm -rf dist
	$(BIN)/python -m bench.release dist

audit: .venv/.installed  ## compare the lock with known vulnerabilities, where a database is reached
	$(BIN)/python -m bench.audit

hashes: .venv/.installed  ## write requirements.hashes anew, of the lock and a package index
	$(BIN)/uv pip compile requirements.lock --quiet --generate-hashes --no-deps --no-annotate \
		--no-header --universal --python-version 3.11 --no-emit-package torch -o requirements.hashes

clean:  ## remove what make built
	rm -rf .venv build dist out
