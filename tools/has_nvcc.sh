#!/usr/bin/env bash
# Succeeds where an nvcc of CUDA 12.8 or newer is installed; says what it found otherwise.
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
read -r major minor <<<"${version:-0 0}"
if [ "$major" -gt 12 ] || { [ "$major" -eq 12 ] && [ "$minor" -ge 8 ]; }; then exit 0; fi
echo "convoy: no nvcc of CUDA 12.8 or newer here; the CUDA device is not compiled"
exit 1
