#include "checkpoint/output_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <thread>

#include "test_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(OutputLock, ASecondRunIsRefusedAndToldOfTheFirst) {
  const TemporaryFolder folder;
  auto first = std::make_unique<OutputLock>(folder / "out/deep");
  Status status{};
  const std::string error = error_of([&] { OutputLock second(folder / "out/deep"); }, &status);
  EXPECT_EQ(status, Status::kUsage);
  EXPECT_THAT(error, HasSubstr("process " + std::to_string(::getpid()) + " on "));
  EXPECT_THAT(error, HasSubstr("out/deep"));
  OutputLock elsewhere(folder / "out/other");
  first.reset();
  EXPECT_FALSE(fs::exists(folder / "out/deep/.convoy.lock"));
  OutputLock third(folder / "out/deep");
}

TEST(OutputLock, AKilledRunStopsNobody) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    OutputLock lock(folder.path());
    while (true) ::pause();
  }
  while (!fs::exists(folder / ".convoy.lock") || fs::file_size(folder / ".convoy.lock") == 0) ::usleep(1000);
  EXPECT_THAT(error_of([&] { OutputLock lock(folder.path()); }),
              HasSubstr("process " + std::to_string(child) + " on "));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder / ".convoy.lock"));
  OutputLock lock(folder.path());
}

TEST(OutputLock, NoTwoHoldIt) {
  const TemporaryFolder folder;
  std::atomic<int> holders = 0;
  std::atomic<int> taken = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        try {
          OutputLock lock(folder.path());
          EXPECT_EQ(holders.fetch_add(1), 0);
          ++taken;
          std::this_thread::yield();
          holders.fetch_sub(1);
        } catch (const Error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(taken, 0);
}

TEST(OutputLock, AFolderThatCannotBeMadeIsAStorageError) {
  const TemporaryFolder folder;
  write_plain(folder / "file", "x");
  Status status{};
  EXPECT_THAT(error_of([&] { OutputLock lock(folder / "file/out"); }, &status), HasSubstr("output_dir"));
  EXPECT_EQ(status, Status::kStorage);
}

}  // namespace
}  // namespace convoy
