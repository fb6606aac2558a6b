#!/usr/bin/env bash
# Times training of a 25M-parameter model here, beside PyTorch's eager mode when PYTHON (with torch and transformers) is given, and
# prints the ratios: PYTHON=/path/to/python bench/run.sh build/bench
set -euo pipefail
build=${1:?usage: [PYTHON=…] bench/run.sh BUILD_FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
threads=${THREADS:-$(nproc)}
shape=(--config "$here/models/qwen2-25m.json" --batch 4 --seq 512 --steps 13 --threads "$threads")
number() { sed -E 's/.*"'"$1"'": ?([0-9.e+]+).*/\1/'; }
report() { printf '%-28s %9.0f tok/s  %7.2f GB peak  first step done after %5.2f s\n' "$1" "$(number tokens_per_second <<<"$2")" \
  "$(awk "BEGIN { print $(number peak_rss_bytes <<<"$2") / 1e9 }")" "$(number seconds_to_first_step <<<"$2")"; }
ratio() { awk "BEGIN { printf \"%-28s %9.2fx\n\", \"$1\", $2 / $3 }"; }
for dtype in f32 bf16; do
  ours=$("$build/bench/train_bench" "${shape[@]}" --dtype $dtype)
  report "convoy $dtype" "$ours"
  if [ -n "${PYTHON:-}" ]; then
    modes=$dtype
    [ $dtype = bf16 ] && modes="bf16 bf16-autocast"
    for mode in $modes; do
      peer=$("$PYTHON" "$here/peers/torch_train.py" "${shape[@]}" --dtype $mode 2>/dev/null | tail -1)
      report "torch eager $mode" "$peer"
      ratio "  convoy / torch" "$(number tokens_per_second <<<"$ours")" "$(number tokens_per_second <<<"$peer")"
    done
  fi
done
