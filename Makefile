# The repository's commands. `make` lists them; each sets up .venv first where it is missing.
SHELL := /bin/bash
VENV := .venv
READY := $(VENV)/.installed
PYTHON_IN_VENV := $(VENV)/bin/python
TOOLS := build/tools
TOOLS_READY := $(TOOLS)/.installed
BEAM := build/beam
BEAM_READY := $(BEAM)/.installed
DEMO := runs/demo
VOCABULARY := $(DEMO)/vocabulary.model

# TensorFlow only reads text here; its notes about GPUs and instruction sets help nobody.
export TF_CPP_MIN_LOG_LEVEL := 3
export PYTHON

.PHONY: help demo test test-slow test-page test-beam notebooks repository plans docs release lint lock clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

$(READY): requirements.lock setup.py
	@bash launch/environment.sh

$(TOOLS_READY): tools.lock
	@bash launch/environment.sh tools

# Apache Beam needs older packages than .venv has.
$(BEAM_READY): beam.lock
	@bash launch/environment.sh beam

# 3,996 pieces and 100 sentinels are the 4,096 rows of the model.
# Order only: a renewed .venv must not retrain the vocabulary under a model that uses it.
$(VOCABULARY): | $(READY)
	@$(PYTHON_IN_VENV) -m t5x_like.vocabulary --data=data/pydocs.py --set prose=True \
		--size=3996 --output=$@

# The C library then keeps the memory of one step for the next, where it would give the pages back to
# the kernel and get them anew: a quarter of the CPU time of a training step.
demo notebooks: export MALLOC_MMAP_MAX_ := 0
demo notebooks: export MALLOC_TRIM_THRESHOLD_ := 4294967296
demo: $(READY) $(VOCABULARY)  ## train a small T5 on this machine's Python documentation, and look at it
	@$(PYTHON_IN_VENV) -m t5x_like.train --config=configs/t5.py:demo --config.workdir=$(DEMO)
	@$(PYTHON_IN_VENV) -m t5x_like.infer --config=configs/t5.py:demo --config.workdir=$(DEMO) --examples=5

# With --dist=loadfile xdist can wait forever for the tests of a worker that it replaced.
PARALLEL := -n logical --maxprocesses=8 --dist=loadfile --max-worker-restart=0

test: $(READY)  ## the tests, but for the slow ones
	@$(PYTHON_IN_VENV) -m pytest -m "not slow and not browser and not slurm and not beam" $(PARALLEL)

# The tests of the page need a browser, and some of launch/slurm.sh a Slurm: no Python packages.
# Debian has daemons where not everybody looks for commands.
HAVE = $(shell PATH="$$PATH:/usr/sbin"; for name in $(1); do command -v $$name || exit; done > /dev/null; echo yes)
BROWSER = $(if $(call HAVE,chromedriver), or browser)
HAVE_BEAM = $(if $(wildcard $(BEAM_READY)), or beam)
SLURM = $(if $(call HAVE,munged slurmctld slurmd sbatch), or slurm)

test-slow: $(READY)  ## the slow tests: several processes, killed runs, long trainings (SHARD=3/8: a part)
	@$(if $(BROWSER),,echo "without the tests of the page: there is no chromedriver (make test-page)")
	@$(if $(SLURM),,echo "without the tests of Slurm: it is not here (apt-get install slurm-wlm munge)")
	@$(if $(HAVE_BEAM),,echo "without the tests of Apache Beam: there is no $(BEAM) (make test-beam)")
	@$(PYTHON_IN_VENV) -m pytest -m "slow$(BROWSER)$(SLURM)$(HAVE_BEAM)" $(PARALLEL) $(if $(SHARD),--shard=$(SHARD)) \
		--timeout=1200 -o faulthandler_timeout=3660

test-page: $(READY)  ## the page in headless Chromium (apt-get install chromium chromium-driver)
	@$(PYTHON_IN_VENV) -m pytest -m browser

test-beam: $(READY) $(BEAM_READY)  ## the tests of Apache Beam, from an environment of its own (1.2 GB)
	@$(PYTHON_IN_VENV) -m pytest -m beam

notebooks: $(READY)  ## run the notebooks from top to bottom, and keep what they show
	@$(VENV)/bin/jupyter execute --inplace notebooks/*.ipynb

repository:  ## write the address of your copy into setup.py and all notebooks: URL=https://...
	@[[ "$(URL)" =~ ^https?://[^\"\#]+$$ ]] || { echo "make repository URL=https://github.com/OWNER/t5x_like"; exit 2; }
	@sed -i 's#^REPOSITORY = ".*"#REPOSITORY = "$(URL)"#' setup.py
	@sed -i 's#REPOSITORY = \\".*\\"#REPOSITORY = \\"$(URL)\\"#' notebooks/*.ipynb

plans: $(READY)  ## compile configs/plans.py and published_runs.py (an hour), and write the plans into docs/plans.md
	@$(PYTHON_IN_VENV) -m benchmarks.plans

# Material prints an advertisement against the next MkDocs, which tools.lock does not have.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(TOOLS_READY)  ## build the documentation into site/, with every warning as an error
	@$(TOOLS)/bin/mkdocs build --strict
	@echo "site/index.html"

release: $(TOOLS_READY)  ## build and try the wheel and the sdist of the last commit, into dist/
	@bash launch/release.sh

lint: $(READY)  ## ruff (style and layout) and mypy (types)
	@$(PYTHON_IN_VENV) -m ruff check .
	@$(PYTHON_IN_VENV) -m ruff format --check .
	@$(PYTHON_IN_VENV) -m mypy

lock: $(READY)  ## renew the three locks from setup.py and pyproject.toml
	@$(PYTHON_IN_VENV) -m pip install --quiet --disable-pip-version-check uv
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(PYTHON_IN_VENV) -m uv pip compile setup.py --extra dev \
		--universal --python-version 3.11 --no-annotate --upgrade --quiet --output-file requirements.lock
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(PYTHON_IN_VENV) -m uv pip compile setup.py --extra c4 --extra beam \
		--universal --python-version 3.11 --no-annotate --upgrade --quiet --output-file beam.lock
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(PYTHON_IN_VENV) -m uv pip compile --group tools \
		--universal --python-version 3.11 --no-annotate --upgrade --quiet --output-file tools.lock

clean:  ## remove .venv and every cache; runs/ stays
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find t5x_like configs data tests -name __pycache__ -type d -prune -exec rm -rf {} +
