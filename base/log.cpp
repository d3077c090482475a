#include "base/log.h"

#include <memory>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/activity.h"
#include "base/address.h"

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

LogLevel of_spdlog(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug) return LogLevel::kDebug;
  if (level == spdlog::level::info) return LogLevel::kInfo;
  return level == spdlog::level::warn ? LogLevel::kWarning : LogLevel::kError;
}

class TapSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit TapSink(LogTap::Sink receiver) : sink_(std::move(receiver)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    sink_(of_spdlog(message.level), {message.payload.data(), message.payload.size()});
  }
  void flush_() override {}
  LogTap::Sink sink_;
};

/// Our own logger, not spdlog's default one, which writes to stdout: stdout belongs to results.
struct Outputs {
  std::shared_ptr<spdlog::sinks::dist_sink_mt> taps =
      std::make_shared<spdlog::sinks::dist_sink_mt>();
  spdlog::logger logger{"trellis", {std::make_shared<spdlog::sinks::stderr_color_sink_mt>(), taps}};
  Outputs() { logger.set_pattern("[%H:%M:%S %^%l%$] %v"); }
};

Outputs& outputs() {
  static Outputs instance;
  return instance;
}

}  // namespace

void set_log_level(LogLevel lowest) { outputs().logger.set_level(to_spdlog(lowest)); }

void log(LogLevel level, std::string_view text) {
  const std::string clean = without_keys(text);
  outputs().logger.log(to_spdlog(level), spdlog::string_view_t(clean.data(), clean.size()));
  note_written();
}

struct LogTap::Impl {
  spdlog::sink_ptr sink;
};

LogTap::LogTap(Sink sink)
    : impl_(std::make_unique<Impl>(Impl{std::make_shared<TapSink>(std::move(sink))})) {
  outputs().taps->add_sink(impl_->sink);
}

LogTap::~LogTap() { outputs().taps->remove_sink(impl_->sink); }

}  // namespace trellis
