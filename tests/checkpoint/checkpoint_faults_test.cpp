// Real faults: processes killed while they save, full disks, folders that cannot be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/log.h"
#include "base/random.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/safetensors.h"
#include "test_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kElements = 30000;

std::vector<float> content_of(std::int64_t step) {
  return std::vector<float>(kElements, static_cast<float>(step));
}

void save(CheckpointStore& store, std::int64_t step, std::size_t elements = kElements) {
  const std::vector<float> values(elements, static_cast<float>(step));
  CheckpointWriter writer = store.begin(step);
  SafetensorsWriter weights(writer.folder() / "model.safetensors",
                            {{"w", {DType::kF32, {static_cast<std::int64_t>(elements)}}}});
  for (std::size_t at = 0; at < values.size(); at += 1000) {
    weights.write("w", std::as_bytes(std::span(values).subspan(at, std::min<std::size_t>(1000, values.size() - at))));
  }
  writer.record(weights.close());
  writer.add_text("training_state.json", std::to_string(step));
  writer.commit();
}

// Runs `body` in a child; returns its exit status, or 1000 + the signal that ended it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(body());
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "in the child: %s\n", failure.what());
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

constexpr int kNotPossibleHere = 77;

// 0 when `body` throws a storage error whose text holds `part`; else a child's exit status.
int expect_storage_error(const std::function<void()>& body, const std::string& part) {
  try {
    body();
  } catch (const Error& error) {
    if (error.status() == Status::kStorage && std::string(error.what()).find(part) != std::string::npos) return 0;
    std::fprintf(stderr, "unexpected: %s\n", error.what());
    return 2;
  }
  return 3;
}

// Saves steps 1, 2, 3, … keeping two, each third step twice; reports each commit through the pipe; never returns.
[[noreturn]] void save_for_ever(const fs::path& folder, std::int64_t from, int report) {
  set_log_level(LogLevel::kQuiet);
  CheckpointStore store(folder);
  for (std::int64_t step = from;; ++step) {
    for (int again = 0; again < (step % 3 == 0 ? 2 : 1); ++again) {
      save(store, step);
      if (::write(report, &step, sizeof step) != sizeof step) ::_exit(1);
    }
    store.prune(2);
  }
}

TEST(CheckpointFaults, AKilledSaveNeverLosesAWholeCheckpoint) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  RandomStream random(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()), 0);
  std::int64_t committed = 0;
  int leftovers = 0;
  for (int round = 0; round < 60; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipe_ends[0]);
      save_for_ever(run.path(), committed + 1, pipe_ends[1]);
    }
    ::close(pipe_ends[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + random.below(60000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (std::int64_t step = 0; ::read(pipe_ends[0], &step, sizeof step) == sizeof step;) committed = step;
    ::close(pipe_ends[0]);

    std::vector<DamagedCheckpoint> damaged;
    const auto newest = store.newest_whole(&damaged);
    EXPECT_THAT(damaged, IsEmpty()) << (damaged.empty() ? "" : damaged.front().problems.front());
    if (committed == 0) continue;
    ASSERT_TRUE(newest) << "round " << round << " after step " << committed;
    EXPECT_GE(newest->step, committed);
    EXPECT_LE(newest->step, committed + 1);
    const SafetensorsFile weights(newest->folder / "model.safetensors");
    const std::vector<float> expected = content_of(newest->step);
    EXPECT_EQ(std::memcmp(weights.find("w").bytes.data(), expected.data(), expected.size() * 4), 0);
    for (const auto& entry : fs::directory_iterator(run.path())) {
      leftovers += entry.path().filename().string().find(".tmp-") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(committed, 10);
  EXPECT_GT(leftovers, 0) << "no kill hit a save";
  save(store, committed + 5);
  for (const auto& entry : fs::directory_iterator(run.path())) {
    EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos) << entry.path();
  }
}

// A file-size limit fails the write in the middle of a tensor.
TEST(CheckpointFaults, AFailedWriteKeepsTheOldCheckpoint) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  save(store, 4);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{50000, 50000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return expect_storage_error([&] { save(store, 4); }, "cannot write");
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), fs::directory_iterator()), 1);
  EXPECT_THAT(CheckpointStore::verify(run / "checkpoint-4"), IsEmpty());
}

// A file system of 1 MiB of its own, in a mount namespace of the child's.
TEST(CheckpointFaults, AFullDiskKeepsTheOldCheckpoint) {
  const TemporaryFolder run;
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0) return kNotPossibleHere;
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("tmpfs", run.path().c_str(), "tmpfs", 0, "size=1m") != 0) return kNotPossibleHere;
    CheckpointStore store(run.path());
    save(store, 1);
    if (const int wrong = expect_storage_error([&] { save(store, 2, 400000); }, "No space left on device");
        wrong != 0) {
      return wrong;
    }
    if (const int wrong = expect_storage_error([&] { store.begin(2, 1600000); }, "not enough space"); wrong != 0) {
      return wrong;
    }
    const auto newest = store.newest_whole();
    if (!newest || newest->step != 1) return 10;
    save(store, 2);  // the failed save has given its space back
    return store.newest_whole()->step == 2 ? 0 : 11;
  });
  if (status == kNotPossibleHere) GTEST_SKIP() << "this system lets no test mount a file system";
  EXPECT_EQ(status, 0);
}

TEST(CheckpointFaults, AReadOnlyFolderIsNamed) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  save(store, 1);
  fs::permissions(run.path(), static_cast<fs::perms>(0555));
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return kNotPossibleHere;  // permissions do not bind root
    if (const int wrong = expect_storage_error(
            [&] { store.begin(2); }, "cannot make a folder in " + run.path().string() + ": Permission denied");
        wrong != 0)
      return wrong;
    const auto newest = store.newest_whole();
    return newest && newest->step == 1 ? 0 : 10;
  });
  fs::permissions(run.path(), fs::perms::owner_all);
  if (status == kNotPossibleHere) GTEST_SKIP() << "this system lets root not become another user";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace convoy
