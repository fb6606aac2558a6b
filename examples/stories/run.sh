#!/usr/bin/env bash
# Multiple choice as GPT-1 learned it: a language model of little stories first, then a few stories with two endings each; and for
# comparison the same choice without the language model. Everything is made here, nothing is fetched.
set -euo pipefail

convoy=$(realpath "${1:?usage: examples/stories/run.sh CONVOY [FOLDER]}")
here=$(cd "$(dirname "$0")" && pwd)
work=${2:-"$here/../../runs/stories"}
mkdir -p "$work"
cd "$work"

# --- Stories: the plans that meet in those of the test and dev data never met in the others.
make() { awk -f "$here/stories.awk" "$@"; }
make -v pairs=held -v n=1000 -v seed=1 -v format=csv >test.csv
make -v pairs=held -v n=500 -v seed=2 -v format=csv -v avoid='test.csv' >dev.csv
make -v n=2000 -v seed=3 -v format=csv >train.csv
make -v n=60000 -v seed=4 -v format=jsonl -v avoid=train.csv >stories.jsonl
words=$(awk -f "$here/words.awk" train.csv test.csv)
"$convoy" tokenizer train stories.jsonl --vocab_size 700 --output tokenizer --eos '<|endoftext|>'

# --- The language model.
"$convoy" train "$here/language-model.yaml" --model_config "$here/config.json" --output_dir language-model --overwrite_output_dir

# --- The choice, from it and from nothing.
choose() { "$convoy" train "$here/choice.yaml" --overwrite_output_dir "$@"; }
choose --model language-model --output_dir choice
choose --from_scratch --model_config "$here/config.json" --tokenizer tokenizer --output_dir choice-from-nothing

figure() { sed -n 's/.*"test_accuracy": *\([0-9.e-]*\).*/\1/p' "$1/log.jsonl" | tail -1; }
with=$(figure choice) without=$(figure choice-from-nothing)
echo
echo "stories: right endings of 1000 held-out stories: $with after pre-training, $without without; $words from the words without their order"
awk -v a="$with" -v b="$without" -v c="$words" 'BEGIN { exit !(a >= 0.9 && b < a && c < 0.6) }' ||
  { echo "stories: the choice was not learned (at least 0.9, more than without pre-training, words alone below 0.6)" >&2; exit 1; }
