#include "sim/profile/semaphore_import.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/error.h"

namespace trellis::sim {

void SemaphoreImport::wait(const ProfileInstruction& i, std::uint32_t id, std::int64_t value) {
  waits_.push_back({i.engine, counts_[static_cast<std::size_t>(i.engine)], id, value});
}

void SemaphoreImport::post(const ProfileInstruction& i, std::uint32_t id, std::int64_t value) {
  posts_.push_back({i.engine, counts_[static_cast<std::size_t>(i.engine)], id, value});
}

void SemaphoreImport::next(const ProfileInstruction& i) {
  ++counts_[static_cast<std::size_t>(i.engine)];
}

std::string SemaphoreImport::bind(isa::Segment& segment, int semaphores, const Place& place) const {
  struct Waiter {
    std::uint16_t ours = 0;
    std::int64_t taken = 0;
  };
  std::map<std::uint32_t, std::map<isa::Engine, Waiter>> waiters;  // [theirs]
  std::map<std::uint32_t, std::int64_t> posted;
  for (const Use& post : posts_) posted[post.id] += post.value;
  std::string unsatisfied;
  std::uint16_t used = 0;
  for (const Use& wait : waits_) {
    if (wait.value == 0) continue;
    auto [at, is_new] = waiters[wait.id].try_emplace(wait.engine);
    if (is_new) at->second.ours = used++;
    if (wait.value > posted[wait.id]) {
      unsatisfied += fmt::format("{}{}: waits for S[{}]>={}, to which the program adds {} in all",
                                 unsatisfied.empty() ? "" : "\n", place(wait.engine, wait.index),
                                 wait.id, wait.value, posted[wait.id]);
    }
    // A value that has been reached once stays.
    if (wait.value <= at->second.taken) continue;
    segment.queues[static_cast<std::size_t>(wait.engine)][wait.index].waits.push_back(
        {at->second.ours, static_cast<std::uint16_t>(wait.value - at->second.taken)});
    at->second.taken = wait.value;
  }
  if (used > semaphores)
    throw ConfigError(
        fmt::format("the program needs {} pairs of a semaphore and an engine that "
                    "waits on it, the core has {} semaphores",
                    used, semaphores));
  for (const Use& post : posts_) {
    for (const auto& [engine, waiter] : waiters[post.id]) {
      segment.queues[static_cast<std::size_t>(post.engine)][post.index].updates.push_back(
          {waiter.ours, static_cast<std::uint16_t>(post.value)});
    }
  }
  return unsatisfied;
}

}  // namespace trellis::sim
