#!/usr/bin/env bash
# Speech for the demo: short sentences in English and Mandarin from a small closed vocabulary, spoken by espeak-ng in several voices
# and speeds, with noise mixed in by sox. Writes FOLDER/{train,held-out}.jsonl, their recordings, and text.txt for a tokenizer.
# Sentences of the held-out set are combinations of words that the training set does not have. The same on every machine.
set -euo pipefail

folder=${1:?usage: make_data.sh FOLDER [SENTENCES OF EACH LANGUAGE] [HELD OUT]}
count=${2:-400}
held_out=${3:-40}
mkdir -p "$folder/audio"
for program in espeak-ng sox; do
  command -v $program >/dev/null || { echo "make_data: $program is missing; run tools/setup.sh --speech" >&2; exit 1; }
done

# Lines "language<TAB>voice<TAB>speed<TAB>noise<TAB>text", all sentences different; noise is a share of full scale.
sentences() {
  awk -v language="$1" -v n="$2" '
    function random(most) { x = (x * 16807) % 2147483647; return x % most }
    function pick(words, a, k) { k = split(words, a, " "); return a[random(k) + 1] }
    BEGIN {
      x = language == "en" ? 20261 : 88123
      while (made < n) {
        if (language == "en") {
          text = "the " pick("red blue green black white small") " " pick("cat dog bird horse fish lion") " " pick("sees likes wants finds") " " \
                 pick("two three four five six") " " pick("apples books cups boats stones")
          voice = pick("en-us en-gb en-gb-scotland en-us-nyc") "+" pick("m1 m3 m7 f1 f2 f4"); speed = 200 + random(50)
        } else {
          text = pick("今天 明天 昨天 早上 晚上") pick("我 他 妈妈 老师 朋友 弟弟") pick("想买 看见 喜欢 找到") pick("两 三 四 五 六") pick("个苹果 本书 只猫 杯茶 条鱼")
          voice = "cmn-latn-pinyin+" pick("m1 m3 m7 f1 f2 f4"); speed = 220 + random(50)
        }
        noise = (2 + random(20)) / 1000
        if (text in seen) continue
        seen[text] = 1; ++made
        printf "%s\t%s\t%d\t%g\t%s\n", language, voice, speed, noise, text
      }
    }'
}

speak() {  # $1 set, $2 first line, $3 last line: of each language
  local i=0
  : >"$folder/$1.jsonl"
  for language in en zh; do
    while IFS=$'\t' read -r language voice speed noise text; do
      i=$((i + 1))
      local name
      name=$(printf '%s-%s-%04d' "$1" "$language" $i)
      espeak-ng -v "$voice" -s "$speed" -b 1 -w "$folder/audio/spoken.wav" "$text"
      # Silence at the ends goes, the sentence starts a little later, and noise lies below all of it.
      sox -V1 "$folder/audio/spoken.wav" -r 16000 "$folder/audio/clean.wav" vol 0.6 silence 1 0.01 0.3% reverse silence 1 0.01 0.3% reverse pad 0.05 0.05
      local seconds
      seconds=$(sox --i -D "$folder/audio/clean.wav")
      sox -V1 -m "$folder/audio/clean.wav" "|sox -V1 -n -r 16000 -p synth $seconds whitenoise vol $noise" -b 16 "$folder/audio/$name.wav"
      awk -v s="$seconds" 'BEGIN { exit !(s > 2.0) }' && { rm "$folder/audio/$name.wav"; continue; }  # the demo hears windows of 2 s
      printf '{"audio": "audio/%s.wav", "text": "%s", "language": "%s", "duration": %s, "id": "%s"}\n' "$name" "$text" "$language" "$seconds" "$name" \
        >>"$folder/$1.jsonl"
    done < <(sentences "$language" $((count + held_out)) | sed -n "$2,$3p")
  done
  rm -f "$folder/audio/spoken.wav" "$folder/audio/clean.wav"
}

speak train 1 "$count"
speak held-out $((count + 1)) $((count + held_out))
# What the models write, and the request of GLM-ASR's prompt.
{ sed -E 's/.*"text": "([^"]*)".*/\1/' "$folder/train.jsonl"; for _ in 1 2 3 4 5; do echo "Please transcribe this audio into text"; done; } >"$folder/text.txt"
