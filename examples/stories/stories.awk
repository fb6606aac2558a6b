# Writes N little stories with a right and a wrong ending, all different.
#   awk -f stories.awk -v n=1000 -v seed=1 -v format=csv     columns of the ROCStories cloze test
#   awk -f stories.awk -v n=1000 -v seed=1 -v format=jsonl   {"text": story with an ending}: half of them with the right one; a
#                                                            quarter with the right one and "So wise.", a quarter with the wrong
#                                                            one and "So silly."
#   -v pairs=held       two plans that meet in no story made without it
#   -v avoid='FILE …'   leaves out the stories that CSV files made before hold
# What has to be understood: of the two plans in a story only one stands, and which thing serves which plan, which no story says.
# Both endings name a thing that serves a plan of the story, and words that tell the plans apart stand beside both, so that no
# set of words tells the endings apart. "Once" and "Then" stand where the choice has its start and delimiter tokens,
# "So" where it has the token that classifies.

function random(k) {  # 0 … k-1; a generator of our own, for the awks differ (Lehmer, modulus 2^31 - 1)
  state = (state * 16807) % 2147483647
  return int(state / 2147483647 * k)
}
function list(text, into) { return split(text, into, "|") }

# Sentences s[1 … 4]; the plan that stands is `right`, the other one `wrong`.
function tell(    kind, stands, falls, first, second) {
  who = names[1 + random(name_count)]
  stands = 1 + random(plan_count)
  do falls = 1 + random(plan_count)
  while (falls == stands || ((stands + falls) % 4 == 0) != (pairs == "held"))
  kind = random(6)
  if (kind == 0) { first = who " wanted to " plans[falls] "."; second = who " decided to " plans[stands] " instead." }
  if (kind == 1) { first = who " wanted to " plans[stands] "."; second = "A friend wanted to " plans[falls] "." }
  if (kind == 2) { first = "A friend wanted to " plans[falls] "."; second = who " wanted to " plans[stands] "." }
  if (kind == 3) { first = who " had to " plans[stands] "."; second = who " had no time to " plans[falls] "." }
  if (kind == 4) { first = who " forgot to " plans[falls] "."; second = who " began to " plans[stands] "." }
  if (kind == 5) { first = who " did not want to " plans[falls] "."; second = who " was asked to " plans[stands] "." }
  s[1] = first; s[2] = second
  s[3] = "It was " weathers[1 + random(weather_count)] "."
  s[4] = who " " looks[1 + random(look_count)] "."
  right = who " took the " things[stands] "."
  wrong = who " took the " things[falls] "."
}

# The ending of a story as text.
function told(    kind) {
  kind = random(4)
  return kind > 1 ? right : kind ? right " So wise." : wrong " So silly."
}

BEGIN {
  state = (seed * 7919 + 104729) % 2147483646 + 1
  for (i = 0; i < 10; i++) random(2)
  name_count = list("Anna|Ben|Carla|David|Emma|Frank|Grace|Henry|Ida|Jonas", names)
  plan_count = list("hang a picture|eat soup|cut bread|sweep the floor|write a letter|dig a hole|see the stars|paint a fence|" \
                    "open the door|sew a shirt|boil water|catch a fish|climb the wall|play a song|light a fire|dry the dishes", plans)
  list("hammer|spoon|knife|broom|pen|shovel|telescope|brush|key|needle|kettle|net|ladder|guitar|match|towel", things)
  weather_count = list("warm|cold|late|early", weathers)
  look_count = list("thought|waited|smiled|looked around", looks)
  files = split(avoid, avoided, " ")
  for (i = 1; i <= files; i++) while ((getline line < avoided[i]) > 0) if (split(line, f, ",") == 8) seen[f[2] f[3] f[4] f[5]] = 1
  if (format == "csv") print "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
  for (made = 0; made < n;) {
    tell()
    answer = 1 + random(2)
    story = s[1] s[2] s[3] s[4]
    if (story in seen) continue
    seen[story] = 1
    made++
    if (format == "csv") print "story" made "," s[1] "," s[2] "," s[3] "," s[4] "," (answer == 1 ? right : wrong) "," (answer == 1 ? wrong : right) "," answer
    else printf "{\"text\": \"Once %s %s %s %s Then %s\"}\n", s[1], s[2], s[3], s[4], told()
  }
}
