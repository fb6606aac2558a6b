// Jobs of a small worker program under the supervisor.
#include "launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <regex>
#include <sstream>
#include <thread>

#include "base/files.h"
#include "supervised.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using testing::next_folder;
using ::testing::Not;
using testing::Supervised;

using Words = std::vector<std::string>;

SupervisorOptions on(int ranks) {
  SupervisorOptions options;
  options.program = CONVOY_TEST_WORKER;
  options.ranks = ranks;
  options.grace_seconds = 0.5;
  return options;
}

std::function<int()> job(const SupervisorOptions& options, const Words& words) {
  return [=] { return supervise(options, [&](int, int) { return words; }); };
}

std::string last_line(const std::string& text) {
  const std::size_t begin = text.rfind('\n', text.size() - 2);
  return text.substr(begin == std::string::npos ? 0 : begin + 1);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Whether both ranks have said "ready", and so answer to signals.
bool both_ready(const Supervised& run) {
  return run.says("[rank 1] ready\n") && (run.err().starts_with("ready\n") || run.says("\nready\n"));
}

class Timer {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST(Supervisor, TheFirstRankPassesThroughAndTheOthersWarningsAreNamed) {
  Supervised run(job(on(3), {"out=result", "say=a warning"}));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), "result\n");
  std::vector<std::string> lines = lines_of(run.err());
  EXPECT_THAT(lines, ::testing::UnorderedElementsAre("a warning", "[rank 1] a warning", "[rank 2] a warning"));
}

TEST(Supervisor, NoLineIsTorn) {
  constexpr int kLines = 100;
  Supervised run(job(on(4), {"lines=" + std::to_string(kLines)}));
  EXPECT_EQ(run.wait(), 0);
  std::map<std::string, int> next;
  const std::regex whole(R"((\[rank (\d)\] )?<line (\d+) of (\d)>)");
  for (const std::string& line : lines_of(run.err())) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, whole)) << line;
    EXPECT_EQ(match[4] == "0", match[1].length() == 0) << line;
    EXPECT_EQ(match[2], match[4] == "0" ? "" : match[4].str());
    EXPECT_EQ(std::stoi(match[3]), next[match[4]]++) << "lines keep their order";
  }
  for (const char* rank : {"0", "1", "2", "3"}) EXPECT_EQ(next[rank], kLines);
}

TEST(Supervisor, ARedrawnLineIsLiveAndAnUnfinishedOneIsNotLost) {
  Supervised run(job(on(2), {"@0 raw=\rstep 1", "@0 wait", "@1 wait"}));
  EXPECT_TRUE(run.says("\rstep 1"));
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  Supervised unfinished(job(on(2), {"@0 raw=no end of line"}));
  EXPECT_EQ(unfinished.wait(), 0);
  EXPECT_EQ(unfinished.err(), "no end of line");
}

TEST(Supervisor, EachRankHasItsLog) {
  SupervisorOptions options = on(2);
  options.log_dir = next_folder() / "logs" / "here";
  Supervised run(job(options, {"out=result", "say=a warning"}));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), "result\n");
  for (const char* rank : {"0", "1"}) {
    const std::string log = read_file(options.log_dir / ("rank-" + std::string(rank) + ".log"));
    EXPECT_THAT(log, HasSubstr("result\n"));
    EXPECT_THAT(log, HasSubstr("a warning\n"));
  }
}

