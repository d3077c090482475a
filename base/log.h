#pragma once

#include <string_view>

namespace trellis {

/// Progress and diagnostics, always to stderr. A plain interface, because spdlog's fmt and LibTorch's clash in one file.
enum class LogLevel { kDebug, kInfo, kWarning, kError };
void set_log_level(LogLevel lowest);
void log(LogLevel level, std::string_view text);
inline void log_info(std::string_view text) { log(LogLevel::kInfo, text); }
inline void log_warning(std::string_view text) { log(LogLevel::kWarning, text); }

}  // namespace trellis
