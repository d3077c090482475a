#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint {

/// Keys of optimizer states: "optimizer.state.exp_avg.<weight>", as Megatron's; masters are
/// fp32_param.
inline constexpr const char* kStatePrefix = "optimizer.state.";
inline constexpr const char* kMasterState = "fp32_param";
inline constexpr const char* kEmaState = "ema";
[[nodiscard]] std::string state_prefix(const std::string& state);  ///< "optimizer.state.exp_avg."

/// State and weight of a key; the state of a weight itself is "". Names of states have no dots.
struct StateKey {
  std::string state, weight;
  [[nodiscard]] std::string text() const;
  bool operator==(const StateKey&) const = default;
};
[[nodiscard]] StateKey parse_state_key(const std::string& key);

/// True if a weight has a row per token, so that its rows may be padded to another number.
[[nodiscard]] bool is_vocabulary_weight(const std::string& name);

/// Tensors that some files hold and that follow from the configuration: tables of RoPE, masks.
[[nodiscard]] bool is_derived_name(const std::string& name);

/// The type of a key that a checkpoint has; none: it has none of that name.
using StoredType = std::function<std::optional<DType>(const std::string& key)>;

/// The stored tensor that fills `key` in the type `dtype`; "" when there is none. A weight that the
/// checkpoint has in fewer bits than wanted, or not at all, comes from its master; masters and
/// moving averages that it does not have come from the weights. Moments come from nothing else.
[[nodiscard]] std::string source_key(const std::string& key, DType dtype, const StoredType& stored);

}  // namespace trellis::checkpoint
