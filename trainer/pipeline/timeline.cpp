#include "trainer/pipeline/timeline.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return out + "\"";
}

double microseconds(std::chrono::steady_clock::duration since) { return std::chrono::duration<double, std::micro>(since).count(); }

}  // namespace

PipelineTimeline::PipelineTimeline(std::filesystem::path file, int pipeline_rank, const std::string& title)
    : file_(std::move(file)), rank_(pipeline_rank) {
  const std::string name = "pipeline rank " + std::to_string(rank_) + ": " + title;
  events_ = "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": " + std::to_string(rank_) + ", \"args\": {\"name\": " + quoted(name) + "}},\n";
  if (rank_ == 0) append("[\n", true);
}

void PipelineTimeline::end(const Task& task) {
  const auto now = Clock::now();
  events_ += "{\"ph\": \"X\", \"cat\": \"comp\", \"name\": " + quoted(to_string(task)) + ", \"pid\": " + std::to_string(rank_) +
             ", \"tid\": " + std::to_string(task.chunk) + ", \"ts\": " + std::to_string(microseconds(start_.time_since_epoch())) +
             ", \"dur\": " + std::to_string(microseconds(now - start_)) + ", \"args\": {\"pass\": " + std::to_string(pass_) + "}},\n";
}

/// The format allows a list that is never closed: the file can be read after any pass.
void PipelineTimeline::end_pass() {
  append(events_);
  events_.clear();
  ++pass_;
}

/// One write at the file's end: other ranks write there too.
void PipelineTimeline::append(const std::string& text, bool anew) const {
  const int file = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | (anew ? O_TRUNC : 0), 0644);
  const bool written = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!written) throw ConfigError("pipeline_config.trace_file_path: " + file_.string() + ": cannot be written: " + std::strerror(error));
}

}  // namespace trellis::trainer
