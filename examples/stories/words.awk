# What the words alone say, without their order: a linear choice between two endings (an averaged perceptron) from the
# ending's words, how often the story has them, and which words of the story they stand beside. Learns from the first file,
# prints the share of right answers on the second. Both are CSV files of stories.awk.
#   awk -f words.awk train.csv test.csv

function words(text, into) { gsub(/\./, "", text); return split(tolower(text), into, " ") }
# Adds sign · the features of an ending to `delta`.
function features(story, ending, sign,    e, s, i, j, ne, ns, counted) {
  ne = words(ending, e); ns = words(story, s)
  for (i = 1; i <= ne; i++) {
    delta[e[i]] += sign
    counted = 0
    for (j = 1; j <= ns; j++) {
      delta[e[i] "|" s[j]] += sign
      if (e[i] == s[j]) counted++
    }
    delta["times|" counted] += sign
  }
}
function difference(row,    f) {
  split(row, f, ",")
  split("", delta)
  features(f[2] " " f[3] " " f[4] " " f[5], f[6], 1)
  features(f[2] " " f[3] " " f[4] " " f[5], f[7], -1)
  return f[8] == 1 ? 1 : -1
}

FNR == 1 { next }
NR == FNR { train[++n] = $0; next }
{ test[++m] = $0 }
END {
  for (pass = 1; pass <= 10; pass++) {
    for (r = 1; r <= n; r++) {
      y = difference(train[r])
      score = 0; ++seen
      for (k in delta) score += w[k] * delta[k]
      if (y * score <= 0) for (k in delta) { w[k] += y * delta[k]; late[k] += seen * y * delta[k] }
    }
  }
  for (k in w) w[k] -= late[k] / seen
  for (r = 1; r <= m; r++) {
    y = difference(test[r])
    score = 0
    for (k in delta) score += w[k] * delta[k]
    if (y * score > 0) right++
  }
  printf "%.3f\n", right / m
}
