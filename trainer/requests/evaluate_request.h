#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis evaluate` was asked for. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct EvaluateRequest {
  std::string config_file;
  std::vector<std::string> overrides;  ///< key.path=value
  std::string data;                    ///< file or folder of records
  std::string checkpoint;  ///< one, or a folder of them; "": the newest of the run's own
  std::vector<std::string> metrics = {"loss"};  ///< loss, exact_match, rouge
  std::string answers;                          ///< file that the answers go to; "": none
  std::int64_t limit = 0;                       ///< the first records only; 0: all
  std::int64_t batch = 0;  ///< records that a rank reads together; 0: data.micro_batch_size
  std::int64_t max_new_tokens = 128;
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::int64_t seed = 0;
  std::string device = "cpu";
  std::string device_library, device_plugin, backend;  ///< see RunRequest
  std::string instance;  ///< the machine to emulate, for another device
  int host_threads = 0;  ///< 0: one per host core
  bool json = false;     ///< one JSON document on stdout
  /// Gets the text of `answers` when there is such a file, before anything is printed.
  std::function<void(const std::string& text)> answered;
};

}  // namespace trellis::trainer

/// Evaluates, prints, returns the exit code; throws nothing.
extern "C" int trellis_trainer_evaluate(const trellis::trainer::EvaluateRequest* request);
using trellis_trainer_evaluate_fn = int (*)(const trellis::trainer::EvaluateRequest*);
