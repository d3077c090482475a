#include "device/torch_device/step_meter.h"

#include <algorithm>
#include <memory>

#include <ATen/record_function.h>

namespace trellis::device {
namespace {

constexpr std::string_view kPhase = "phase=";

StepMeter*& meter_of_thread() {
  thread_local StepMeter* meter = nullptr;  // LibTorch's callbacks are plain functions
  return meter;
}

struct OpenPhase final : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> scope_begins(const at::RecordFunction& scope) {
  const std::string_view name = scope.name();
  if (!name.starts_with(kPhase)) return nullptr;
  meter_of_thread()->enter(name.substr(kPhase.size()));
  return std::make_unique<OpenPhase>();
}

void scope_ends(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) meter_of_thread()->leave();
}

}  // namespace

void watch_phases(StepMeter& meter) {
  if (meter_of_thread() == nullptr) {
    at::addThreadLocalCallback(at::RecordFunctionCallback(&scope_begins, &scope_ends)
                                   .scopes({at::RecordScope::USER_SCOPE}));
  }
  meter_of_thread() = &meter;
}

std::size_t StepMeter::number_of(std::string_view phase) {
  const auto known = std::find(names_.begin(), names_.end(), phase);
  if (known != names_.end()) return static_cast<std::size_t>(known - names_.begin());
  names_.emplace_back(phase);
  return names_.size() - 1;
}

void StepMeter::note_border() {
  if (in_step_) borders_.push_back({clock_.mark(), open_.empty() ? 0 : open_.back()});
}

void StepMeter::enter(std::string_view phase) {
  open_.push_back(number_of(phase));
  note_border();
}

void StepMeter::leave() {
  open_.pop_back();
  note_border();
}

void StepMeter::begin_step() {
  clock_.synchronize();
  borders_.clear();
  in_step_ = true;
  began_ = std::chrono::steady_clock::now();
  note_border();
}

void StepMeter::end_step() {
  if (!in_step_) return;
  note_border();
  clock_.synchronize();
  in_step_ = false;
  Step step;
  step.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  for (std::size_t i = 0; i + 1 < borders_.size(); ++i)
    step.phases[names_[borders_[i].phase]] +=
        clock_.between(borders_[i].mark, borders_[i + 1].mark);
  steps_.push_back(std::move(step));
  if (steps_.size() > kKept) steps_.pop_front();
  ++num_steps_;
}

}  // namespace trellis::device
