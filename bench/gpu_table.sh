#!/usr/bin/env bash
# The table of docs/benchmarks.md on this machine's GPU: Convoy's tokens per second (times real time, where a model hears), the GiB
# planned and used, and where PYTHON (with torch and transformers) is given PyTorch's in the same run, eager:
#   [PYTHON=…] [ROWS='7b|whisper'] [STEPS=13] [OUT=lines.jsonl] bench/gpu_table.sh build/cuda
# ROWS is a regular expression for the names of rows. Both programs' full lines go to OUT. A row that fails says why and the rest go on;
# the status is then 1.
set -uo pipefail
build=${1:?usage: [PYTHON=…] [ROWS=…] bench/gpu_table.sh BUILD_FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
train=$build/bench/train_bench
[ -x "$train" ] || { echo "$train is not there: cmake --preset cuda -DCONVOY_BUILD_BENCH=ON, then build" >&2; exit 2; }
steps=${STEPS:-13}
out=${OUT:-gpu_table.jsonl}
failures=0
: >"$out" || exit 2

field() { sed -nE 's/.*"'"$1"'": ?(-?[0-9.e+]+).*/\1/p' <<<"$2"; }
speed() { local times; times=$(field times_real_time "$1"); [ -n "$times" ] && echo "$times" || field tokens_per_second "$1"; }
gib() { awk -v b="${1:-0}" 'BEGIN { printf "%.1f", b / 1024 / 1024 / 1024 }'; }

# name, arguments that both programs take, Convoy's own, PyTorch's own or "-" where it has no such run
row() {
  local name=$1 shape=$2 ours=$3 theirs=$4 line peer='' rate peer_rate='' log
  [[ $name =~ ${ROWS:-.} ]] || return 0
  log=$(mktemp)
  # shellcheck disable=SC2086
  line=$("$train" --device "${DEVICE:-cuda}" --dtype bf16 --bf16-state --any-order --steps "$steps" $shape $ours 2>"$log" | tail -1)
  if [ -z "$(field tokens_per_second "$line")" ]; then
    printf '%-44s failed: %s\n' "$name" "$(head -3 "$log" | tr '\n' ' ')"
    failures=1
  else
    echo "$line" >>"$out"
    rate=$(speed "$line")
    if [ -n "${PYTHON:-}" ] && [ "$theirs" != - ]; then
      # shellcheck disable=SC2086
      peer=$("$PYTHON" "$here/peers/gpu/torch_train.py" --device "${DEVICE:-cuda}" --steps "$steps" $shape $theirs 2>/dev/null | tail -1)
      echo "$peer" >>"$out"
      peer_rate=$(speed "$peer")
    fi
    printf '%-44s %10.1f  planned %6s  used %6s' "$name" "$rate" "$(gib "$(field planned_bytes "$line")")" \
      "$(gib "$(field device_bytes "$line")")"
    if [ -n "$peer_rate" ]; then
      awk -v a="$rate" -v b="$peer_rate" 'BEGIN { printf "  torch %10.1f  %.2fx", b, a / b }'
    elif [ -n "$peer" ]; then
      printf '  torch: out of memory or failed, see %s' "$out"
    fi
    printf '\n'
  fi
  rm -f "$log"
}

c=$here/configs
glm="--config $c/glm-4-9b-1m.json"
shape() { echo "--config $c/$1.json --batch $2 ${3:+--seq $3} --accum ${4:-1}"; }
for gradients in '' --narrow-gradients; do
  label=${gradients:+, bf16 gradients}
  row "Qwen2.5-0.5B 32x1024x4$label" "$(shape qwen2.5-0.5b 32 1024 4)" "$gradients" "$([ "$gradients" ] || echo -)"
  row "Qwen2.5-1.5B 16x1024x4$label" "$(shape qwen2.5-1.5b 16 1024 4)" "$gradients" "$([ "$gradients" ] || echo -)"
  row "Qwen2.5-7B 4x1024x8$label" "$(shape qwen2.5-7b 4 1024 8)" "$gradients" "$([ "$gradients" ] || echo -)"
  row "GLM-4-9B 1x4096x2, 110 GiB$label" "$glm --batch 1 --seq 4096 --accum 2" "--recompute fit --memory-limit 118 $gradients" \
    "$([ "$gradients" ] && echo --recompute || echo -)"
  row "Whisper-large-v3 16x30s$label" "$(shape whisper-large-v3 16)" "$gradients" "$([ "$gradients" ] || echo -)"
  row "GLM-ASR-Nano 16x30s$label" "$(shape glm-asr-nano 16)" "$gradients" "$([ "$gradients" ] || echo -)"
done
row 'Qwen2.5-7B 4x1024x8, fp8, bf16 gradients' "$(shape qwen2.5-7b 4 1024 8)" '--fp8 --narrow-gradients' -
row 'GLM-4-9B LoRA r16 2x2048x2' "$glm --batch 2 --seq 2048 --accum 2" '--lora-rank 16' -
row 'GLM-4-9B LoRA r16 1x32768' "$glm --batch 1 --seq 32768" '--lora-rank 16 --recompute full' -
steps=${LONG_STEPS:-2}
row 'GLM-4-9B LoRA r16 1x262144' "$glm --batch 1 --seq 262144" '--lora-rank 16 --recompute full --offload-activations' -
exit "$failures"
