#include "cuda/matmul.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convoy::cuda {
namespace {

struct Choices : ::testing::Test {
  void SetUp() override { std::filesystem::remove_all(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("convoy-choices-" + std::to_string(::getpid()));
  std::filesystem::path file = folder / "choices.txt";
  static cublasLtMatmulAlgo_t numbered(std::uint64_t n) {
    cublasLtMatmulAlgo_t algorithm{};
    algorithm.data[0] = n;
    algorithm.data[7] = ~n;
    return algorithm;
  }
};

TEST_F(Choices, AreKeptForLaterRunsAndOtherRanks) {
  int asked = 0;
  {
    MatmulChoices choices(file);
    choices.find("a", [&] {
      ++asked;
      return numbered(5);
    });
    choices.find("a", [&] {
      ++asked;
      return numbered(6);
    });
    choices.find("b", [&] {
      ++asked;
      return numbered(7);
    });
  }
  EXPECT_EQ(asked, 2);
  MatmulChoices later(file);
  EXPECT_EQ(later
                .find("a",
                      [&] {
                        ++asked;
                        return numbered(8);
                      })
                .data[0],
            5U);
  EXPECT_EQ(later
                .find("b",
                      [&] {
                        ++asked;
                        return numbered(9);
                      })
                .data[7],
            ~std::uint64_t{7});
  EXPECT_EQ(asked, 2);
}

TEST_F(Choices, WhatAnotherProcessChoseMeanwhileCounts) {
  MatmulChoices one(file), two(file);
  one.find("a", [] { return numbered(1); });
  EXPECT_EQ(two.find("a", [] { return numbered(2); }).data[0], 1U);
}

TEST_F(Choices, ADamagedFileIsReadAsFarAsItIsWhole) {
  {
    MatmulChoices choices(file);
    choices.find("a", [] { return numbered(1); });
  }
  std::ofstream(file, std::ios::app) << "b 123\nc " << std::string(128, 'z') << "\n";
  MatmulChoices later(file);
  EXPECT_EQ(later.find("a", [] { return numbered(2); }).data[0], 1U);
  EXPECT_EQ(later.find("b", [] { return numbered(3); }).data[0], 3U);
  EXPECT_EQ(later.find("c", [] { return numbered(4); }).data[0], 4U);
}

TEST_F(Choices, AFolderThatCannotBeMadeIsNoError) {
  MatmulChoices choices("/proc/nowhere/choices.txt");
  EXPECT_EQ(choices.find("a", [] { return numbered(1); }).data[0], 1U);
}

}  // namespace
}  // namespace convoy::cuda
