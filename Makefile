# Everything a developer does with the project. `make help` lists the targets.
#
# The environment (.venv) and the build are files with prerequisites, so a second run repeats neither.
# Variables: PYTHON (the interpreter the environment is made from), JOBS (processes), ARGS (more
# arguments for pytest), TORCH (another torch than the pinned one, in an environment of its own:
# `make test TORCH=2.12.1`), SHARD (i/n: the i-th of n parts of the Python tests),
# VERSIONS (of torch, for test-matrix).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
JOBS ?= 2
ARGS ?=
ASAN ?=
TORCH ?=
VERSIONS ?=
SHARD ?= 1/1

VENV := .venv$(if $(TORCH),-torch-$(TORCH))
PY := $(VENV)/bin/python
# requirements/SET.txt is installed by the targets that need it: $(call needs,SET ...).
needs = $(foreach set,$(1),$(VENV)/.installed-$(set))
# Fails where this machine lacks a package, in one line: $(call system_packages,KIND), see the script.
system_packages = missing=$$(tools/system_packages.sh $(PYTHON) $(1) | xargs); [ -z "$$missing" ] || \
  { echo "make: missing on this machine: $$missing (Debian: apt-get install $$missing)" >&2; exit 1; }
# What `make test` needs; mypy reads the packages that the sources import.
EVERYTHING := $(call needs,build demo test integrations lint)
# torch before 2.13 wants a setuptools before 82; torch 2.15 wants NVRTC of CUDA 13.2.
OTHER_TORCH := $(if $(TORCH),s/^torch==.*/torch==$(TORCH)/; s/^setuptools==.*/setuptools==81.0.0/; \
  $(if $(filter 2.15.%,$(TORCH)),s/^nvidia-cuda-nvrtc==/nvidia-cuda-nvrtc>=/))
# The extension is built in place, so one torch at a time owns it: building removes the other stamps.
BUILT := build/.built$(if $(TORCH),-torch-$(TORCH))

# One thread per test process: the processes already fill the machine, and two OpenMP teams on the
# same cores wait for each other. Tests that are about threads set their own number.
PYTEST := HOLOGRAM_TEST_SHARD=$(SHARD) OMP_NUM_THREADS=1 $(PY) -m pytest test -n $(JOBS) --dist worksteal $(ARGS)
CPP_FILES = $(shell find csrc benchmarks torch_hologram/include/torch_hologram.h test -name '*.cpp' -o -name '*.h')
EXTENSION_SOURCES := $(shell find csrc -path csrc/test -prune -o -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name '*.tsv' \) -print)

##@ Use

demo: $(BUILT) $(call needs,demo) ## Train a small network on hologram and on cpu; writes demo.png
	$(PY) examples/train_digits.py

##@ Build

build: $(BUILT) ## Environment, what compiling needs, and the extension built in place

$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; it needs Python 3.10 or newer (Debian: python3 python3-venv python3-dev)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("make: %s is Python %d.%d; Python 3.10 or newer is needed: make PYTHON=..." % ("$(PYTHON)", *sys.version_info[:2]) if sys.version_info < (3, 10) else 0)'
	@$(call system_packages)
	$(PYTHON) -m venv $(VENV)

$(VENV)/constraints.txt: constraints.txt | $(PY)
	sed '$(OTHER_TORCH)' constraints.txt > $@.new && mv $@.new $@

# All sets under the same constraints, so that nothing of the environment moves when one is added.
$(VENV)/.installed-%: requirements/%.txt $(VENV)/constraints.txt
	$(PY) -m pip install --disable-pip-version-check -r $< -c $(VENV)/constraints.txt
	@touch $@
$(call needs,build): requirements/run.txt

# Without what timm asks for: the file says why.
$(call needs,models): requirements/models.txt $(call needs,integrations)
	$(PY) -m pip install --disable-pip-version-check --no-deps -r $< -c $(VENV)/constraints.txt
	@touch $@

