// What each launcher tells its processes, and what follows from it.
#include "launch/worker_environment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "base/error.h"
#include "launch/slurm.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Environment given(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    return error.what();
  }
  return "no error";
}

// rank/size local_rank/local_size node address:port launcher
std::string place(const Variables& variables, std::optional<int> word = std::nullopt) {
  const auto worker = detect_worker(given(variables), word);
  if (!worker) return "none";
  return fmt::format("{}/{} {}/{} {} {}:{} {}", worker->rank, worker->size, worker->local_rank, worker->local_size,
                     worker->node, worker->master_address, worker->master_port, worker->started_by);
}

std::string node_place(const Variables& variables) {
  EXPECT_EQ(place(variables), "none");
  const auto node = detect_node(given(variables));
  if (!node) return "none";
  return fmt::format("{}/{} {} {}:{} {}", node->node, node->nodes, node->local_size.value_or(0), node->master_address,
                     node->master_port, node->started_by);
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(WorkerEnvironment, EveryLauncher) {
  const Variables slurm = {{"SLURM_PROCID", "3"},     {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS", "4"},
                           {"SLURM_NODEID", "1"},     {"SLURM_NNODES", "2"},  {"SLURM_JOB_NODELIST", "gpu[07-08]"},
                           {"SLURM_JOB_ID", "41005"}, {"SLURM_STEP_ID", "0"}};
  const struct {
    const char* what;
    Variables variables;
    const char* expected;
  } cases[] = {
      {"nothing", {}, "none"},
      {"the supervisor wins over what it inherited",
       with(kTorchrun, {{"CONVOY_RANK", "1"},
                        {"CONVOY_WORLD_SIZE", "2"},
                        {"CONVOY_LOCAL_RANK", "1"},
                        {"CONVOY_LOCAL_SIZE", "2"},
                        {"CONVOY_MASTER_PORT", "4000"}}),
       "1/2 1/2 0 127.0.0.1:4000 convoy"},
      {"torchrun, whose agent keeps MASTER_PORT", kTorchrun, "5/8 1/4 1 node0:29501 torchrun"},
      {"torchrun with a store of its own", with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
       "5/8 1/4 1 node0:29500 torchrun"},
      {"a port of one's own", with(kTorchrun, {{"CONVOY_MASTER_PORT", "7000"}}), "5/8 1/4 1 node0:7000 torchrun"},
      {"accelerate", with(kTorchrun, {{"ACCELERATE_MIXED_PRECISION", "bf16"}}), "5/8 1/4 1 node0:29501 accelerate"},
      {"deepspeed",
       {{"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_SIZE", "2"},
        {"CROSS_RANK", "1"},
        {"CROSS_SIZE", "2"},
        {"MASTER_ADDR", "10.0.0.2"},
        {"MASTER_PORT", "29500"}},
       "3/4 1/2 1 10.0.0.2:29500 deepspeed"},
      {"one node, no local size",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "localhost"}},
       "1/2 1/2 0 localhost:29500 RANK"},
      {"Open MPI on one node",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"PMIX_RANK", "1"}},
       "1/2 1/2 0 127.0.0.1:29500 Open MPI"},
      {"Open MPI on two nodes",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "1234"}},
       "3/4 1/2 1 a:1234 Open MPI"},
      {"Hydra",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "a"}},
       "2/4 0/2 1 a:29500 PMI"},
      {"Hydra alone", {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, "0/1 0/1 0 127.0.0.1:29500 PMI"},
      {"deepspeed over MPICH on PALS",
       {{"PMIX_RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"PALS_LOCAL_RANKID", "1"},
        {"LOCAL_SIZE", "2"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "5"}},
       "3/4 1/2 1 a:5 PMI"},
      {"srun", slurm, "3/4 1/2 1 gpu07:11005 Slurm"},
      {"srun with PMI", with(slurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), "3/4 1/2 1 gpu07:11005 Slurm"},
      {"srun with uneven nodes", with(slurm, {{"SLURM_NTASKS", "5"}, {"SLURM_STEP_TASKS_PER_NODE", "2,3"}}),
       "3/5 1/3 1 gpu07:11005 Slurm"},
      {"srun in a batch job", with(slurm, {{"ENVIRONMENT", "BATCH"}}), "3/4 1/2 1 gpu07:11005 Slurm"},
      {"srun and a chosen master", with(slurm, {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "9"}}), "3/4 1/2 1 x:9 Slurm"},
      {"one task of an allocation", with(slurm, {{"SLURM_NTASKS", "1"}}), "none"},
      {"torchrun below srun", with(kTorchrun, slurm), "5/8 1/4 1 node0:29501 torchrun"},
  };
  for (const auto& c : cases) EXPECT_EQ(place(c.variables), c.expected) << c.what;
  // A batch script has the job's numbers, but is no task of it.
  EXPECT_EQ(place(with(without(slurm, "SLURM_STEP_ID"), {{"SLURM_PROCID", "0"}, {"ENVIRONMENT", "BATCH"}})), "none");
}

