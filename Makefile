# make reproduce: the paper's Table I on this machine, and a few models that are trained here.
# make check: lint, types and the quick tests, for work in progress.   make test: what CI runs.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# One worker more than cores, since some tests wait. A file's tests on one worker, so that what they share is
# set up once; in the order of tests/support/gate.py.
PYTEST := $(VENV)/bin/pytest -n $$(( $$(nproc) + 1 )) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
export DS_BUILD_OPS := 0
# Hundreds of tests start Python: none is to compile the same modules again, whatever the shell has set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: reproduce check test long lines setup system check-ruff check-types check-quick check-tests operators

reproduce: setup
	$(RUN) -m harness suite=memory selection=quick

check: setup check-ruff check-types check-quick

# mypy while tests run: some of them wait.
test: setup check-ruff operators
	$(MAKE) -j2 check-types check-tests

check-ruff:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

check-types:
	$(VENV)/bin/mypy

# What starts no ranks, networks, engines or compilers.
check-quick:
	$(PYTEST) -m "not slow and not long"

# Once a machine, some minutes: what deepspeed would compile while a test waits for it.
operators: setup
	$(RUN) -m harness.instruments.distributed.deepspeed_engine

check-tests:
	$(PYTEST) -m "not long"

# What repeats at other settings, or at length, what make test has run.
long: setup operators
	$(PYTEST) -m long

# Lines by folder, next to what each may have.
lines:
	@$(PYTHON) tests/support/lines.py

setup: system $(VENV)/.done

system:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed (apt install python3), or name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "venv is missing: apt install python3-venv"; exit 1; }
	@command -v g++ >/dev/null || { echo "g++ is missing: apt install g++"; exit 1; }

# torch first: deepspeed is built against the torch that stands there.
$(VENV)/.done: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q -c constraints.txt setuptools wheel torch ninja
	$(RUN) -m pip install -q -c constraints.txt --no-build-isolation -e '.[train,test,hf,liger,jax,dataloader,slurm,serve]'
	touch $@