TEST(Supervisor, RanksKnowTheirPlace) {
  SupervisorOptions options = on(2);
  options.first_rank = 2;
  options.world_size = 4;
  options.node = 1;
  options.master_address = "10.0.0.1";
  options.master_port = 29511;
  options.token = "secret";
  options.job = "name";
  options.environment = {{"EXTRA", "more"}};
  Supervised run(job(options, {"env=CONVOY_WORLD_SIZE", "env=CONVOY_LOCAL_RANK", "env=CONVOY_LOCAL_SIZE",
                               "env=CONVOY_NODE", "env=CONVOY_MASTER_ADDRESS", "env=CONVOY_MASTER_PORT",
                               "env=CONVOY_JOB", "env=CONVOY_JOB_TOKEN", "env=EXTRA", "env=OMP_WAIT_POLICY", "stdin"}));
  EXPECT_EQ(run.wait(), 0);
  const std::string err = run.err();
  for (const char* rank : {"2", "3"}) {
    for (const char* line : {"CONVOY_WORLD_SIZE=4", "CONVOY_LOCAL_SIZE=2", "CONVOY_NODE=1",
                             "CONVOY_MASTER_ADDRESS=10.0.0.1", "CONVOY_MASTER_PORT=29511", "CONVOY_JOB=name-0",
                             "CONVOY_JOB_TOKEN=secret", "EXTRA=more", "OMP_WAIT_POLICY=passive", "stdin is empty"}) {
      EXPECT_THAT(err, HasSubstr("[rank " + std::string(rank) + "] " + line + "\n"));
    }
  }
  EXPECT_THAT(err, HasSubstr("[rank 3] CONVOY_LOCAL_RANK=1\n"));
}

TEST(Supervisor, EachJobHasItsOwnToken) {
  std::string tokens[2];
  for (std::string& token : tokens) {
    Supervised run(job(on(1), {"env=CONVOY_JOB_TOKEN"}));
    EXPECT_EQ(run.wait(), 0);
    token = run.err();
    EXPECT_EQ(token.size(), std::string("CONVOY_JOB_TOKEN=\n").size() + 32) << token;
  }
  EXPECT_NE(tokens[0], tokens[1]);
}

TEST(Supervisor, TheFirstFailureIsTheMessageAndTheStatus) {
  const std::string folder = next_folder();
  Supervised run(job(on(3), {"pid=" + folder, "@2 await=" + folder + "/0", "@2 await=" + folder + "/1",
                             "@2 say=convoy: data.jsonl:7: not JSON", "@2 exit=3", "wait"}));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_EQ(last_line(run.err()), "convoy: rank 2 ended with status 3: data.jsonl:7: not JSON\n");
  EXPECT_THAT(run.err(), HasSubstr("[rank 1] got signal 15\n"));
}

TEST(Supervisor, OfALongMessageTheBeginningIsRepeated) {
  std::vector<std::string> words = {"@0 say=convoy: it does not fit"};
  for (int i = 0; i < 12; ++i) words.push_back("@0 say=  line " + std::to_string(i));
  words.insert(words.end(), {"@0 exit=4", "wait"});
  Supervised run(job(on(2), words));
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(run.err(), HasSubstr("convoy: rank 0 ended with status 4: it does not fit\n  line 0\n"));
}

TEST(Supervisor, WhoLostAPeerIsNotTheCulprit) {
  const std::string folder = next_folder();
  Supervised run(
      job(on(3), {"pid=" + folder, "await=" + folder + "/2", "await=" + folder + "/1", "@0 say=convoy: rank 2 is gone",
                  "@0 exit=138", "@2 sleep=200", "@2 signal=11", "@1 say=convoy: rank 2 is gone", "@1 exit=138"}));
  EXPECT_EQ(run.wait(), 128 + SIGSEGV);
  EXPECT_THAT(last_line(run.err()), HasSubstr("rank 2 was killed by signal 11"));
}

TEST(Supervisor, OnlyLostPeersAreTheMessageIfNobodyElseFailed) {
  Supervised run(job(on(2), {"@0 say=convoy: rank 1 made no progress for 30 s", "@0 exit=138", "@1 hang"}));
  EXPECT_EQ(run.wait(), 138);
  EXPECT_EQ(last_line(run.err()), "convoy: rank 0 ended with status 138: rank 1 made no progress for 30 s\n");
}

