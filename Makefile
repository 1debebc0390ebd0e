# Everything runs from .venv, which is created by the first target that needs it.
#   PYTHON=python3.12   the Python for .venv (3.11 or newer)
#   PORT=8899           the port of `make lab`
#   LESSONS="00 06"     the lessons of `make tour`
#   MINUTES=25          `make gpu-day` starts no piece after them
# pip reads its settings from the environment (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL …). Use them to
# get torch for the CPU only, or for another CUDA version.

# Tests start perfkit in hundreds of processes: without its compiled files each takes 0.5 s longer.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PORT ?=
LESSONS ?=
MINUTES ?=

VENV := .venv
CUDA := .venv-cuda
DOCS := .venv-docs
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# exact: the stubs of tests/played_cuda are written for this torch
CUDA_WHEELS := torch==2.13.0 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*' 'nvidia-cuda-crt==13.0.*' nvidia-ml-py
JS := $(wildcard perfkit/widgets/js/*.json perfkit/widgets/js/src/*)
# Each takes the path of its JSON file; files that begin with _ are helpers.
BENCHES := $(filter-out tests/bench/_%,$(sort $(wildcard tests/bench/*.py)))
CUDA_ROOMS := tests/advice tests/memory tests/synclint tests/trace \
	tests/experiment/test_settings.py tests/experiment/test_step.py
# $(call COUNTED,ENVIRONMENT,FILE): pytest, with the lines that run counted into build/coverage/FILE
COUNTED = $(BESIDE) PERFKIT_COUNT_INTO=$(CURDIR)/build/coverage/$(2) \
	PYTHONPATH=$(CURDIR)/tests/played_cuda/counting $(1)/bin/pytest -q $(WORKERS) -p no:cacheprovider \
	-m 'not (long or browser)' --ignore=tests/browser
# Tests in three phases: what measures nothing on all cores, in one worker more than there are (see
# tests/conftest.py), what drives a browser two at a time, the rest alone. Each remembers its own failures; `make test-parallel AGAIN=yes`
# runs those once more, one after the other.
PYTEST := $(BIN)/pytest --durations=25 --durations-min=2
# where no notebook is run: nbval takes a second or two to import, in each process
NO_CELLS := -p no:nbval
CELLS := --nbval-lax --nbval-current-env --nbval-cell-timeout=180
# passive: threads of torch that wait for work leave the core to the other workers
BESIDE := OMP_WAIT_POLICY=passive
WORKERS := --numprocesses=logical --maxprocesses=8 --no-loadscope-reorder
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
ALONE := serial or browser
# looked for by text: pytest would import all other files, too, to find these few
SERIAL_IN = $(sort $(shell grep -rl --include='test_*.py' 'pytest\.mark\.serial' tests))
AGAIN ?=
FAILED := --last-failed --last-failed-no-failures=none
CHROMIUM := $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name) 2>/dev/null)))

.DEFAULT_GOAL := help
.PHONY: help install lab lint lint-and-prepare check test test-parallel test-browser test-serial test-long test-cuda \
	test-cuda-marked test-cuda-rooms test-cuda-lessons cuda-coverage gpu-day tour docs pictures dist bench clean distclean chromium
.NOTPARALLEL:  # `make -j test`: the serial tests need the machine to themselves

help:  ## show this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## /  \1|/p' Makefile | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'

install: $(STAMP)  ## make .venv with everything; does nothing the second time

$(STAMP): pyproject.toml constraints.txt hatch_build.py perfkit/_version.py $(JS)
	@test "$$($(or $(strip $(PYTHON)),false) -c 'import sys; print(sys.version_info >= (3, 11))' 2>&1)" = True || \
		{ echo "perfkit needs Python 3.11 or newer; PYTHON='$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@echo "Installing into $(VENV); the first time this fetches torch and takes minutes"
	@$(BIN)/python -m pip install --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --disable-pip-version-check \
		-c constraints.txt -e '.[lab]' --group dev
	@touch $@

lab: install  ## open JupyterLab on the first lesson, in a copy: my-course (PORT=8899 for another port)
	@$(BIN)/perfkit lab $(if $(PORT),--port $(PORT))

lint: install  ## format, lint, types, import directions
	$(LINT)

check: lint-and-prepare  ## lint and the fast tests, under 3 minutes
	$(BESIDE) $(PYTEST) $(NO_CELLS) $(WORKERS) -m 'not ($(ALONE) or slow or long)' --ignore=tests/browser tests

test: chromium lint-and-prepare test-parallel test-browser test-serial  ## everything: lint, tests, notebooks, browser

# mypy uses one core. Meanwhile the other one compiles the test files, which each worker of the next
# phase would do by itself: 11 CPU seconds in each of three.
# Not by $(MAKE), which `make --dry-run` would start, and with it the collection.
lint-and-prepare: install
	@$(PYTEST) $(CELLS) --collect-only -q -p no:cacheprovider notebooks tests >/dev/null 2>&1 & \
		echo "$(LINT)"; $(LINT); failed=$$?; wait; exit $$failed

test-parallel: install  # in which order: tests/tiers.py
	$(BESIDE) $(PYTEST) $(if $(AGAIN),$(FAILED),$(WORKERS)) -o cache_dir=.pytest_cache/parallel \
		-m 'not ($(ALONE))' --ignore=tests/browser notebooks tests $(CELLS)

test-browser: install chromium  # two: most of the time they wait for a page or a kernel; the longest first
	$(BESIDE) $(PYTEST) $(NO_CELLS) $(if $(AGAIN),$(FAILED),--numprocesses=2 --no-loadscope-reorder) \
		-o cache_dir=.pytest_cache/browser -m browser tests/browser

test-serial: install
	$(PYTEST) $(NO_CELLS) $(if $(AGAIN),$(FAILED)) -o cache_dir=.pytest_cache/serial -m serial $(SERIAL_IN)

test-long: install  ## the calibrations with all their draws
	PERFKIT_TEST_LONG=1 $(BESIDE) $(PYTEST) $(NO_CELLS) $(WORKERS) -m long tests

test-cuda: test-cuda-marked test-cuda-rooms test-cuda-lessons  ## the tests that need CUDA, on a played GPU (tests/played_cuda)

test-cuda-marked: $(CUDA)/.built
	$(CUDA)/bin/pytest $(if $(AGAIN),$(FAILED)) -o cache_dir=.pytest_cache/cuda-marked -m gpu tests

test-cuda-rooms: $(CUDA)/.built  # what also runs without a GPU, and may do something else with one
	$(BESIDE) $(CUDA)/bin/pytest $(if $(AGAIN),$(FAILED),$(WORKERS)) -o cache_dir=.pytest_cache/cuda-rooms \
		-m 'not (gpu or long or $(ALONE))' $(CUDA_ROOMS)

test-cuda-lessons: $(CUDA)/.built
	$(BESIDE) $(CUDA)/bin/pytest $(if $(AGAIN),$(FAILED),$(WORKERS)) -o cache_dir=.pytest_cache/cuda-lessons \
		--durations=0 --durations-min=2 tests/played_cuda/test_lessons_there.py

# A table by room. Only lines are looked at: tests fail here for the time that counting takes, or as
# torch.compile does not trace it; what such a test leaves behind fails those after it.
cuda-coverage: install $(CUDA)/.built  ## which lines that need CUDA run on the played GPU; half an hour on 2 cores
	@rm -rf build/coverage
	-$(call COUNTED,$(VENV),cpu) notebooks tests $(CELLS)
	-$(call COUNTED,$(CUDA),played) tests
	@$(BIN)/python tests/played_cuda/counting/cuda_coverage.py build/coverage/cpu build/coverage/played

$(CUDA)/.built: $(CUDA)/.installed $(wildcard tests/played_cuda/*.py tests/played_cuda/src/*)
	$(CUDA)/bin/python tests/played_cuda/build.py
	@touch $@

gpu-day: install  ## all that waits for a real GPU, in pieces of 8 minutes; goes on where it stopped
	@$(BIN)/python tests/gpu_day.py $(if $(MINUTES),--minutes $(MINUTES))

# The CUDA wheel of torch without its 2.7 GB of required libraries, which the stubs replace.
# pip settings for a CPU build would fetch the wrong wheel, so they are unset.
$(CUDA)/.installed: $(STAMP) Makefile
	@test -x $(CUDA)/bin/python || $(PYTHON) -m venv $(CUDA)
	@echo "Installing into $(CUDA); the first time this fetches 0.5 GB"
	@env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null $(CUDA)/bin/python -m pip install \
		--quiet --disable-pip-version-check --no-deps $(CUDA_WHEELS) || \
		{ echo "make test-cuda needs torch's CUDA wheel from PyPI, and it could not be fetched"; exit 1; }
	@mkdir -p build
	@$(BIN)/python -m pip freeze --exclude-editable --exclude torch > build/cuda-requirements.txt
	@$(CUDA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		-r build/cuda-requirements.txt
	@$(CUDA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

tour: install  ## run all lessons without a browser, a minute or so each (LESSONS=00 for one); site in build/tour
	@$(BIN)/perfkit tour $(LESSONS) --out build/tour

docs: $(DOCS)/.installed  ## course, claims and reference as one site in build/docs/site, offline
	@rm -rf build/docs
	@$(DOCS)/bin/python .docs/sources.py build/docs/sources
	@$(DOCS)/bin/python -m sphinx --quiet --fail-on-warning --jobs auto -c .docs -d build/docs/doctrees \
		build/docs/sources build/docs/site
	@echo "The site begins with build/docs/site/index.html"

# A layer on .venv, so that torch is installed once and `make install` stays without Sphinx.
$(DOCS)/.installed: $(STAMP)
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv --without-pip $(DOCS)
	@$(BIN)/python -c 'import os, sysconfig; print(os.getcwd(), sysconfig.get_path("purelib"), sep="\n")' \
		> "$$($(DOCS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/perfkit.pth"
	@echo "Installing Sphinx into $(DOCS)"
	@$(BIN)/python -m pip --python $(DOCS) install --quiet --disable-pip-version-check \
		-c constraints.txt --group docs
	@touch $@

pictures: install chromium  # README's, on a quiet machine
	$(PYTEST) $(NO_CELLS) tests/browser/readme_pictures.py

dist: install  ## sdist and wheel in dist/; the wheel runs lesson 00 in an empty environment
	@rm -rf dist build/dist
	@$(BIN)/python -m hatchling build -d dist -t sdist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist dist/perfkit-*.tar.gz
	@$(PYTHON) -m venv --without-pip build/dist/venv
	@echo "Installing the wheel into build/dist/venv"
	@$(BIN)/python -m pip --python build/dist/venv install --quiet --disable-pip-version-check \
		-c constraints.txt "$$(ls dist/perfkit-*.whl)[lab]"
	@cd build/dist && venv/bin/perfkit tutorial course && cd course && ../venv/bin/perfkit tour 00
	@ls -l dist

bench: install  ## ratios against named peers; results in build/bench
	@mkdir -p build/bench
	@set -e; for script in $(BENCHES); do \
		echo "== $$script"; \
		$(BIN)/python $$script build/bench/$$(basename $$script .py).json; \
	done

clean:  ## remove what was built, measured and cached, and the generated images
	rm -rf build dist data/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find perfkit tests notebooks data -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

distclean: clean  ## the same, and .venv and the browser bundle
	rm -rf $(VENV) $(CUDA) $(DOCS) perfkit/widgets/static

chromium:
	@test -n "$(CHROMIUM)" || \
		{ echo "The browser tests need Chromium. Debian, Ubuntu: apt-get install chromium"; exit 1; }