TEST(WorkerEnvironment, WhatContradictsItselfIsNamed) {
  const struct {
    Variables variables;
    const char* expected;
  } cases[] = {
      {with(kTorchrun, {{"RANK", "8"}}), "RANK=8 is not below WORLD_SIZE=8"},
      {with(kTorchrun, {{"RANK", "five"}}), "RANK=five is not a whole number"},
      {with(kTorchrun, {{"RANK", "-1"}}), "RANK=-1 is not a whole number from 0"},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE=9 is more than WORLD_SIZE=8"},
      {with(kTorchrun, {{"RANK", "0"}}), "LOCAL_RANK=1 is more than RANK=0"},
      {with(kTorchrun, {{"RANK", "7"}}), "contradict each other"},
      {with(kTorchrun, {{"MASTER_PORT", "99999"}}), "MASTER_PORT=99999"},
      {without(kTorchrun, "WORLD_SIZE"), "RANK is set, but WORLD_SIZE is not"},
      {without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is not set"},
      {without(kTorchrun, "LOCAL_WORLD_SIZE"), "set LOCAL_WORLD_SIZE"},
      {without(kTorchrun, "RANK"), "LOCAL_RANK is set, but RANK and WORLD_SIZE are not"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not"},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "mpirun -x MASTER_ADDR="},
      {{{"PMI_RANK", "0"}}, "PMI_RANK is set, but PMI_SIZE is not"},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "MPI_LOCALRANKID is not"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, "SLURM_LOCALID is not"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "3"}, {"SLURM_LOCALID", "0"}, {"SLURM_NNODES", "2"}},
       "SLURM_NTASKS=3 is no multiple of SLURM_NNODES=2"},
      {{{"CONVOY_RANK", "0"}}, "CONVOY_RANK is set, but CONVOY_WORLD_SIZE is not"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(error_of([&] { detect_worker(given(c.variables)); }), HasSubstr(c.expected)) << c.expected;
  }
}

TEST(WorkerEnvironment, AllRanksOfAJobAgreeOnItsNameAndNoOtherJob) {
  const auto first = *detect_worker(given(kTorchrun));
  const auto other_rank =
      *detect_worker(given(with(kTorchrun, {{"RANK", "2"}, {"LOCAL_RANK", "2"}, {"GROUP_RANK", "0"}})));
  EXPECT_EQ(first.job, other_rank.job);
  EXPECT_EQ(first.token, other_rank.token);
  EXPECT_EQ(first.restart_count, 2);
  EXPECT_NE(first.job, first.token);
  const auto again = *detect_worker(given(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})));
  EXPECT_NE(first.job, again.job) << "an attempt must not meet what the last one left";
  const auto other_job = *detect_worker(given(with(kTorchrun, {{"MASTER_PORT", "29600"}})));
  EXPECT_NE(first.job, other_job.job);
  EXPECT_NE(first.token, other_job.token);
  EXPECT_EQ(detect_worker(given(with(kTorchrun, {{"CONVOY_JOB_TOKEN", "s"}})))->token, "s");
}

TEST(WorkerEnvironment, TheLocalRankWordCountsOnlyWithoutTheVariable) {
  EXPECT_EQ(place(kTorchrun, 3), place(kTorchrun));
  EXPECT_EQ(place(without(kTorchrun, "LOCAL_RANK"), 1), place(kTorchrun));
  EXPECT_EQ(place({}, 0), "none");
}

TEST(WorkerEnvironment, BothSpellingsOfTheLocalRankWord) {
  for (const auto& [words, expected] : std::initializer_list<std::pair<std::vector<std::string>, std::optional<int>>>{
           {{"run.yaml", "--local_rank=2", "--x", "1"}, 2},
           {{"run.yaml", "--local-rank=2", "--x", "1"}, 2},
           {{"run.yaml", "--local_rank", "2", "--x", "1"}, 2},
           {{"--local-rank", "2", "run.yaml", "--x", "1"}, 2},
           {{"run.yaml", "--local_rank=-1", "--x", "1"}, std::nullopt},
           {{"run.yaml", "--x", "1"}, std::nullopt}}) {
    std::vector<std::string> left = words;
    EXPECT_EQ(take_local_rank(left), expected);
    EXPECT_THAT(left, ElementsAre("run.yaml", "--x", "1"));
  }
  std::vector<std::string> words = {"--local_rank"};
  EXPECT_THAT(error_of([&] { take_local_rank(words); }), HasSubstr("--local_rank needs a whole number"));
}

