#include "analysis/sweep/reproduce.h"

#include "base/escape.h"

namespace trellis::analysis {

std::string reproduce(const SweepResult& result, const SweepRow& row) {
  std::string text = "trellis";
  for (const std::string& word : result.space.simulate_arguments(row.candidate))
    text += " " + shell_word(word);
  return text;
}

}  // namespace trellis::analysis
