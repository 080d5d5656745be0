# Everything one does with a clone. `make demo` and `make test` need nothing but Python >= 3.11 and make.
#
#   PYTHON=python3.12          the interpreter of .venv, when it is made
#   TORCH='torch==2.9.1'       another torch than the newest;   TORCH_INDEX=URL   an index of CPU builds, say
#   ARGS='-k feed -x'          more arguments for pytest, the demo or the benchmarks
#   JOBS=3                     processes that run tests beside each other; each may start several more

PYTHON ?= python3
PY ?= 3.13
TORCH ?=
TORCH_INDEX ?=
ARGS ?=
JOBS ?= 3
YARN ?= yarn and not full

VENV := .venv
RUN := $(VENV)/bin/python
PARALLEL := -n $(JOBS) --dist loadgroup
FAST := -m pytest $(PARALLEL) -m "not full and not yarn"
SETUP := $(PYTHON) tools/install.py

.DEFAULT_GOAL := help
.PHONY: help install horovod mxnet demo test test-full test-faults test-oldest test-python test-nojava test-yarn check format bench chaos clean distclean
.PHONY: yarn-up yarn-down yarn-status
.PHONY: FORCE

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed ## make .venv and install into it

horovod: install ## build Horovod for .venv, or take it from the cache: backend="horovod" uses it if it is there
	$(PYTHON) tools/build_horovod.py --venv $(VENV) $(ARGS)

mxnet: install ## install MXNet into .venv, which its tests need: it has wheels for Linux, and for macOS on Intel
	$(SETUP) --venv $(VENV) --mxnet

demo: install ## train on Fashion-MNIST, evaluate, save, load, predict
	$(RUN) examples/fashion_mnist.py $(ARGS)

test: $(VENV)/.mxnet ## run the tests (all but those marked full)
	$(RUN) $(FAST) $(ARGS)

test-full: $(VENV)/.mxnet ## run every test but those that need a Hadoop: also long ones and cold programs
	$(RUN) -m pytest $(PARALLEL) -m "not yarn" $(ARGS)

test-faults: $(VENV)/.mxnet ## run the long tests of faults: lost executors and nodes, pauses of a network, secrets on command lines
	$(RUN) -m pytest -m "full and not yarn" tests/cluster/test_standalone.py tests/cluster/test_spark.py \
		tests/cluster/test_ray.py tests/contract/test_faults.py tests/contract/test_resume.py tests/tools/test_chaos.py $(ARGS)

test-yarn: install ## run the tests that need a Hadoop, on one that is started for them (needs Maven); YARN=yarn: all
	mkdir -p build/hidden
	$(PYTHON) tools/hadoop.py with --run build/hadoop-tests --hosts 127.0.0.1,127.0.0.2 --hide build/hidden \
		--set yarn.nodemanager.resource.memory-mb=4096 --set yarn.scheduler.maximum-allocation-mb=4096 \
		-- $(RUN) -m pytest -m "$(YARN)" $(ARGS)

test-oldest: .venv-oldest/.installed ## run the tests on Python 3.11 with the lowest versions we declare
	.venv-oldest/bin/python $(FAST) $(ARGS)

test-python: .venv-$(PY)/.installed ## run the tests on another interpreter: make test-python PY=3.13
	.venv-$(PY)/bin/python $(FAST) $(ARGS)

test-nojava: $(VENV)/.mxnet ## run the tests with the Java that comes by pip
	$(RUN) tools/nojava.py $(RUN) $(FAST) $(ARGS)

check: install ## lint, formatting, types
	@status=0; for tool in "ruff check ." "ruff format --check ." "mypy"; do \
		echo "$(RUN) -m $$tool"; $(RUN) -m $$tool || status=1; done; exit $$status

format: install ## repair what ruff can repair
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

chaos: install ## disturb 100 fits on local processes, Spark and Ray; each must end as the clean one (ARGS='--seeds 8')
	$(RUN) tools/chaos.py $(ARGS)

bench: install ## measure
	$(RUN) -m benchmarks $(ARGS)

yarn-up: ## start a Hadoop for tests on this machine: HDFS and YARN with two nodes (docs/testing-yarn.md)
	$(PYTHON) tools/hadoop.py up $(ARGS)

yarn-down: ## end it
	$(PYTHON) tools/hadoop.py down $(ARGS)

yarn-status: ## tell how it is
	$(PYTHON) tools/hadoop.py status $(ARGS)

clean: ## remove caches and builds
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	rm -f examples/data/FashionMNIST/raw/*-ubyte
	find src tests tools examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove the environments too
	rm -rf .venv .venv-* .uv

# An environment is installed again when pyproject.toml changed, or when a torch is asked for.
$(VENV)/.installed: pyproject.toml $(if $(TORCH)$(TORCH_INDEX),FORCE)
	$(SETUP) --venv $(VENV) --torch='$(TORCH)' --torch-index='$(TORCH_INDEX)'
	@touch $@

# The tests of MXNet are left out where it has no wheel.
$(VENV)/.mxnet: $(VENV)/.installed
	@$(SETUP) --venv $(VENV) --mxnet || echo "== left out, with its tests: MXNet"
	@touch $@

.venv-oldest/.installed: pyproject.toml
	$(SETUP) --venv .venv-oldest --python 3.11 --lowest --mxnet
	@touch $@

.venv-%/.installed: pyproject.toml
	$(SETUP) --venv .venv-$* --python $* --mxnet
	@touch $@