TEST(Supervisor, WhoIgnoresTheEndIsKilledAfterTheGrace) {
  const std::string folder = next_folder();
  const Timer timer;
  Supervised run(job(on(2), {"pid=" + folder, "@0 sleep=200", "@0 exit=7", "hang"}));
  EXPECT_EQ(run.wait(), 7);
  EXPECT_GE(timer.seconds(), 0.5);
  EXPECT_LT(timer.seconds(), 10);
  EXPECT_FALSE(run.outlives("1"));
}

TEST(Supervisor, MemoryKillsAreNamed) {
  SupervisorOptions options = on(2);
  // The counter that the kernel raises with each kill.
  options.count_memory_kills = [calls = std::make_shared<int>(0)] { return std::int64_t{(*calls)++}; };
  Supervised run(job(options, {"@1 signal=9", "wait"}));
  EXPECT_EQ(run.wait(), 137);
  EXPECT_THAT(last_line(run.err()), HasSubstr("rank 1 was killed: out of memory"));
  options.count_memory_kills = [] { return std::int64_t{5}; };
  Supervised plain(job(options, {"@1 signal=9", "wait"}));
  EXPECT_EQ(plain.wait(), 137);
  EXPECT_THAT(last_line(plain.err()), HasSubstr("rank 1 was killed by signal 9"));
}

TEST(Supervisor, SignalsArePassedOn) {
  for (const auto& [sent, status] :
       {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 143}, std::pair{SIGUSR1, 143}}) {
    Supervised run(job(on(2), {"say=ready", "wait"}));
    ASSERT_TRUE(both_ready(run));
    run.signal(sent);
    EXPECT_EQ(run.wait(), status);
    const std::string got = "got signal " + std::to_string(sent == SIGINT ? SIGINT : SIGTERM) + "\n";
    EXPECT_THAT(run.err(), HasSubstr("[rank 1] " + got));
    EXPECT_THAT(run.err(), Not(HasSubstr("convoy: "))) << "an end that was asked for is no failure";
  }
}

TEST(Supervisor, WhoStillSavesAfterASignalIsLeftTheTime) {
  // Rank 0 takes longer than the grace.
  Supervised run(job(on(2), {"say=ready", "@0 wait=1500", "@1 wait"}));
  ASSERT_TRUE(both_ready(run));
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.err(), ::testing::ContainsRegex("(^|\n)got signal 15\n"));
}

