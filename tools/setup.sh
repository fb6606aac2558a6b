#!/usr/bin/env bash
# Installs the system packages that Convoy builds with, those that are missing only, on Debian 12 and Ubuntu 24.04 (or newer).
# Uses sudo when it is not run as root. Touches nothing else.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build pkg-config make git
  libdnnl-dev ocl-icd-opencl-dev
  nlohmann-json3-dev libsimdjson-dev libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev
  libzstd-dev zlib1g-dev libxxhash-dev
  libsndfile1-dev libsoxr-dev libkissfft-dev
  libcpp-httplib-dev libssl-dev libbrotli-dev
  libgtest-dev libgmock-dev
)
optional_packages=(ccache mold libgloo-dev)
case "${1:-}" in
  "") ;;
  --bench) build_packages+=(libbenchmark-dev) ;;
  --speech) build_packages+=(espeak-ng sox) ;;
  --lint) build_packages+=(clang-format-16 clang-tidy-16) ;;
  --cuda)
    # cuDNN's front end (headers alone, MIT) from the Python package index; a build without it has Convoy's own attention kernels.
    deps=$(cd "$(dirname "$0")/.." && pwd)/build/deps
    mkdir -p "$deps/wheel"
    python3 -m pip download --quiet --no-deps -d "$deps/wheel" nvidia-cudnn-frontend==1.32.0
    python3 - "$deps" <<'PYTHON'
import glob, sys, zipfile
deps = sys.argv[1]
with zipfile.ZipFile(glob.glob(deps + "/wheel/nvidia_cudnn_frontend-1.32.0*.whl")[0]) as wheel:
    wheel.extractall(deps + "/cudnn-frontend", [n for n in wheel.namelist() if n.startswith("include/")])
PYTHON
    ;;
  --parquet)
    # Apache Arrow C++ (Apache-2.0) is in no package of Debian; the Python wheel holds its headers and shared libraries.
    deps=$(cd "$(dirname "$0")/.." && pwd)/build/deps
    mkdir -p "$deps/wheel"
    python3 -m pip download --quiet --no-deps -d "$deps/wheel" pyarrow==21.0.0
    python3 - "$deps" <<'PYTHON'
import glob, os, re, shutil, sys, zipfile
deps = sys.argv[1]
shutil.rmtree(deps + "/arrow", ignore_errors=True)
with zipfile.ZipFile(glob.glob(deps + "/wheel/pyarrow-21.0.0*.whl")[0]) as wheel:
    for name in wheel.namelist():
        part = name.removeprefix("pyarrow/")
        if re.fullmatch(r"include/.*|lib(arrow|parquet)\.so\.\d+", part) and not name.endswith("/"):
            place = os.path.join(deps, "arrow", part)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with wheel.open(name) as source, open(place, "wb") as target:
                shutil.copyfileobj(source, target)
PYTHON
    ;;
  --fuzz) build_packages+=(clang-16 libclang-rt-16-dev) ;;
  *) echo "usage: tools/setup.sh [--bench | --cuda | --parquet | --lint | --fuzz | --speech]" >&2; exit 2 ;;
esac

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q "install ok installed"; }

if ! command -v apt-get >/dev/null; then
  echo "convoy: this system has no apt-get; install the equivalents of: ${build_packages[*]}" >&2
  exit 0
fi
missing=()
for package in "${build_packages[@]}"; do
  installed "$package" || missing+=("$package")
done
wanted=()
for package in "${optional_packages[@]}"; do
  installed "$package" || wanted+=("$package")
done
if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "convoy: these packages are missing and there is no sudo to install them: ${missing[*]} ${wanted[*]}" >&2
    [ ${#missing[@]} -eq 0 ] && exit 0
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
for package in "${wanted[@]}"; do  # what this release does not have is done without
  apt-cache show "$package" >/dev/null 2>&1 && missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
echo "convoy: installing ${missing[*]}"
if ! "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/tmp/convoy-setup.log 2>&1; then
  tail -20 /tmp/convoy-setup.log >&2
  exit 1
fi
