#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/run_source.h"

namespace trellis::trainer {

/// Arguments of `trellis simulate --generate`. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct AnswerRequest : RunSource {
  std::int64_t batch = 1;             ///< prompts that each data-parallel rank reads together
  std::int64_t prompt_tokens = 1;     ///< of each prompt
  std::int64_t max_new_tokens = 128;  ///< of each answer
  bool json = false;                  ///< one JSON document on stdout
};

}  // namespace trellis::trainer
