#include "runtime/links/board.h"

#include <utility>
#include <vector>

namespace trellis::runtime {

void Board::ask(const std::string& what, const std::string& name, std::string text,
                const Reply& reply) {
  std::unique_lock lock(mutex_);
  const auto there = texts_.find(name);
  std::optional<std::string> answer;
  if (what == "put") {
    put(lock, name, std::move(text));
    answer = "";
  } else if (what == "first") {
    answer = there == texts_.end() ? text : there->second;
    if (there == texts_.end()) put(lock, name, std::move(text));
  } else if (there != texts_.end()) {
    answer = there->second;
    if (what == "take") texts_.erase(there);
  } else if (what == "read" || what == "take") {
    waiting_[name].push_back({what == "take", reply});
    return;
  }
  if (lock.owns_lock()) lock.unlock();
  reply(std::move(answer));
}

/// Unlocks when others have waited for it.
void Board::put(std::unique_lock<std::mutex>& lock, const std::string& name, std::string text) {
  std::vector<Reply> replies;
  bool is_taken = false;
  if (const auto waiting = waiting_.find(name); waiting != waiting_.end()) {
    std::erase_if(waiting->second, [&](Waiting& one) {
      if (is_taken) return false;
      is_taken = one.takes;
      replies.push_back(std::move(one.reply));
      return true;
    });
    if (waiting->second.empty()) waiting_.erase(waiting);
  }
  if (!is_taken) texts_[name] = text;
  lock.unlock();
  for (const Reply& reply : replies) reply(text);
}

}  // namespace trellis::runtime
