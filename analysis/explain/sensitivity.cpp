#include "analysis/explain/sensitivity.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"

namespace trellis::analysis {
namespace {

std::int64_t step_of(const std::string& report) {
  return nlohmann::json::parse(report).at("simulated").at("step_time_ps").get<std::int64_t>();
}

[[noreturn]] void interrupted() {
  throw Error(ExitCode::kInterrupted, "interrupted while constants were changed");
}

/// The steps to simulate: question i + 1 is `ends[i]`, question 0 the step as it is.
std::vector<StepQuestion> questions_of(
    const StepQuestion& step, const std::vector<std::pair<EndOfRange*, std::string>>& ends) {
  std::vector<StepQuestion> questions = {step};
  for (const auto& [end, key] : ends) {
    StepQuestion& question = questions.emplace_back(step);
    question.hardware.push_back(key + "=" + end->value);
    question.whole = false;
  }
  return questions;
}

}  // namespace

std::int64_t Sensitivity::swing_ps(std::int64_t step_ps) const {
  const auto change = [step_ps](const EndOfRange& end) {
    return end.step_ps ? std::abs(*end.step_ps - step_ps) : std::int64_t{0};
  };
  return std::max(change(least), change(most));
}

SensitivityResult measure_sensitivity(const StepQuestion& step,
                                      std::vector<UncertainConstant> constants, std::size_t jobs,
                                      const std::filesystem::path& scratch) {
  SensitivityResult result;
  for (UncertainConstant& constant : constants) {
    EndOfRange least{constant.least, {}}, most{constant.most, {}};
    result.constants.push_back({std::move(constant), least, most});
  }
  std::vector<std::pair<EndOfRange*, std::string>> ends, same;
  for (Sensitivity& each : result.constants) {
    for (EndOfRange* end : {&each.least, &each.most}) {
      const bool changes = end->value != each.constant.parameter.value;
      (changes ? ends : same).emplace_back(end, each.constant.parameter.key);
    }
  }
  const std::vector<StepQuestion> questions = questions_of(step, ends);
  ChildProcesses children(scratch);
  Activity activity("simulating the step with each constant at the ends of its range");
  for (std::size_t next = 0, done = 0; done < questions.size();) {
    while (next < questions.size() && children.running() < jobs &&
           !ChildProcesses::stop_requested()) {
      children.start(next, questions[next]);
      ++next;
    }
    const auto answer = children.running() == 0 ? std::nullopt : children.wait();
    if (!answer) interrupted();
    activity.count(static_cast<std::int64_t>(++done), static_cast<std::int64_t>(questions.size()));
    const bool ok = answer->exit_code == 0;
    if (answer->key == 0) {
      if (!ok) throw Error(static_cast<ExitCode>(answer->exit_code), answer->error());
      result.report = answer->out;
      result.step_ps = step_of(answer->out);
    } else if (ok) {
      ends[answer->key - 1].first->step_ps = step_of(answer->out);
    } else {
      ends[answer->key - 1].first->problem = answer->error();
    }
  }
  for (const auto& [end, key] : same) end->step_ps = result.step_ps;
  std::stable_sort(result.constants.begin(), result.constants.end(),
                   [&](const Sensitivity& a, const Sensitivity& b) {
                     return a.swing_ps(result.step_ps) > b.swing_ps(result.step_ps);
                   });
  return result;
}

}  // namespace trellis::analysis