TEST(Supervisor, TheEndAfterAnEarlyWarningIsNoImpatience) {
  Supervised run(job(on(1), {"say=ready", "wait=600"}));
  ASSERT_TRUE(run.says("ready"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  run.signal(SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.err(), HasSubstr("got signal 15"));
}

TEST(Supervisor, ASecondSignalEndsAtOnce) {
  const std::string folder = next_folder();
  Supervised run(job(on(2), {"pid=" + folder, "say=ready", "hang"}));
  ASSERT_TRUE(both_ready(run));
  run.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_FALSE(run.outlives("0"));
  EXPECT_FALSE(run.outlives("1"));
}

TEST(Supervisor, AnErrorWhileSavingIsNotHiddenByTheSignal) {
  Supervised run(job(on(1), {"say=ready", "sleep=300", "say=convoy: disk full", "exit=6"}));
  ASSERT_TRUE(run.says("ready"));
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 6);
  EXPECT_EQ(last_line(run.err()), "convoy: rank 0 ended with status 6: disk full\n");
}

TEST(Supervisor, NobodyOutlivesAKilledSupervisor) {
  const std::string folder = next_folder();
  Supervised run(job(on(2), {"pid=" + folder, "say=ready", "hang"}));
  ASSERT_TRUE(both_ready(run));
  run.signal(SIGKILL);
  EXPECT_EQ(run.wait(), 137);
  EXPECT_FALSE(run.outlives("0"));
  EXPECT_FALSE(run.outlives("1"));
}

TEST(Supervisor, WhatARankLeavesBehindEndsToo) {
  const std::string folder = next_folder();
  Supervised run(job(on(1), {"child=" + folder, "sleep=300"}));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_FALSE(run.outlives("child"));
}

TEST(Supervisor, RetryableFailuresRestartTheWholeJob) {
  SupervisorOptions options = on(2);
  options.max_restarts = 2;
  Supervised run([=] {
    return supervise(options, [](int restart, int ranks) -> std::optional<Words> {
      return Words{"@1 say=attempt " + std::to_string(restart) + " on " + std::to_string(ranks), "@1 #0 signal=9",
                   "@1 #1 exit=138", "@0 #0 wait", "@0 #1 wait"};
    });
  });
  EXPECT_EQ(run.wait(), 0);
  for (const char* text : {"attempt 0 on 2", "attempt 1 on 2", "attempt 2 on 2",
                           "rank 1 was killed by signal 9 (Killed); starting again (1 of 2 restarts)",
                           "starting again (2 of 2 restarts)"}) {
    EXPECT_THAT(run.err(), HasSubstr(text));
  }
}

TEST(Supervisor, RestartsEnd) {
  SupervisorOptions options = on(1);
  options.max_restarts = 1;
  Supervised run(job(options, {"env=CONVOY_RESTART_COUNT", "signal=11"}));
  EXPECT_EQ(run.wait(), 139);
  EXPECT_THAT(run.err(), HasSubstr("CONVOY_RESTART_COUNT=1\n"));
  EXPECT_THAT(run.err(), Not(HasSubstr("CONVOY_RESTART_COUNT=2\n")));
}

TEST(Supervisor, PermanentFailuresAndSignalsDoNotRestart) {
  SupervisorOptions options = on(1);
  options.max_restarts = 5;
  Supervised permanent(job(options, {"exit=127"}));
  EXPECT_EQ(permanent.wait(), 127);
  EXPECT_THAT(permanent.err(), Not(HasSubstr("starting again")));
  Supervised stopped(job(options, {"say=ready", "wait"}));
  ASSERT_TRUE(stopped.says("ready"));
  stopped.signal(SIGTERM);
  EXPECT_EQ(stopped.wait(), 143);
  EXPECT_THAT(stopped.err(), Not(HasSubstr("starting again")));
}

TEST(Supervisor, AnElasticJobGoesOnWithFewerRanks) {
  SupervisorOptions options = on(4);
  options.max_restarts = 1;
  options.least_ranks = 2;
  Supervised run([=] {
    return supervise(options, [](int, int ranks) -> std::optional<Words> {
      if (ranks == 3) return std::nullopt;  // the batch cannot be dealt to three
      return Words{"@0 say=on " + std::to_string(ranks), "@3 signal=9", "#0 wait"};
    });
  });
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.err(), HasSubstr("on 4\n"));
  EXPECT_THAT(run.err(), HasSubstr("on 2\n"));
}

TEST(Supervisor, AProgramThatIsNotThereIsAnError) {
  SupervisorOptions options = on(2);
  options.program = "/nowhere/convoy";
  Supervised run(job(options, {}));
  EXPECT_EQ(run.wait(), 6);
  EXPECT_THAT(run.err(), HasSubstr("cannot start rank 0: /nowhere/convoy: No such file or directory"));
}

TEST(Supervisor, ALauncherElsewhereSteersByLines) {
  for (const auto& [text, status] :
       {std::pair{"signal 2\n", 130}, std::pair{"signal 15\n", 143}, std::pair{"end\n", 143}, std::pair{"", 143}}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    SupervisorOptions options = on(2);
    options.control = ends[0];
    const std::string folder = next_folder();
    Supervised run([&, &write_end = ends[1]] {
      ::close(write_end);
      return supervise(options, [](int, int) { return Words{"say=ready", "wait"}; });
    });
    ::close(ends[0]);
    ASSERT_TRUE(both_ready(run));
    EXPECT_EQ(::write(ends[1], text, std::string(text).size()), static_cast<ssize_t>(std::string(text).size()));
    if (*text == '\0') ::close(ends[1]);  // the launcher is gone
    EXPECT_EQ(run.wait(), status) << text;
    if (*text != '\0') ::close(ends[1]);
  }
}

}  // namespace
}  // namespace convoy
