# Writes N little stories with a right and a wrong ending, all different.
#   awk -f stories.awk -v n=1000 -v seed=1 -v format=csv     columns of the ROCStories cloze test
#   awk -f stories.awk -v n=1000 -v seed=1 -v format=jsonl   {"text": story with an ending, which is confirmed or denied}
#   -v avoid='FILE …'   leaves out the stories that CSV files made before hold
# What has to be understood: where a thing is after it was moved (both endings name a place of the story), who has it after
# it was given on (both endings name a person of the story), how somebody feels after what happened to whom.

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
function filler(who) { return who " " fillers[1 + random(filler_count)] "." }

# A thing is put somewhere, something else too, then one of them is moved.
function location(    p, t, l, moved) {
  pick(3, name_count, p); pick(2, thing_count, t); pick(3, place_count, l)
  moved = 1 + random(2)
  s[1] = names[p[1]] " put the " things[t[1]] " in the " places[l[1]] "."
  s[2] = names[p[2]] " put the " things[t[2]] " in the " places[l[2]] "."
  s[3] = names[p[3]] " took the " things[t[moved]] " to the " places[l[3]] "."
  s[4] = filler(names[p[1 + random(3)]])
  asked = 1 + random(2)
  right = "So the " things[t[asked]] " was in the " places[asked == moved ? l[3] : l[asked]] "."
  # Where it was before, or where the other thing is.
  wrong = "So the " things[t[asked]] " was in the " places[asked == moved ? l[1 + random(2)] : (random(2) ? l[3] : l[3 - asked])] "."
}
# Two things are given away, or one of them twice. Who is right and who is wrong are named equally often.
function possession(    p, t, i) {
  pick(4, name_count, p); pick(2, thing_count, t)
  s[1] = names[p[1]] " had the " things[t[1]] " and " names[p[2]] " had the " things[t[2]] "."
  i = 1 + random(2)
  s[2] = names[p[i]] " gave the " things[t[i]] " to " names[p[3]] "."
  if (random(2)) {  # the other thing, to another one
    s[3] = names[p[3 - i]] " gave the " things[t[3 - i]] " to " names[p[4]] "."
    s[4] = filler(names[p[3 + random(2)]])
    asked = random(2)
    right = "In the end " names[p[3 + asked]] " had the " things[asked ? t[3 - i] : t[i]] "."
    wrong = "In the end " names[p[4 - asked]] " had the " things[asked ? t[3 - i] : t[i]] "."
  } else {  # the same thing, onward
    s[3] = names[p[3]] " gave the " things[t[i]] " to " names[p[4]] "."
    asked = random(2)
    s[4] = filler(names[asked ? p[3 - i] : p[4]])
    right = "In the end " names[asked ? p[3 - i] : p[4]] " had the " things[asked ? t[3 - i] : t[i]] "."
    wrong = "In the end " names[p[3]] " had the " things[asked ? t[3 - i] : t[i]] "."
  }
}
# Something good happens to one, something bad to another.
function feeling(    p, good, bad, first, asked) {
  pick(2, name_count, p)
  first = random(2)
  good = names[p[1]] " " goods[1 + random(good_count)] "."
  bad = names[p[2]] " " bads[1 + random(bad_count)] "."
  s[1] = filler(names[p[1 + random(2)]])
  s[2] = first ? good : bad
  s[3] = first ? bad : good
  s[4] = filler(names[p[1 + random(2)]])
  asked = 1 + random(2)
  i = 1 + random(mood_count)
  right = names[p[asked]] " was " (asked == 1 ? happy[i] : unhappy[i]) "."
  wrong = names[p[asked]] " was " (asked == 1 ? unhappy[i] : happy[i]) "."
}

# The end of a story as text: what somebody says of it, rightly or not, and what others answer.
function told() { return random(2) ? right " That is true." : wrong " That is wrong." }

BEGIN {
  state = (seed * 7919 + 104729) % 2147483646 + 1
  for (i = 0; i < 10; i++) random(2)
  name_count = list("Anna Ben Carla David Emma Frank Grace Henry Ida Jonas", names)
  thing_count = list("ball key book lamp coin letter apple cup", things)
  place_count = list("kitchen garden attic cellar garage hall shed office", places)
  filler_count = split("went for a walk|had a cup of tea|looked out of the window|slept for an hour|called a friend|read the paper|swept the floor|fed the cat", fillers, "|")
  good_count = split("won the race|found a lost ring|got a new bike|passed the exam|met an old friend|heard a good joke|got a raise|caught a big fish", goods, "|")
  bad_count = split("lost the race|broke a leg|missed the train|failed the exam|lost the purse|burned the cake|got wet in the rain|fell off the ladder", bads, "|")
  mood_count = list("glad cheerful pleased", happy); list("sad gloomy upset", unhappy)
  files = list(avoid, avoided)
  for (i = 1; i <= files; i++) while ((getline line < avoided[i]) > 0) if (split(line, f, ",") == 8) seen[f[2] f[3] f[4] f[5]] = 1
  if (format == "csv") print "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
  for (made = 0; made < n;) {
    kind = random(3)
    if (kind == 0) location(); else if (kind == 1) possession(); else feeling()
    if (right == wrong) continue
    answer = 1 + random(2)
    row = s[1] "," s[2] "," s[3] "," s[4] "," (answer == 1 ? right : wrong) "," (answer == 1 ? wrong : right) ","
    story = s[1] s[2] s[3] s[4]
    if (story in seen) continue
    seen[story] = 1
    made++
    if (format == "csv") print "story" made "," row answer
    else printf "{\"text\": \"%s %s %s %s %s\"}\n", s[1], s[2], s[3], s[4], told()
  }
}
