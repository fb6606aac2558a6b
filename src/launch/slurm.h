// The compressed lists that Slurm puts into the environment of its tasks.
#pragma once

#include <string>
#include <vector>

namespace convoy {

// "gpu[01-03,7],login" → gpu01 gpu02 gpu03 gpu7 login. Throws a usage error that quotes `list`.
std::vector<std::string> expand_nodelist(const std::string& list);
// "2(x3),1" → 2 2 2 1: the tasks of each node.
std::vector<int> expand_tasks_per_node(const std::string& list);

}  // namespace convoy