# setup.py compiles only what changed. pip, which runs it three times, is needed once; --no-deps keeps
# torch as it is. The stamp dates from before the build: a file edited meanwhile is newer.
INSTALLED := $(VENV)/.editable
$(BUILT): $(EXTENSION_SOURCES) setup.py pyproject.toml $(call needs,build)
	@mkdir -p build && rm -f build/.built* && touch build/.begun
	@if [ $(INSTALLED) -nt pyproject.toml ]; then \
	  echo "$(PY) setup.py -q build_ext --inplace"; $(PY) setup.py -q build_ext --inplace; \
	else \
	  $(PY) -m pip install --disable-pip-version-check --no-build-isolation --no-deps -e . && touch $(INSTALLED); \
	fi
	@mv build/.begun $@

wheel: $(call needs,build) ## dist/*.whl for this Python and this torch
	$(PY) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps -w dist .

sdist: $(call needs,build) ## dist/*.tar.gz
	rm -f dist/*.tar.gz
	$(PY) -c 'import setuptools.build_meta as backend; print("dist/" + backend.build_sdist("dist"))'

##@ Test

# $(call part,NAME,COMMAND): says how long a part of the tests took. The last part is pytest, which says so
# itself.
part = $(2) && echo "make: $(1) took $$SECONDS s"

test: ## Lint, C++ tests, GPU kernels on an emulator, docs, some tests on the simulated device, every Python test
	@$(call system_packages,test)
	@$(call part,the build,$(MAKE) build $(EVERYTHING))
	@$(call part,lint beside docs,$(MAKE) -j 2 lint check-docs)
	@$(call part,C++ tests,$(MAKE) test-core)
	@$(call part,GPU kernels,$(MAKE) test-gpu-kernels)
	@$(call part,the simulated device,$(MAKE) test-sim ARGS="$(SOME_ON_SIM)" POISON=1)
	@$(call part,GPU kernels as its groups,$(MAKE) test-sim-kernels)
	@$(call part,Metal without a Mac,$(MAKE) test-metal)
	$(PYTEST) -m "not full"

# The shards divide the Python tests by their ids; the first one runs what cannot be divided too.
test-full: ## Every dtype, the tests that take minutes, the sanitizers, simulated devices; SHARD=i/n
	@$(call system_packages,full)
	@$(MAKE) build $(EVERYTHING) $(call needs,full)
ifneq ($(filter 1/%,$(SHARD)),)
	@$(MAKE) lint test-sanitizers test-portable test-arm64 check-docs
	@HOLOGRAM_TEST_FULL=1 $(MAKE) -C csrc/test -j $(JOBS) gpu
	@$(MAKE) test-gpu-kernels ASAN=1
endif
	HOLOGRAM_TEST_FULL=1 $(PYTEST)
	@$(MAKE) test-sim
	@$(MAKE) test-sim BACKENDS=sim,cpu
	@for kernels in cuda metal; do \
	  $(MAKE) test-sim KERNELS=$$kernels ARGS="$(SOME_ON_SIM)"; \
	  HOLOGRAM_TEST_FULL=1 $(MAKE) test-sim KERNELS=$$kernels EMITTED=later ARGS=test/conformance MARK=recorded; \
	done
	HOLOGRAM_TEST_FULL=1 $(MAKE) test-metal ARGS=test/conformance MARK=recorded
	@$(MAKE) test-metal ARGS=test/test_programs.py

test-core: ## C++ unit tests of the torch-free layers, under AddressSanitizer and UBSan
	@$(MAKE) -C csrc/test -j $(JOBS) check

test-portable: ## C++ unit tests with clang and libc++, and their object files for Apple's processors
	@$(call system_packages,full)
	@$(MAKE) -C csrc/test -j $(JOBS) portable apple-types

test-arm64: ## C++ unit tests as a program for 64-bit ARM, under qemu
	@$(call system_packages,full)
	@$(MAKE) -C csrc/test -j $(JOBS) arm64

# A backend outside the package: compiled against its installed headers, linked against its extension.
SIM := build/sim/libhologram_sim.so
MODULE := $(wildcard torch_hologram/_C.*.so)
# With what makes GPU kernels, which takes longest to compile.
SIM_OBJECTS := $(patsubst %.cpp,build/sim/objects/%.o,$(wildcard test/sim/*.cpp) \
  $(filter-out csrc/gpu/code.cpp csrc/gpu/compiler.cpp,$(wildcard csrc/gpu/*.cpp)))
SIM_COMPILE := $(shell command -v ccache) $(CXX) -std=c++20 -O1 -Wall -Wextra -Werror -ffp-contract=off \
  -fvisibility=hidden -fPIC -pthread
# All of csrc that they see beside the installed headers is csrc/gpu.
build/sim/objects/%.o: %.cpp | $(MODULE)
	@mkdir -p $(@D) build/sim/include && ln -sfn $(CURDIR)/csrc/gpu build/sim/include/gpu
	$(SIM_COMPILE) -Itorch_hologram/include -Ibuild/sim/include -DHOLOGRAM_EMULATOR_FOLDER='"$(CURDIR)/test/gpu"' -MMD -MP -c $< -o $@
$(SIM): $(SIM_OBJECTS) $(MODULE)
	$(SIM_COMPILE) -shared $(SIM_OBJECTS) -o $@ -Ltorch_hologram -l:$(notdir $(MODULE)) -Wl,-rpath,$(CURDIR)/torch_hologram
-include $(SIM_OBJECTS:.o=.d)

# NVIDIA's driver without a GPU: all that csrc/cuda calls of it. It has nothing of the extension.
CUDA_DRIVER := build/cuda/libcuda.so.1
CUDA_DRIVER_OBJECTS := $(patsubst %.cpp,build/cuda/objects/%.o,$(wildcard test/cuda/*.cpp) \
  test/sim/late_thread.cpp test/sim/memory.cpp)
build/cuda/objects/%.o: %.cpp
	@mkdir -p $(@D)
	$(SIM_COMPILE) -Icsrc -DHOLOGRAM_EMULATOR_FOLDER='"$(CURDIR)/test/gpu"' -MMD -MP -c $< -o $@
$(CUDA_DRIVER): $(CUDA_DRIVER_OBJECTS)
	$(SIM_COMPILE) -shared -Wl,-z,defs -Wl,-soname,$(@F) $(CUDA_DRIVER_OBJECTS) -o $@
-include $(CUDA_DRIVER_OBJECTS:.o=.d)
# Beside it, where the backend finds it, what csrc/cuda calls of cublasLt.
CUBLAS_LT := build/cuda/libcublasLt.so.13
CUBLAS_LT_OBJECTS := build/cuda/objects/test/cuda/cublas_lt/library.o
$(CUBLAS_LT): $(CUBLAS_LT_OBJECTS) $(CUDA_DRIVER)
	$(SIM_COMPILE) -shared -Wl,-z,defs -Wl,-soname,$(@F) $(CUBLAS_LT_OBJECTS) $(CUDA_DRIVER) -o $@
-include $(CUBLAS_LT_OBJECTS:.o=.d)
# And NVRTC, which tests of it name.
NVRTC := build/cuda/libnvrtc.so.13
NVRTC_OBJECTS := build/cuda/objects/test/cuda/nvrtc/library.o
$(NVRTC): $(NVRTC_OBJECTS)
	$(SIM_COMPILE) -shared -Wl,-z,defs -Wl,-soname,$(@F) $(NVRTC_OBJECTS) -o $@
-include $(NVRTC_OBJECTS:.o=.d)

# The Metal backend on Linux: Metal without a Mac (test/metal) stands in for Apple's frameworks. What
# includes metal-cpp, or is called by it, has blocks, which clang++ knows; the rest is compiled as a
# backend outside the package is.
METAL := build/metal/libhologram_metal.so
METAL_HEADERS := build/metal/include
METAL_CLANG := $(shell command -v ccache) clang++-19 -std=c++20 -O1 -fblocks -Wall -Wextra -Werror -ffp-contract=off \
  -fvisibility=hidden -fPIC -pthread
METAL_INCLUDE := -Itorch_hologram/include -Ibuild/metal/core -Ibuild/generated
METAL_ENGINE := $(patsubst %.cpp,build/metal/objects/%.o,csrc/metal/runtime.cpp $(wildcard test/metal/*.cpp))
METAL_REST := $(patsubst %.cpp,build/metal/objects/%.o,test/sim/late_thread.cpp $(wildcard csrc/gpu/*.cpp) \
  $(filter-out csrc/metal/runtime.cpp,$(wildcard csrc/metal/*.cpp)))
METAL_CHECK := $(patsubst %.cpp,build/metal/objects/%.o,$(wildcard test/metal/check/*.cpp))
$(METAL_HEADERS)/.version: requirements/metal.txt tools/metal_cpp.py
	@$(if $(wildcard $(PY)),$(PY),$(PYTHON)) tools/metal_cpp.py $(METAL_HEADERS) && touch $@
build/metal/core: $(MODULE)
	@mkdir -p $@ && ln -sfn $(CURDIR)/csrc/gpu $@/gpu && ln -sfn $(CURDIR)/csrc/metal $@/metal
$(METAL_ENGINE) $(METAL_CHECK): build/metal/objects/%.o: %.cpp $(METAL_HEADERS)/.version | build/metal/core
	@mkdir -p $(@D)
	$(METAL_CLANG) $(METAL_INCLUDE) -isystem test/metal/stubs -isystem $(METAL_HEADERS) \
	  -DHOLOGRAM_EMULATOR_FOLDER='"$(CURDIR)/test/gpu"' -MMD -MP -c $< -o $@
$(METAL_REST): build/metal/objects/%.o: %.cpp | build/metal/core
	@mkdir -p $(@D)
	$(SIM_COMPILE) $(METAL_INCLUDE) -MMD -MP -c $< -o $@
$(METAL): $(METAL_ENGINE) $(METAL_REST) $(MODULE)
	$(SIM_COMPILE) -shared $(METAL_ENGINE) $(METAL_REST) -o $@ -Ltorch_hologram -l:$(notdir $(MODULE)) -lBlocksRuntime \
	  -Wl,-z,defs -Wl,-rpath,$(CURDIR)/torch_hologram
# csrc/metal/runtime.cpp without the backend, for test/test_metal_runtime.py.
build/metal/check: $(METAL_ENGINE) $(METAL_CHECK) build/metal/objects/test/sim/late_thread.o
	$(SIM_COMPILE) $^ -o $@ -lBlocksRuntime
-include $(patsubst %.o,%.d,$(METAL_ENGINE) $(METAL_REST) $(METAL_CHECK))

# What `make test` runs of them.
SOME_ON_SIM := $(patsubst %,test/test_%.py,accelerator bad_input dlpack flush_errors foreign layouts pointwise_native \
  programs quick reductions scans)

# Through GPU kernels, which an emulator runs, slowly; random programs are tests of test_sim_kernels.py.
SOME_ON_KERNELS := $(patsubst %,test/test_%.py,layouts pointwise_native quick scans)
FORWARD_UNITS := test/conformance -k 'test_forward_ and not forward_ad'

# Poison would be measured by the tests that measure. KERNELS=cuda or metal: groups are GPU kernels on the
# emulator, the cold ones or, EMITTED=1, emitted ones; EMITTED=later: first the ones, then the others, where tests
# know of that. MARK: tests with this mark.
test-sim: ## The Python tests on the simulated device (ARGS: which tests; BACKENDS=sim,cpu: on both; KERNELS=cuda)
	@$(MAKE) build $(EVERYTHING)
	@$(MAKE) $(SIM)
	HOLOGRAM_BACKENDS=$(or $(BACKENDS),sim) HOLOGRAM_BACKEND_PATH=$(CURDIR)/build/sim HOLOGRAM_TEST_SHARD=$(SHARD) \
	  HOLOGRAM_TEST_SIM_KERNELS=$(KERNELS) HOLOGRAM_TEST_SIM_EMITTED=$(EMITTED) \
	  HOLOGRAM_POISON_FREED=$(or $(POISON),0) OMP_NUM_THREADS=1 \
	  $(PY) -m pytest $(or $(ARGS),test) -n $(JOBS) --dist worksteal -m "$(or $(MARK),not full)"

# What runs on the CUDA backend, with the driver of test/cuda.
SOME_ON_CUDA := $(patsubst %,test/test_%.py,accelerator flush_errors layouts pointwise_native quick scans streams)

test-cuda-driver: ## Python tests on the CUDA backend, with a driver that needs no GPU (ARGS: which tests)
	@$(MAKE) build $(EVERYTHING)
	@$(MAKE) $(CUBLAS_LT)
	PYTHONPATH=test $(PY) test/cuda_driver.py
	HOLOGRAM_BACKENDS=cuda LD_LIBRARY_PATH=$(CURDIR)/build/cuda HOLOGRAM_CUDA_KERNELS=$(CURDIR)/build/cuda/kernels \
	  HOLOGRAM_TEST_SHARD=$(SHARD) OMP_NUM_THREADS=1 \
	  $(PY) -m pytest $(or $(ARGS),$(SOME_ON_CUDA)) -n $(JOBS) --dist worksteal -m "$(or $(MARK),not full)"

# What runs on the Metal backend, with the Metal of test/metal. Kernels are compiled by an emulator, which takes too
# long for many: the cold ones run, and test/test_metal.py compiles some.
SOME_ON_METAL := $(patsubst %,test/test_%.py,accelerator bad_input flush_errors layouts pointwise_native quick scans streams)
ON_METAL := HOLOGRAM_METAL_EMULATION=1 HOLOGRAM_BACKENDS=metal HOLOGRAM_COMPILE=0 HOLOGRAM_TEST_SHARD=$(SHARD) \
  OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist worksteal

test-metal: ## Python tests on the Metal backend, with a Metal that needs no Mac (ARGS: which tests; MARK: a pytest mark)
	@$(MAKE) build $(EVERYTHING)
	@$(MAKE) $(METAL)
	$(ON_METAL) $(or $(ARGS),$(SOME_ON_METAL)) -m "$(or $(MARK),not full)"
	$(if $(ARGS),,$(ON_METAL) $(FORWARD_UNITS) -m recorded)

test-sim-kernels: ## What `make test` runs on the simulated device through GPU kernels
	@$(MAKE) test-sim KERNELS=cuda ARGS="$(SOME_ON_KERNELS)" POISON=1
	@$(MAKE) test-sim KERNELS=cuda ARGS="$(FORWARD_UNITS)" MARK=recorded

# The sanitizer's own test runs with it in processes of its own, also where this one has it not.
test-gpu-kernels: $(BUILT) $(EVERYTHING) ## GPU kernels on an emulator, of clang++-19 (ASAN=1: under AddressSanitizer)
	@$(call system_packages,$(if $(ASAN),full,test))
	@$(MAKE) -C csrc/test -j $(JOBS) gpu ASAN=$(ASAN)
	$(if $(ASAN),env $$($(PY) test/gpu/emulator.py --asan-environment)) OMP_NUM_THREADS=1 \
	  $(PY) -m pytest test/test_gpu_dialect.py -n $(JOBS) --dist worksteal $(if $(ASAN),,-k "not sanitizer")

test-tsan: ## The unit tests with threads, under ThreadSanitizer
	@$(MAKE) -C csrc/test -j $(JOBS) tsan

test-asan: $(EVERYTHING) ## The Python tests, the extension under AddressSanitizer (ARGS: which tests)
	MAX_JOBS=$(JOBS) JOBS=$(JOBS) $(PY) tools/test_asan.py $(ARGS)

test-sanitizers: test-core test-tsan test-asan ## All three

# With the torch of that machine, which has to be built for CUDA: no environment is made.
test-cuda: ## Build for this machine's GPU, run tests on it, write benchmarks/results/GPU.md (SUBSET: which)
	$(PYTHON) tools/test_cuda.py $(if $(SUBSET),--subset $(SUBSET)) $(ARGS)

test-cuda-multi: ## The same where there are several GPUs: torch.distributed, copies, models on two of them
	@$(MAKE) test-cuda SUBSET=multi ARGS="$(ARGS)"

test-cuda-sanitize: ## GPU kernels under compute-sanitizer, after `make test-cuda` has built (ARGS)
	PYTHONPATH=tools $(PYTHON) tools/sanitize_cuda.py $(ARGS)

test-programs: $(EVERYTHING) ## A million random programs, fused and eager: half an hour (ARGS="SEED --count N": others)
	nice $(PY) test/programs --jobs $(JOBS) $(or $(ARGS),--count 1000000 0)

test-mutants: $(EVERYTHING) ## Plant bugs in the stream, one at a time: the tests have to catch each
	$(PY) tools/mutants.py -n $(JOBS) $(ARGS)

# Only pip of the developer's environment is used: every version has an environment of its own.
test-matrix: $(call needs,build) ## Build and test with every supported torch, build with the newest (VERSIONS)
	nice $(PY) tools/test_matrix.py --jobs $(JOBS) $(VERSIONS)

check-docs: $(BUILT) $(EVERYTHING) ## Run the examples of the docs; is docs/operators.md what the code says?
	$(PY) tools/run_examples.py README.md docs/*.md
	$(if $(TORCH),@echo "docs/operators.md describes the pinned torch: not checked",$(PY) tools/operators.py --check)
	$(if $(TORCH),,$(PY) tools/collectives.py --check)

# A wheel made from the source distribution has to work outside the source tree.
test-package: sdist ## Build the sdist into a wheel, install that elsewhere and use it
	rm -rf build/package && mkdir -p build/package
	$(PY) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --no-cache-dir -w build/package dist/*.tar.gz
	$(PY) -m pip install --disable-pip-version-check --no-deps -q --target build/package/site build/package/*.whl
	cd build/package && PYTHONPATH=$(CURDIR)/build/package/site $(CURDIR)/$(PY) $(CURDIR)/tools/check_package.py

lint: $(EVERYTHING) ## ruff, mypy, clang-format; the mutants' texts are in the code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@echo "clang-format --dry-run -Werror"; $(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)
	$(VENV)/bin/mypy
	$(PY) tools/mutants.py --list > /dev/null

format: $(call needs,lint) ## Rewrite the sources in the project's format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CPP_FILES)

##@ Measure

# Each goes on where another missed a bound, and the target fails in the end.
bench: $(BUILT) $(call needs,demo) ## Measure against torch on the CPU; writes benchmarks/results
	missed=0; \
	$(PY) benchmarks/stream.py || missed=1; \
	$(PY) benchmarks/rows.py --inductor || missed=1; \
	$(PY) benchmarks/optimizers.py || missed=1; \
	$(PY) benchmarks/device.py || missed=1; \
	$(PY) benchmarks/pointwise.py || missed=1; \
	$(PY) benchmarks/random_numbers.py || missed=1; \
	$(PY) benchmarks/convolutions.py || missed=1; \
	$(PY) benchmarks/memory.py || missed=1; \
	$(PY) benchmarks/zero_copy.py || missed=1; \
	exit $$missed

# Of the chains at N = 16, 1e5 and 1e6 only.
bench-check: $(BUILT) $(call needs,demo) ## Measure again; fail where a committed ratio got more than 10 % worse
	missed=0; \
	$(PY) benchmarks/stream.py --check || missed=1; \
	$(PY) benchmarks/device.py --check || missed=1; \
	exit $$missed

bench-cuda: ## On a machine with an NVIDIA GPU: steps, chains, products against torch's CUDA; writes benchmarks/results
	$(PYTHON) benchmarks/cuda_all.py --write $(ARGS)

bench-models: $(BUILT) $(call needs,demo integrations models) ## Whole models against torch on the CPU (ARGS=--inductor: torch.compile too)
	$(PY) benchmarks/models.py $(ARGS)

bench-kernels: $(call needs,demo test) ## Compile emitted GPU kernels with NVRTC, and nvcc if it is there; writes benchmarks/results
	@$(MAKE) -C csrc/test -j $(JOBS) kernels
	$(PY) tools/compile_kernels.py build/core-test/kernels/texts --repeats 2 --report benchmarks/results/kernels.md

##@ Other

docs: $(BUILT) ## Write docs/operators.md from the dispatcher and the recorded conformance results
	$(PY) tools/operators.py

conformance: $(BUILT) $(call needs,test) ## Run the conformance suite and record it: test/conformance/results.json
	OMP_NUM_THREADS=1 $(PY) tools/conformance.py record -n $(JOBS)

clean: ## Remove build products (the environment stays)
	rm -rf build dist *.egg-info demo.png
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f torch_hologram/*.so torch_hologram/_build_info.py
	find . -path './.venv*' -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean ## Remove the environment too
	rm -rf .venv .venv-torch-*

help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: demo build wheel sdist test test-full test-core test-portable test-arm64 test-cuda test-cuda-multi test-cuda-sanitize test-sim test-sim-kernels test-cuda-driver test-tsan test-asan test-sanitizers \
        test-gpu-kernels test-matrix test-mutants test-package lint format bench bench-check bench-kernels \
        bench-cuda bench-models docs check-docs conformance clean distclean help
