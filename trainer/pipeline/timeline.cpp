#include "trainer/pipeline/timeline.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trellis::trainer {
namespace {

using Event = nlohmann::ordered_json;

double microseconds(std::chrono::steady_clock::duration since) { return std::chrono::duration<double, std::micro>(since).count(); }

}  // namespace

PipelineTimeline::PipelineTimeline(std::filesystem::path file, int pipeline_rank, const std::string& title)
    : file_(std::move(file)), rank_(pipeline_rank) {
  const std::string name = "pipeline rank " + std::to_string(rank_) + ": " + title;
  events_ = Event{{"ph", "M"}, {"name", "process_name"}, {"pid", rank_}, {"args", {{"name", name}}}}.dump() + ",\n";
  if (rank_ == 0) append("[\n", true);
}

void PipelineTimeline::end(const Task& task) {
  const auto now = Clock::now();
  const Event event{{"ph", "X"},
                    {"cat", "comp"},
                    {"name", to_string(task)},
                    {"pid", rank_},
                    {"tid", task.chunk},
                    {"ts", microseconds(start_.time_since_epoch())},
                    {"dur", microseconds(now - start_)},
                    {"args", {{"pass", pass_}}}};
  events_ += event.dump() + ",\n";
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
