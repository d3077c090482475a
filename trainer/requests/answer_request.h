#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis simulate --generate` was asked for. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct AnswerRequest {
  std::string config_file;
  std::vector<std::string> overrides;  ///< key.path=value
  std::string instance;                ///< the machine to emulate
  int nodes = 1;
  std::vector<std::string> hardware;  ///< other numbers of the machine
  bool calibrated = true;             ///< false: none of its fitted numbers
  int host_threads = 0;               ///< 0: one per host core
  std::int64_t batch = 1;             ///< prompts that each data-parallel rank reads together
  std::int64_t prompt_tokens = 1;     ///< of each prompt
  std::int64_t max_new_tokens = 128;  ///< of each answer
  bool json = false;                  ///< one JSON document on stdout
};

}  // namespace trellis::trainer

/// Simulates, prints, returns the exit code; throws nothing.
extern "C" int trellis_trainer_answer(const trellis::trainer::AnswerRequest* request);
using trellis_trainer_answer_fn = int (*)(const trellis::trainer::AnswerRequest*);
