#include "trainer/files/run/rank_log.h"

#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<spdlog::logger> open(const fs::path& file) {
  try {
    auto logger = std::make_unique<spdlog::logger>(
        file.filename().string(),
        std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string()));
    logger->set_pattern("[%Y-%m-%d %H:%M:%S %l] %v");
    logger->set_level(spdlog::level::debug);
    logger->flush_on(spdlog::level::debug);  // a run that is killed leaves what it said
    return logger;
  } catch (const spdlog::spdlog_ex& error) {
    throw ConfigError(
        file.string() + ": cannot write the log: " + error.what() +
        "; choose another place with exp_manager.exp_dir or exp_manager.explicit_log_dir");
  }
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: break;
  }
  return spdlog::level::err;
}

bool writes_file(const ExpManagerSection& manager, int global_rank, int local_rank) {
  if (manager.log_global_rank_0_only) return global_rank == 0;
  return !manager.log_local_rank_0_only || local_rank == 0;
}

}  // namespace

struct RankLogs::Impl {
  std::map<int, std::unique_ptr<spdlog::logger>> ranks;  ///< null: no file
  std::unique_ptr<spdlog::logger> errors, lightning;
  std::optional<LogTap> tap;
};

namespace {

std::vector<int> all_ranks(const RunConfig& config) {
  std::vector<int> ranks(static_cast<std::size_t>(config.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

RankLogs::RankLogs(const fs::path& directory, const RunConfig& config)
    : RankLogs(directory, config, all_ranks(config)) {}

RankLogs::RankLogs(const fs::path& directory, const RunConfig& config,
                   const std::vector<int>& ranks)
    : impl_(std::make_unique<Impl>()) {
  for (const int rank : ranks) {
    const int local_rank = rank % config.trainer.devices;
    const bool writes = writes_file(config.exp_manager, rank, local_rank);
    impl_->ranks.emplace(
        rank, writes ? open(directory / fmt::format("nemo_log_globalrank-{}_localrank-{}.txt", rank,
                                                    local_rank))
                     : nullptr);
  }
  impl_->errors = open(directory / "nemo_error_log.txt");
  impl_->lightning = open(directory / "lightning_logs.txt");
  impl_->tap.emplace([this, first = ranks.front()](LogLevel level, std::string_view text) {
    write(first, level, text);
  });
}

RankLogs::~RankLogs() = default;

bool RankLogs::has_file(int rank) const { return impl_->ranks.at(rank) != nullptr; }

void RankLogs::write(int rank, LogLevel level, std::string_view text) {
  const std::string line = fmt::format("rank {}: {}", rank, text);
  if (auto& file = impl_->ranks.at(rank)) file->log(to_spdlog(level), line);
  if (level >= LogLevel::kWarning) impl_->errors->log(to_spdlog(level), line);
}

void RankLogs::lightning(std::string_view text) {
  impl_->lightning->info(spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace trellis::trainer
