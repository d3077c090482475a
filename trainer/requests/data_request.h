#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trellis::trainer {

struct BuildRequest;

/// What `trellis data inspect CONFIG` was asked for. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct DataInspectRequest {
  std::string config_file;
  std::vector<std::string> overrides;
  std::int64_t step = 0;
  std::optional<std::int64_t> consumed_samples;  ///< of a run that is resumed at `step`; none: of a
                                                 ///< run that began at step 0
  int data_parallel_rank = 0;
  std::int64_t rows = 2;
  bool json = false;
};

}  // namespace trellis::trainer

/// Prints what the rank reads in the step, decoded; returns the exit code; throws nothing.
extern "C" int trellis_data_inspect(const trellis::trainer::DataInspectRequest* request);
using trellis_data_inspect_fn = int (*)(const trellis::trainer::DataInspectRequest*);

/// `trellis data build --format arrow`: builds, prints, returns the exit code; throws nothing.
extern "C" int trellis_data_build(const trellis::trainer::BuildRequest* request);
using trellis_data_build_fn = int (*)(const trellis::trainer::BuildRequest*);
