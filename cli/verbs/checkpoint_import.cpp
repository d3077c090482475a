#include "cli/verbs/checkpoint_import.h"

#include <cstdint>
#include <iostream>

#include "base/activity.h"
#include "base/error.h"
#include "cli/launch/load_trainer.h"
#include "cli/output/comparison_text.h"
#include "cli/verbs/checkpoint_source.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/conversion/verify.h"

namespace trellis::cli {
namespace {

int verify(const trainer::ReshardRequest& request) {
  CheckpointReader reader(request.config_file);
  const auto source = reader.open(request.source);
  if (source == nullptr) return reader.exit_code();
  Activity activity("reading the weights back, tensors");
  const auto written = checkpoint::open_checkpoint(request.destination);
  const checkpoint::Comparison result = checkpoint::verify_import(
      *source, *written, [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  std::cout << read_back_text(result, "the source, in the types of the configuration");
  return static_cast<int>(result.differences.empty() ? ExitCode::kOk : ExitCode::kParity);
}

}  // namespace

int import_checkpoint(const trainer::ReshardRequest& request, bool with_verify) {
  const int code = call_trainer(&trainer::TrainerLibrary::reshard, request);
  return code == 0 && with_verify ? verify(request) : code;
}

}  // namespace trellis::cli
