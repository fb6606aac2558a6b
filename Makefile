# For people. Every target installs what it needs, builds what is out of date and runs.
BUILD := build/release
.PHONY: all build cuda-compiles demo demo-speech demo-stories test bench format lint fuzz clean

all: build

build:
	@tools/setup.sh
	@cmake --preset release -DCONVOY_BUILD_TESTS=ON >/dev/null
	@cmake --build $(BUILD)

demo:
	@tools/setup.sh
	@cmake --preset release -DCONVOY_BUILD_TESTS=ON >/dev/null
	@cmake --build $(BUILD) --target convoy
	@examples/demo/run.sh $(BUILD)/bin/convoy

demo-stories:
	@tools/setup.sh
	@cmake --preset release -DCONVOY_BUILD_TESTS=ON >/dev/null
	@cmake --build $(BUILD) --target convoy
	@examples/stories/run.sh $(BUILD)/bin/convoy

demo-speech:
	@tools/setup.sh --speech
	@cmake --preset release -DCONVOY_BUILD_TESTS=ON >/dev/null
	@cmake --build $(BUILD) --target convoy
	@examples/demo-speech/run.sh $(BUILD)/bin/convoy

# Where nvcc 12.8 or newer is installed the CUDA device and its tests are compiled, for one architecture: without a GPU that is
# all there is to check. CUDA_ARCH=80-real checks another.
CUDA_ARCH := 90a-real
cuda-compiles:
	@tools/has_nvcc.sh || exit 0; \
	  cmake -S . -B build/cuda-compiles -G Ninja -DCMAKE_BUILD_TYPE=Release -DCONVOY_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCH) >/dev/null && \
	  cmake --build build/cuda-compiles --target cuda_test

test: build cuda-compiles
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

bench:
	@tools/setup.sh --bench
	@cmake --preset bench >/dev/null
	@cmake --build build/bench
	@bench/run.sh build/bench

format:
	@tools/setup.sh --lint
	@git ls-files '*.cpp' '*.h' | xargs clang-format-16 -i

lint: build
	@tools/setup.sh --lint
	@git ls-files '*.cpp' '*.h' | xargs clang-format-16 --dry-run --Werror
	@git ls-files 'src/*.cpp' | grep -v '\.isa\.cpp$$' | xargs -P $$(nproc) -n 4 clang-tidy-16 -p $(BUILD) --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-fno-openmp --extra-arg=-Wno-unknown-pragmas --extra-arg=-Wno-source-uses-openmp

fuzz:
	@tools/setup.sh --fuzz
	@cmake --preset fuzz >/dev/null
	@cmake --build build/fuzz
	@fuzz/run.sh build/fuzz

clean:
	@rm -rf build
