# Writes N little stories with a right and a wrong ending, all different.
#   awk -f stories.awk -v n=1000 -v seed=1 -v format=csv     columns of the ROCStories cloze test
#   awk -f stories.awk -v n=1000 -v seed=1 -v format=jsonl   {"text": story with an ending}: half of them end rightly and there; a
#                                                            quarter have the right ending and "True.", a quarter a wrong one and "False."
#   -v avoid='FILE …'   leaves out the stories that CSV files made before hold
# What has to be understood: who went where. Both endings name a person and a place of the story, so that no word, and no
# set of words, tells them apart.

function random(k) {  # 0 … k-1; a generator of our own, for the awks differ (Lehmer, modulus 2^31 - 1)
  state = (state * 16807) % 2147483647
  return int(state / 2147483647 * k)
}
function list(text, into) { return split(text, into, " ") }
# Fills picked[1 … k] with different numbers of 1 … of.
function pick(k, of, picked,    i, j, again) {
  for (i = 1; i <= k; i++) {
    do {
      picked[i] = 1 + random(of)
      again = 0
      for (j = 1; j < i; j++) if (picked[j] == picked[i]) again = 1
    } while (again)
  }
}

# Three people go to three places.
function whereabouts(    p, l, k, asked, other) {
  pick(3, name_count, p); pick(3, place_count, l)
  for (k = 1; k <= 3; k++) s[k] = names[p[k]] " " goes[1 + random(go_count)] " the " places[l[k]] "."
  s[4] = names[p[1 + random(3)]] " " fillers[1 + random(filler_count)] "."
  asked = 1 + random(3)
  do other = 1 + random(3); while (other == asked)
  right = names[p[asked]] " was in the " places[l[asked]] "."
  wrong = names[p[asked]] " was in the " places[l[other]] "."
}

# The ending of a story as text.
function told(    kind) {
  kind = random(4)
  return kind > 1 ? right : kind ? right " True." : wrong " False."
}

BEGIN {
  state = (seed * 7919 + 104729) % 2147483646 + 1
  for (i = 0; i < 10; i++) random(2)
  name_count = list("Anna Ben Carla David Emma Frank Grace Henry Ida Jonas", names)
  place_count = list("kitchen garden attic cellar garage hall shed office", places)
  go_count = split("went to|walked to|ran into|came into", goes, "|")
  filler_count = list("slept sang laughed waited", fillers)
  files = list(avoid, avoided)
  for (i = 1; i <= files; i++) while ((getline line < avoided[i]) > 0) if (split(line, f, ",") == 8) seen[f[2] f[3] f[4] f[5]] = 1
  if (format == "csv") print "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
  for (made = 0; made < n;) {
    whereabouts()
    answer = 1 + random(2)
    story = s[1] s[2] s[3] s[4]
    if (story in seen) continue
    seen[story] = 1
    made++
    if (format == "csv") print "story" made "," s[1] "," s[2] "," s[3] "," s[4] "," (answer == 1 ? right : wrong) "," (answer == 1 ? wrong : right) "," answer
    else printf "{\"text\": \"%s %s %s %s %s\"}\n", s[1], s[2], s[3], s[4], told()
  }
}
