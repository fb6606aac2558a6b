#!/usr/bin/env bash
# The demo: trains a tokenizer and a small Qwen2-style model on manual pages in English and Chinese, compares it with a bigram
# model, generates a sample and plots the loss. Needs the programs apt-get and dpkg-deb for the texts; installs nothing.
set -euo pipefail

convoy=${1:?usage: examples/demo/run.sh CONVOY [FOLDER]}
here=$(cd "$(dirname "$0")" && pwd)
work=${2:-"$here/../../runs/demo"}
mkdir -p "$work/packages" "$work/text"
work=$(cd "$work" && pwd)
convoy=$(realpath "$convoy")

# --- Real text: the manual pages of three Debian packages, fetched as files and unpacked here.
if [ -z "$(ls -A "$work/text")" ]; then
  echo "demo: fetching manual pages (packages manpages, manpages-dev, manpages-zh)"
  fetch() { (cd "$work/packages" && apt-get download -qq manpages manpages-dev manpages-zh 2>"$work/packages/log"); }
  if ! fetch; then
    if [ "$(id -u)" -eq 0 ]; then apt-get update -qq; else sudo apt-get update -qq; fi
    fetch || { cat "$work/packages/log" >&2; exit 1; }
  fi
  for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/packages/unpacked"; done
  # From roff to plain text: requests and font changes go, section titles stay.
  plain() {
    zcat "$@" 2>/dev/null | sed -E -e '/^[.'"'"']\\"/d' -e 's/^\.(SH|SS) +"?([^"]*)"?/\n\2\n/' -e 's/^\.(B|I|BR|IR|RB|RI|BI|IB|TP|IP|SM|SB)( |$)//' \
      -e '/^[.'"'"']/d' -e 's/\\f[BIRP1-4]|\\f\(..//g' -e 's/\\-/-/g' -e 's/\\\(aq/'"'"'/g' -e 's/\\e/\\/g' -e 's/\\[&|^%/:cd ]//g' -e 's/\\\*?\(?(lq|rq|dq)/"/g' \
      -e 's/\\s[-+]?[0-9]//g' | cat -s
  }
  pages=$work/packages/unpacked/usr/share/man
  i=0
  for page in $(find "$pages"/man[2-8] -type f -name '*.gz' -size +1k | sort); do
    plain "$page" >"$work/text/en-$(printf %04d $i).txt"; i=$((i + 1))
  done
  i=0
  for page in $(find "$pages"/zh_CN -type f -name '*.gz' -size +1k | sort); do
    plain "$page" >"$work/text/zh-$(printf %04d $i).txt"; i=$((i + 1))
  done
  rm -rf "$work/packages/unpacked"
fi
echo "demo: $(ls "$work/text" | wc -l) pages, $(du -ch "$work"/text/* | tail -1 | cut -f1) of text"

# --- A tokenizer from that text.
if [ ! -f "$work/tokenizer/tokenizer.json" ]; then
  "$convoy" tokenizer train "$work/text/*.txt" --vocab_size 2048 --output "$work/tokenizer" --eos '<|endoftext|>'
fi

# --- What a bigram model reaches on the same held-out pages.
"$convoy" tokenize "$work/text/*.txt" --tokenizer "$work/tokenizer" --cache_dir "$work/cache" --validation_split 0.02 | tee "$work/baseline.txt"
bigram=$(sed -n 's/^bigram loss //p' "$work/baseline.txt")

# --- Training.
rm -rf "$work/model"
"$convoy" plan "$here/demo.yaml" --output_dir "$work/model" --train_files "$work/text/*.txt" --tokenizer "$work/tokenizer" --cache_dir "$work/cache"
"$convoy" train "$here/demo.yaml" --output_dir "$work/model" --train_files "$work/text/*.txt" --tokenizer "$work/tokenizer" --cache_dir "$work/cache"

# --- The result.
"$convoy" plot "$work/model/log.jsonl" --output "$work/loss.svg" --title "Demo: a small model of manual pages" --reference "bigram=$bigram"
eval_loss=$(sed -n 's/.*"eval_loss": *\([0-9.]*\).*/\1/p' "$work/model/log.jsonl" | tail -1)
echo
echo "demo: two samples"
"$convoy" generate "$work/model" --prompt "DESCRIPTION
The" --max_new_tokens 80 --temperature 0.7 --top_p 0.95 --seed 1
echo "---"
"$convoy" generate "$work/model" --prompt "描述
" --max_new_tokens 60 --temperature 0.7 --top_p 0.95 --seed 1
echo
echo "demo: held-out loss $eval_loss, a bigram model has $bigram"
echo "demo: the loss curve is $work/loss.svg, the model $work/model"
awk -v a="$eval_loss" -v b="$bigram" 'BEGIN { exit !(a + 0.3 < b) }' || { echo "demo: the model is not clearly better than a bigram model" >&2; exit 1; }
