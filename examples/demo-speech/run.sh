#!/usr/bin/env bash
# The demo of speech: espeak-ng speaks sentences in English and Mandarin, a tiny Whisper and a tiny model of GLM-ASR's kind learn them
# from scratch on two ranks (ZeRO-2, fp16), and both write down held-out sentences. Fails where a character error rate exceeds 15 %.
set -euo pipefail

convoy=${1:?usage: examples/demo-speech/run.sh CONVOY [FOLDER]}
here=$(cd "$(dirname "$0")" && pwd)
work=${2:-"$here/../../runs/demo-speech"}
mkdir -p "$work"
work=$(cd "$work" && pwd)
convoy=$(realpath "$convoy")

if [ ! -f "$work/data/text.txt" ]; then
  echo "demo-speech: espeak-ng speaks"
  rm -rf "$work/data"
  "$here/make_data.sh" "$work/data"
fi
echo "demo-speech: $(wc -l <"$work/data/train.jsonl") utterances to learn from, $(wc -l <"$work/data/held-out.jsonl") held out"

"$convoy" tokenizer train "$work/data/text.txt" --vocab_size 420 --output "$work/tokenizer" --eos '<|endoftext|>' \
  --special_tokens '<|endoftext|>' '<|startoftranscript|>' '<|en|>' '<|zh|>' '<|transcribe|>' '<|notimestamps|>' \
  '<|user|>' '<|assistant|>' '<|begin_of_audio|>' '<|end_of_audio|>' '<|pad|>'

# The configuration as GLM-ASR is fine-tuned with, but for the learning rate and its warm-up: a model from scratch needs larger steps.
sed -e 's/"lr": 1e-4/"lr": 2e-3/' -e 's/"warmup_max_lr": 1e-4, "warmup_num_steps": 1000/"warmup_max_lr": 2e-3, "warmup_num_steps": 60/' \
  "$here/../deepspeed/glm_asr_zero2.json" >"$work/zero2_fp16.json"
echo "demo-speech: DeepSpeed's JSON, and what of it is changed"
cat "$work/zero2_fp16.json"
diff "$here/../deepspeed/glm_asr_zero2.json" "$work/zero2_fp16.json" || true

failed=0
figures=""
for model in whisper glm_asr; do
  rm -rf "${work:?}/$model"
  begin=$SECONDS
  "$convoy" train "$here/$model.yaml" --deepspeed "$work/zero2_fp16.json" --tokenizer "$work/tokenizer" --train_files "$work/data/train.jsonl" \
    --validation_files "$work/data/held-out.jsonl" --audio_cache "$work/features" --output_dir "$work/$model"
  "$convoy" transcribe "$work/data/held-out.jsonl" --model "$work/$model" --output json --metrics "$work/$model.json" >"$work/$model.jsonl"
  echo "demo-speech: what $model hears (and what was said, where that is something else)"
  awk 'NR % 8 == 1' "$work/$model.jsonl" | sed -E 's/.*"text":"([^"]*)","duration".*"reference":"([^"]*)".*/\2\t\1/' |
    awk -F'\t' '{ print "  " $2 ($1 == $2 ? "" : "   (" $1 ")") }'
  cer=$(sed -n 's/^  "cer": *\([0-9.e-]*\).*/\1/p' "$work/$model.json")
  figures+=$(awk -v m=$model -v c="$cer" -v s=$((SECONDS - begin)) 'BEGIN { printf "demo-speech: %s: CER %.2f %% on held-out sentences, %d s", m, 100 * c, s }')$'\n'
  awk -v c="$cer" 'BEGIN { exit !(c <= 0.15) }' || failed=1
done
printf '%s' "$figures"
echo "demo-speech: $SECONDS s in all; the models are $work/whisper and $work/glm_asr"
[ $failed -eq 0 ] || { echo "demo-speech: a character error rate exceeds 15 %" >&2; exit 1; }
