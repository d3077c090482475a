#include "trainer/pipeline/timeline.h"

#include <nlohmann/json.hpp>

#include "base/files/file_stream.h"

namespace trellis::trainer {
namespace {

using Event = nlohmann::ordered_json;

double microseconds(std::chrono::steady_clock::duration since) {
  return std::chrono::duration<double, std::micro>(since).count();
}

}  // namespace

PipelineTimeline::PipelineTimeline(std::filesystem::path file, int pipeline_rank,
                                   const std::string& title)
    : file_(std::move(file)), rank_(pipeline_rank) {
  const std::string name = "pipeline rank " + std::to_string(rank_) + ": " + title;
  events_ = Event{{"ph", "M"}, {"name", "process_name"}, {"pid", rank_}, {"args", {{"name", name}}}}
                .dump() +
            ",\n";
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
void PipelineTimeline::append(const std::string& text, bool replace) const {
  FileStream file(file_, replace ? FileStream::Mode::kReplace : FileStream::Mode::kAppend);
  file << text;
  file.check();
}

}  // namespace trellis::trainer
