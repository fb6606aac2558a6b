#!/usr/bin/env bash
# Runs every fuzzer for SECONDS_EACH seconds (60 unless given) from its kept corpus.
set -euo pipefail
build=${1:?usage: fuzz/run.sh BUILD_FOLDER [SECONDS_EACH]}
seconds=${2:-60}
here=$(cd "$(dirname "$0")" && pwd)
for fuzzer in "$build"/fuzz/*_fuzz; do
  name=$(basename "$fuzzer")
  found="$build/found/$name"
  mkdir -p "$found" "$here/corpus/$name"
  echo "== $name, $seconds s"
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/" \
    "$found" "$here/corpus/$name" 2>&1 | grep -E "^(stat::number_of_executed_units|stat::new_units_added|==|SUMMARY|artifact)" || true
  if ls "$build"/crash-* "$build"/timeout-* "$build"/oom-* >/dev/null 2>&1; then
    echo "$name found a failing input in $build" >&2
    exit 1
  fi
done
