#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/checks/section_readers.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

struct Divisor {
  std::string text;  ///< "micro_batch_size 2 × DP 4 = 8"
  std::int64_t value;
};

/// `key` of `reader` must be a multiple of the divisor; the problem names the nearest that are.
void must_divide(SectionReader& reader, const std::string& key, std::int64_t value,
                 const Divisor& divisor, const std::string& why = "");

/// How the model and the batch divide over TP, PP, VPP, CP, EP and DP.
void check_layout(const RunConfig& config, SectionReaders& readers);

/// Checks the model and its sequence length for context parallelism. Encoders have no requirements:
/// they train with data parallelism alone.
void check_context_parallel(const RunConfig& config, SectionReaders& readers);

}  // namespace trellis::trainer
