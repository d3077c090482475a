#include <iostream>

#include <fmt/format.h>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/run/verbs.h"
#include "trainer/data/build_hf_dataset.h"
#include "trainer/requests/data_request.h"

namespace trellis::trainer {
namespace {

int build(const BuildRequest& request) {
  const Activity activity("tokenising");
  const HfBuildResult result =
      build_hf_dataset(request, [](const std::string& line) { log_info(line); });
  std::string text = fmt::format("{}: {} rows of {} tokens from {} {}", request.output, result.rows,
                                 request.sequence_length, result.sources,
                                 request.records ? "records" : "documents");
  if (request.records)
    text += fmt::format(", {:.1f} % of them padding",
                        100.0 * static_cast<double>(result.padding) /
                            static_cast<double>(result.rows * request.sequence_length));
  if (result.dropped > 0)
    text += fmt::format("; {} tokens after the last whole row left out", result.dropped);
  std::cout << terminal_line(fmt::format("{}; vocabulary {}", text, result.vocab_size))
            << std::endl;
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
int run_build_data(const BuildRequest& request) {
  return guarded([&] { return build(request); });
}

}  // namespace trellis::trainer
