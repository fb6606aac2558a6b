#!/usr/bin/env bash
# The loss of the demo's model in bf16 and with fp8 products, side by side: bench/fp8_curve.sh CONVOY DEMO [STEPS] [MORE …]
# DEMO is the folder of `make demo` (runs/demo), for its texts and tokenizer; MORE are flags of both runs, as --device cuda.
set -euo pipefail
convoy=${1:?usage: bench/fp8_curve.sh CONVOY DEMO [STEPS] [MORE …]}
demo=${2:?usage: bench/fp8_curve.sh CONVOY DEMO [STEPS] [MORE …]}
steps=${3:-400}
shift $(($# < 3 ? $# : 3))
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for precision in bf16 fp8; do
  "$convoy" train "$here/../examples/demo/demo.yaml" --train_files "$demo/text/*.txt" --tokenizer "$demo/tokenizer" --cache_dir "$work/cache" \
    --output_dir "$work/$precision" --max_steps "$steps" --eval_steps 100 --log_level warning "--$precision" "$@" >/dev/null
done
# Of each log: step, kind, loss.
losses() { sed -nE 's/.*"(eval_)?loss":([0-9.]+).*"step":([0-9]+).*/\3 \1loss \2/p' "$work/$1/log.jsonl"; }
paste -d ' ' <(losses bf16) <(losses fp8) |
  awk 'BEGIN { print "step  kind        bf16     fp8  difference" } { printf "%4d  %-9s %7.4f %7.4f %+10.2f%%\n", $1, $2, $3, $6, 100 * ($6 / $3 - 1) }'
