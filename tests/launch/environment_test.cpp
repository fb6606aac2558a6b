#include "launch/worker_environment.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "launch/slurm.h"

namespace convoy {
namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

struct Expected {
  int rank, size, local_rank, local_size;
  std::string address;
  std::string started_by;
};

void expect_worker(const Variables& variables, const Expected& expected) {
  const auto worker = detect_worker(of(variables));
  ASSERT_TRUE(worker.has_value()) << expected.started_by;
  EXPECT_EQ(worker->rank, expected.rank) << expected.started_by;
  EXPECT_EQ(worker->size, expected.size) << expected.started_by;
  EXPECT_EQ(worker->local_rank, expected.local_rank) << expected.started_by;
  EXPECT_EQ(worker->local_size, expected.local_size) << expected.started_by;
  EXPECT_EQ(worker->master_address, expected.address) << expected.started_by;
  EXPECT_EQ(worker->started_by, expected.started_by);
  EXPECT_FALSE(worker->job.empty());
  EXPECT_FALSE(worker->token.empty());
}

std::string error_of(const Variables& variables) {
  try {
    detect_worker(of(variables));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(WorkerEnvironment, NothingWithoutALauncher) {
  EXPECT_FALSE(detect_worker(of({})).has_value());
  EXPECT_FALSE(detect_worker(of({{"PATH", "/bin"}, {"OMP_NUM_THREADS", "2"}})).has_value());
}

TEST(WorkerEnvironment, EveryLauncher) {
  expect_worker({{"CONVOY_RANK", "3"}, {"CONVOY_WORLD_SIZE", "4"}, {"CONVOY_LOCAL_RANK", "1"}, {"CONVOY_LOCAL_SIZE", "2"},
                 {"CONVOY_MASTER_ADDRESS", "a"}, {"CONVOY_MASTER_PORT", "5"}, {"CONVOY_JOB", "j"}, {"CONVOY_JOB_TOKEN", "t"}},
                {3, 4, 1, 2, "a", "convoy"});
  const Variables torch = {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "x"}};
  expect_worker(torch, {5, 8, 1, 4, "node0", "torchrun"});
  expect_worker({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}, {"CROSS_SIZE", "1"},
                 {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
                {1, 2, 1, 2, "127.0.0.1", "deepspeed"});
  Variables accelerate = torch;
  accelerate["ACCELERATE_MIXED_PRECISION"] = "fp16";
  expect_worker(accelerate, {5, 8, 1, 4, "node0", "accelerate"});
  expect_worker({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                {1, 2, 1, 2, "127.0.0.1", "Open MPI"});
  expect_worker({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
                {1, 2, 1, 2, "127.0.0.1", "PMI"});
  expect_worker({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "1"},
                 {"SLURM_NNODES", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}, {"SLURM_TASKS_PER_NODE", "2(x2)"},
                 {"SLURM_JOB_NODELIST", "gpu[3-4]"}},
                {2, 4, 0, 2, "gpu3", "Slurm"});
}

TEST(WorkerEnvironment, RanksOfOneJobAgreeAndOthersDoNot) {
  Variables one = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  Variables two = one;
  two["RANK"] = two["LOCAL_RANK"] = "1";
  const auto a = detect_worker(of(one));
  const auto b = detect_worker(of(two));
  EXPECT_EQ(a->job, b->job);
  EXPECT_EQ(a->token, b->token);
  two["MASTER_PORT"] = "29501";
  EXPECT_NE(detect_worker(of(two))->token, a->token);
}

TEST(WorkerEnvironment, ContradictionsNameTheirVariables) {
  EXPECT_NE(error_of({{"RANK", "0"}, {"LOCAL_RANK", "0"}}).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(error_of({{"LOCAL_RANK", "0"}}).find("RANK and WORLD_SIZE are not"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"},
                      {"MASTER_ADDR", "a"}})
                .find("RANK=4 is not below WORLD_SIZE=4"),
            std::string::npos);
  EXPECT_NE(error_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}}).find("RANK=x"), std::string::npos);
  EXPECT_NE(error_of({{"OMPI_COMM_WORLD_RANK", "0"}}).find("OMPI_COMM_WORLD_SIZE"), std::string::npos);
}

TEST(WorkerEnvironment, NodesOfKubernetesStartTheirOwnRanks) {
  EXPECT_FALSE(detect_worker(of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}})).has_value());
  const auto node = detect_node(of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}}));
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(node->node, 1);
  EXPECT_EQ(node->nodes, 2);
  EXPECT_EQ(node->master_port, 23456);
}

TEST(WorkerEnvironment, LocalRankInEverySpelling) {
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{"--local_rank=2"}, {"--local-rank=2"}, {"--local_rank", "2"}, {"--local-rank", "2"}}) {
    std::vector<std::string> words = {"run.yaml"};
    words.insert(words.end(), given.begin(), given.end());
    words.emplace_back("--fp16");
    EXPECT_EQ(take_local_rank(words), 2);
    EXPECT_EQ(words, (std::vector<std::string>{"run.yaml", "--fp16"}));
  }
  std::vector<std::string> words = {"--local_rank=-1"};
  EXPECT_FALSE(take_local_rank(words).has_value());
}

TEST(Slurm, ExpandsItsLists) {
  EXPECT_EQ(expand_nodelist("gpu[01-03,7],login"),
            (std::vector<std::string>{"gpu01", "gpu02", "gpu03", "gpu7", "login"}));
  EXPECT_EQ(expand_tasks_per_node("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  for (const char* wrong : {"gpu[", "gpu[3-1]", "gpu[a-b]", ""}) EXPECT_THROW(expand_nodelist(wrong), Error) << wrong;
  for (const char* wrong : {"x", "2(x"}) EXPECT_THROW(expand_tasks_per_node(wrong), Error) << wrong;
}

}  // namespace
}  // namespace convoy
