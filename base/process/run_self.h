#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace trellis {

/// Runs this program with other arguments and returns what it printed on stdout; its progress goes
/// to stderr. Throws Error with the child's exit code when that is not 0: the child has said why.
[[nodiscard]] std::string run_self(const std::vector<std::string>& arguments);

struct ChildResult {
  int exit_code = 0;
  std::string out, err;
};
/// Runs this program once per list of arguments, at most `at_once` at the same time; `done` is
/// called for each as it ends, one after the other. Throws Error when a child cannot be run or is
/// ended from outside.
void run_selves(const std::vector<std::vector<std::string>>& children, std::size_t at_once,
                const std::function<void(std::size_t child, const ChildResult& result)>& done);

}  // namespace trellis
