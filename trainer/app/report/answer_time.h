#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/app/prepare/load_device.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// A batch of answers, by its sizes alone.
struct AnswerSizes {
  std::int64_t batch = 1;           ///< prompts that each data-parallel rank reads together
  std::int64_t prompt_tokens = 1;   ///< of the longest prompt
  std::int64_t max_new_tokens = 2;  ///< of an answer; at least 1
};

/// The two passes of the Generator, as the machine model times them.
struct AnswerTime {
  double prefill_ms = 0;            ///< until a token is read on the host
  std::optional<double> decode_ms;  ///< the same; none: answers of one token
  std::int64_t cached_tokens = 0;   ///< places of a row in the cache, all of which decode reads
  std::int64_t weight_bytes = 0, cache_bytes = 0;  ///< of the rank that has most
  std::vector<std::string> estimated;              ///< operators without a lowering
};

/// Executes prefill and one pass of decoding without weights on the emulated machine of `choice`,
/// one program each, on one rank of each class of equal ones. `config`: of
/// answers_config(). Throws ConfigError: answers that do not fit model.encoder_seq_length, a
/// layout without generation; Error(kOutOfMemory).
[[nodiscard]] AnswerTime time_answers(DeviceChoice choice, const RunConfig& config,
                                      const AnswerSizes& sizes, int host_threads);

/// Schema trellis.answer_time/1.
[[nodiscard]] nlohmann::json to_json(const AnswerTime& time, const AnswerSizes& sizes,
                                     const RunConfig& config);
/// The same for a reader, in lines.
[[nodiscard]] std::string to_text(const AnswerTime& time, const AnswerSizes& sizes,
                                  const RunConfig& config);

}  // namespace trellis::trainer
