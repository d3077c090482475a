#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/config/run_source.h"
#include "trainer/requests/device_source.h"

namespace trellis::trainer {

/// Arguments of `trellis evaluate`. Plain data: the program hands it to libtrellis_trainer.so.
struct EvaluateRequest : RunSource, DeviceSource {
  std::string data;        ///< file or folder of records
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
  bool json = false;  ///< one JSON document on stdout
  /// Gets the text of `answers` when there is such a file, before anything is printed.
  std::function<void(const std::string& text)> answered;
};

}  // namespace trellis::trainer
