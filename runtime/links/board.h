#pragma once

#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace trellis::runtime {

/// Texts that the processes of a job leave for each other under names. Process 0 keeps them.
class Board {
 public:
  /// Called once, on the thread that brings the text; nullopt: there is none.
  using Reply = std::function<void(std::optional<std::string> text)>;

  /// Does what another process, or this one, asks for:
  ///
  ///     put    leaves `text`; replies when it is there
  ///     first  leaves `text` unless there is one; replies with the one that is there
  ///     has    replies at once
  ///     read   replies when there is one
  ///     take   the same, and removes it: each text has one taker
  ///
  /// Other words are without effect.
  void ask(const std::string& what, const std::string& name, std::string text, const Reply& reply);

 private:
  struct Waiting {
    bool takes = false;
    Reply reply;
  };
  void put(std::unique_lock<std::mutex>& lock, const std::string& name, std::string text);

  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::list<Waiting>> waiting_;  ///< by name
};

}  // namespace trellis::runtime
