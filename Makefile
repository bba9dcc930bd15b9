# make run: the main job, on the real model.  make test: everything that is checked.  Both set up all they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# What an installed package is made from; a change here builds it anew.
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -name '*.h' -o -name '*.cpp') $(shell find src benchmarks -name '*.py')

.PHONY: run test bench lint arm clean

run: $(VENV)/.generate
	$(BIN)/decodestep generate "Why is the sky blue? Answer in two sentences." \
	    --temperature 0.7 --top-k 50 --top-p 0.9 --seed 1 --stats

test: $(VENV)/.test
	$(BIN)/python -m pytest

bench: $(VENV)/.test
	$(BIN)/python benchmarks/run.py

lint: $(VENV)/.lint
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -name '*.h' -o -name '*.cpp')

# Compiles the core for ARM, with the compiler of the ziglang package (400 MB).
ARM := $(BIN)/python -m ziglang c++ -target aarch64-linux-gnu -std=c++20 -O1 -Wall -Wextra -Werror -ffp-contract=off \
    -DDECODESTEP_ISA=baseline -Icsrc
arm: $(VENV)/.test
	$(PIP) install ziglang
	mkdir -p build/arm
	includes="$$($(BIN)/python -c 'import nanobind, sysconfig; \
	    print("-isystem", nanobind.include_dir(), "-isystem", sysconfig.get_path("include"))')"; \
	for file in $$(find csrc -name '*.cpp'); do \
	    $(ARM) $$includes -c $$file -o build/arm/$$(echo $$file | tr / -).o || exit 1; done

clean:
	rm -rf $(VENV) build

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

# The extras differ, the package is the same: each stamp installs what its job needs.
$(VENV)/.generate: $(VENV)/.made $(SOURCES)
	$(PIP) install ".[generate]"
	touch $@

$(VENV)/.test: $(VENV)/.made $(SOURCES)
	$(PIP) install ".[test]"
	touch $@ $(VENV)/.generate

$(VENV)/.lint: $(VENV)/.made pyproject.toml
	$(PIP) install "clang-format>=20" jinja2 "mypy>=1.15" "numpy>=2" rich "ruff>=0.12"
	touch $@