TEST(NodeEnvironment, OneProcessPerNode) {
  const Variables kubeflow = {
      {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}, {"WORLD_SIZE", "3"}, {"RANK", "2"}};
  EXPECT_EQ(node_place(kubeflow), "2/3 0 job-master-0:23456 RANK");
  EXPECT_EQ(node_place(with(kubeflow, {{"NPROC_PER_NODE", "8"}})), "2/3 8 job-master-0:23456 RANK");
  // WORLD_SIZE may count ranks where PET_NNODES counts nodes.
  EXPECT_EQ(node_place(with(kubeflow, {{"WORLD_SIZE", "12"}, {"PET_NNODES", "3"}, {"PET_NPROC_PER_NODE", "4"}})),
            "2/3 4 job-master-0:23456 Kubeflow");
  EXPECT_EQ(node_place({{"PET_NNODES", "2"},
                        {"PET_NPROC_PER_NODE", "auto"},
                        {"PET_NODE_RANK", "1"},
                        {"PET_MASTER_ADDR", "m"},
                        {"PET_MASTER_PORT", "29400"}}),
            "1/2 0 m:29400 Kubeflow");
  EXPECT_EQ(node_place({{"PET_NNODES", "1:2"}, {"PET_RDZV_ENDPOINT", "m:29400"}, {"RANK", "0"}}),
            "0/2 0 m:29400 Kubeflow");
  EXPECT_EQ(node_place({{"PET_NNODES", "1"}}), "0/1 0 127.0.0.1:0 Kubeflow");
  EXPECT_EQ(node_place({}), "none");
  EXPECT_EQ(node_place({{"WORLD_SIZE", "1"}}), "none");
}

TEST(NodeEnvironment, WhatContradictsItselfIsNamed) {
  const auto error = [](const Variables& variables) { return error_of([&] { detect_node(given(variables)); }); };
  EXPECT_THAT(error({{"RANK", "0"}}), HasSubstr("RANK is set, but WORLD_SIZE is not"));
  EXPECT_THAT(error({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set, but RANK is not"));
  EXPECT_THAT(error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK and WORLD_SIZE contradict each other"));
  EXPECT_THAT(error({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error({{"PET_NNODES", "two"}}), HasSubstr("PET_NNODES=two is neither a number nor MIN:MAX"));
  EXPECT_THAT(error({{"PET_NNODES", "2"}}), HasSubstr("neither PET_NODE_RANK nor RANK"));
}

TEST(NodeEnvironment, ALauncherOfOneProcessPerNodeServesIt) {
  WorkerEnvironment worker;
  worker.rank = 1;
  worker.size = 2;
  worker.started_by = "Slurm";
  EXPECT_EQ(node_of(worker).node, 1);
  EXPECT_EQ(node_of(worker).nodes, 2);
  worker.local_size = 2;
  EXPECT_THAT(error_of([&] { node_of(worker); }), HasSubstr("Slurm has started 2 processes on this node"));
}

TEST(Slurm, Nodelists) {
  EXPECT_THAT(expand_nodelist("n[1-3,7]"), ElementsAre("n1", "n2", "n3", "n7"));
  EXPECT_THAT(expand_nodelist("gpu[01-03],login"), ElementsAre("gpu01", "gpu02", "gpu03", "login"));
  EXPECT_THAT(expand_nodelist("n[099-101]"), ElementsAre("n099", "n100", "n101"));
  EXPECT_THAT(expand_nodelist("r[1-2]n[3-4].x"), ElementsAre("r1n3.x", "r1n4.x", "r2n3.x", "r2n4.x"));
  for (const char* bad : {"", "n[", "n]", "n[3-1]", "n[a-b]", "n[1-999999999]", "n[]", "a,,b", "n[1-99999][1-99999]"}) {
    EXPECT_THAT(error_of([&] { expand_nodelist(bad); }), HasSubstr("cannot be read")) << bad;
  }
}

TEST(Slurm, TasksPerNode) {
  EXPECT_THAT(expand_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_tasks_per_node("4"), ElementsAre(4));
  for (const char* bad : {"", "2(x3", "x", "2(x999999999)", "2(x)", "99999999999"}) {
    EXPECT_THAT(error_of([&] { expand_tasks_per_node(bad); }), HasSubstr("cannot be read")) << bad;
  }
}

}  // namespace
}  // namespace convoy
