#include "base/log.h"

#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace trellis {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

/// Our own logger, not spdlog's default one, which writes to stdout: stdout belongs to results.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>("trellis", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("[%H:%M:%S %^%l%$] %v");
    return created;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel lowest) { logger().set_level(to_spdlog(lowest)); }

void log(LogLevel level, std::string_view text) { logger().log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size())); }

}  // namespace trellis
