#include <chrono>
#include <iostream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/app/guarded.h"
#include "trainer/verify/seeded_bugs.h"
#include "trainer/verify/verify.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

std::string text_of(const Deviation& deviation) {
  return deviation.what + ": relative error " + scientific(deviation.error) + ", tolerance " + scientific(deviation.tolerance);
}

void print_progress(const LayoutResult& result, int done, int of) {
  const Comparison& found = *result.comparison;
  std::cerr << "[" << done << "/" << of << "] " << result.precision << "  " << to_string(result.layout) << ": "
            << (result.passed() ? "equal; worst " : "DIFFERS; first ") << text_of(result.passed() ? found.worst : *found.first_bad) << std::endl;
}

json to_json(const Deviation& deviation) {
  return {{"what", deviation.what}, {"layer", deviation.layer}, {"error", deviation.error}, {"tolerance", deviation.tolerance}};
}

json to_json(const VerifyResult& result) {
  json layouts = json::array();
  for (const LayoutResult& one : result.layouts) {
    json entry = {{"layout", to_string(one.layout)}, {"precision", one.precision}};
    if (!one.comparison) {
      entry["illegal"] = one.why_illegal;
    } else {
      entry["equal"] = one.passed();
      entry["compared"] = one.comparison->num_compared;
      entry["worst"] = to_json(one.comparison->worst);
      if (one.comparison->first_bad) entry["first_bad"] = to_json(*one.comparison->first_bad);
    }
    layouts.push_back(std::move(entry));
  }
  return {{"schema", "trellis.verify/1"}, {"vocab_size", result.vocab_size}, {"failed", result.num_failed()}, {"layouts", std::move(layouts)}};
}

/// The worst of each precision, then what failed, then what was not run and why.
void print_summary(const VerifyRequest& request, const VerifyResult& result, double seconds) {
  const int illegal = static_cast<int>(result.layouts.size()) - result.num_run();
  std::cout << result.num_run() << " runs on " << request.ranks << " ranks against one rank, " << request.steps << " steps each, in "
            << static_cast<int>(seconds + 0.5) << " s: " << result.num_run() - result.num_failed() << " equal, " << result.num_failed()
            << " differ; " << illegal << " layouts are not legal for this configuration\n"
            << "vocabulary " << result.vocab_size << " rows in every layout\n";
  for (const std::string& precision : {std::string("fp64"), result.precision}) {
    const LayoutResult* worst = nullptr;
    for (const LayoutResult& one : result.layouts) {
      if (!one.comparison || one.precision != precision) continue;
      if (worst == nullptr || one.comparison->worst.error > worst->comparison->worst.error) worst = &one;
    }
    if (worst != nullptr) std::cout << precision << ": worst " << text_of(worst->comparison->worst) << " (" << to_string(worst->layout) << ")\n";
    if (result.precision == "fp64") break;
  }
  for (const LayoutResult& one : result.layouts) {
    if (one.passed()) continue;
    const Deviation& bad = *one.comparison->first_bad;
    std::cout << "DIFFERS  " << one.precision << "  " << to_string(one.layout) << ": " << one.comparison->num_bad << " of "
              << one.comparison->num_compared << "; first " << text_of(bad) << (bad.layer.empty() ? "" : "; layer " + bad.layer) << "\n";
  }
}

int run(const VerifyRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  const VerifyResult result = verify(request, &print_progress);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (request.json) {
    std::cout << to_json(result).dump(1) << std::endl;
  } else {
    print_summary(request, result, seconds);
  }
  return static_cast<int>(result.num_failed() > 0 ? ExitCode::kParity : ExitCode::kOk);
}

}  // namespace
}  // namespace trellis::trainer

extern "C" __attribute__((visibility("default"))) int trellis_trainer_verify(const trellis::trainer::VerifyRequest* request) {
  return trellis::trainer::guarded([request] { return trellis::trainer::run(*request); });
}
