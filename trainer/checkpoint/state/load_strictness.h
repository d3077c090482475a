#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {

/// How a load treats tensors that only one side has: Megatron's StrictHandling. Unexpected: asked
/// for, but not in the checkpoint. Missing: in the checkpoint, but no rank asks for it.
struct LoadStrictness {
  enum class Action { kIgnore, kLog, kRaise, kReturn };
  const char* name;
  bool is_checked;  ///< else nothing is compared, and the load itself fails for what is unexpected
  Action unexpected, missing;
};
/// Megatron's eight. Throws ConfigError with all names.
[[nodiscard]] const LoadStrictness& load_strictness(const std::string& name);

struct KeyDifference {
  std::vector<std::string> missing, unexpected;  ///< of all ranks, sorted
};

/// Names that any rank of a run has; the ranks of a process share one.
class NameUnion {
 public:
  /// `name`: that of the texts which its processes leave for each other.
  NameUnion(int world_size, std::string name)
      : own_(static_cast<std::size_t>(world_size)), name_(std::move(name)) {}
  /// Collective. The names of all ranks; valid until the next call.
  [[nodiscard]] const std::set<std::string>& of(runtime::RankContext& rank,
                                                std::set<std::string> own);

 private:
  void exchange(runtime::RankContext& rank);
  std::vector<std::set<std::string>> own_;  ///< by rank
  std::set<std::string> all_;
  std::string name_;
  std::int64_t calls_ = 0;
};

/// Keys of a checkpoint.
struct StoredKeys {
  std::set<std::string> keys;  ///< that a rank must ask for
  StoredType type;
  std::string address;  ///< for texts
};

/// Collective: compares what the ranks ask for with what is stored, and does what `strictness`
/// says. Tensors that are unexpected, where this is no error, are removed from `wanted`: they keep
/// their values. Throws ConfigError with every name.
KeyDifference reconcile(runtime::RankContext& rank, NameUnion& names,
                        std::vector<LiveTensor>& wanted, const StoredKeys& stored,
                        const LoadStrictness& strictness);

}  // namespace trellis::checkpoint
