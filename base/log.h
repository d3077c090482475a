#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace trellis {

/// Progress and diagnostics, always to stderr. A plain interface, because spdlog's fmt and
/// LibTorch's clash in one file.
enum class LogLevel { kDebug, kInfo, kWarning, kError };
void set_log_level(LogLevel lowest);
void log(LogLevel level, std::string_view text);
inline void log_info(std::string_view text) { log(LogLevel::kInfo, text); }
inline void log_warning(std::string_view text) { log(LogLevel::kWarning, text); }

/// While it lives, `sink` gets every message too: on the thread that logs, one message at a time.
/// REQUIRES: `sink` does not log.
class LogTap {
 public:
  using Sink = std::function<void(LogLevel level, std::string_view text)>;
  explicit LogTap(Sink sink);
  LogTap(const LogTap&) = delete;
  LogTap& operator=(const LogTap&) = delete;
  ~LogTap();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis
