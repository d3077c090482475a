#include "traces/metrics_writer.h"

#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace trellis::traces {
namespace {

void remove_incomplete_last_line(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return;
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  if (content.empty() || content.back() == '\n') return;
  const std::size_t last = content.rfind('\n');
  std::error_code ignored;  // opening for writing reports it better
  std::filesystem::resize_file(path, last == std::string::npos ? 0 : last + 1, ignored);
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path)
    : stream_(path, FileStream::Mode::kAppend) {
  remove_incomplete_last_line(path);
}

void MetricsWriter::write(const nlohmann::json& object) {
  TRELLIS_CHECK(object.is_object(), "a line of metrics.jsonl must be a JSON object");
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  stream_.write(line.data(), static_cast<std::streamsize>(line.size()));
  stream_.check();
}

}  // namespace trellis::traces
