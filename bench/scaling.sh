#!/usr/bin/env bash
# Tokens per second of one single-thread rank and of two, same global batch: bench/scaling.sh CONVOY [STEPS]
set -euo pipefail
convoy=${1:?usage: bench/scaling.sh CONVOY [STEPS]}
steps=${2:-8}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat "$here"/../docs/*.md >"$work/text.txt"
"$convoy" tokenizer train "$work/text.txt" --vocab_size 512 --output "$work/tokenizer" --eos '<|endoftext|>' >/dev/null
run() {  # name, ranks, accumulation, more
  local name=$1 ranks=$2 accumulation=$3
  shift 3
  "$convoy" train --from_scratch --model_config "$here/models/qwen2-25m.json" --tokenizer "$work/tokenizer" --train_files "$work/text.txt" \
    --text_mode line --seq_length 512 --per_device_train_batch_size 2 --gradient_accumulation_steps "$accumulation" --max_steps "$steps" \
    --logging_steps 1 --save_strategy no --threads 1 --num_processes "$ranks" --output_dir "$work/$name" --cache_dir "$work/cache" \
    --log_level warning "$@" >/dev/null
  # The median of the steps after the first two.
  grep -o '"tokens_per_second":[0-9.]*' "$work/$name/log.jsonl" | cut -d: -f2 | tail -n +3 | sort -n | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'
}
one=$(run one 1 2)
for stage in 0 1 2 3; do
  two=$(run "two$stage" 2 1 --zero_stage "$stage")
  awk -v a="$one" -v b="$two" -v s="$stage" 'BEGIN { printf "ZeRO %s: one rank %.0f tokens/s, two %.0f: %.2f times\n", s, a, b, b / a }'
done
