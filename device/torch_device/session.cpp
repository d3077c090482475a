#include "device/torch_device/session.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/headeronly/version.h>

#include "base/error.h"
#include "base/json/json_text.h"
#include "device/torch_device/operators.h"

namespace trellis::device {
namespace {

using nlohmann::json;

StepMeter*& bound_meter() {
  thread_local StepMeter* meter = nullptr;  // a rank is a thread
  return meter;
}

StepMeter& this_meter(const char* what) {
  if (bound_meter() == nullptr) {
    throw Error(ExitCode::kInternal, std::string("torch_device: ") + what +
                                         " needs a thread that is bound to a rank: call "
                                         "bind_rank() first");
  }
  return *bound_meter();
}

void* open_library(const TorchDeviceOptions& options) {
  return options.library.empty() ? nullptr : load_device_library(options.library);
}

/// The first step compiles, fills caches and grows pools: it counts only where it is alone.
std::size_t warmup_of(const StepMeter& meter) {
  return meter.steps().size() == meter.num_steps() && meter.num_steps() > 1 ? 1 : 0;
}

/// The lower median: a step that was there, so that its phases add up to it.
const StepMeter::Step* median_step(const std::vector<const StepMeter::Step*>& by_time) {
  return by_time.empty() ? nullptr : by_time[(by_time.size() - 1) / 2];
}

std::vector<const StepMeter::Step*> by_time(const StepMeter& meter) {
  std::vector<const StepMeter::Step*> steps;
  for (std::size_t i = warmup_of(meter); i < meter.steps().size(); ++i)
    steps.push_back(&meter.steps()[i]);
  std::sort(steps.begin(), steps.end(),
            [](const auto* a, const auto* b) { return a->seconds < b->seconds; });
  return steps;
}

}  // namespace

TorchDeviceOptions parse_torch_device_options(const std::string& text) {
  const json document = parse_json(text, "options of the torch_device provider", "JSON");
  try {
    TorchDeviceOptions options;
    if (document.at("schema") != "trellis.torch_device_options/1") {
      throw ConfigError(
          "options of the torch_device provider: expected schema trellis.torch_device_options/1, "
          "got " +
          document.at("schema").dump());
    }
    options.device = document.at("device");
    options.library = document.at("library");
    options.backend = document.at("backend");
    options.world_size = document.at("world_size");
    options.first_rank = document.at("first_rank");
    options.first_local_rank = document.at("first_local_rank");
    options.seed = document.at("seed");
    return options;
  } catch (const json::exception& error) {
    throw ConfigError(std::string("options of the torch_device provider: ") + error.what());
  }
}

TorchDeviceSession::TorchDeviceSession(TorchDeviceOptions options)
    : options_(std::move(options)),
      library_(open_library(options_)),
      device_(find_device(options_.device, options_.library)) {
  backends_.emplace(options_.backend, library_);
  refuse_ranks_without_collectives();
  if (options_.backend == "nccl" && device_.type != c10::DeviceType::CUDA)
    throw ConfigError("--backend nccl: serves --device cuda: expected gloo or none with --device " +
                      options_.device);
}

void TorchDeviceSession::refuse_ranks_without_collectives() const {
  if (options_.world_size == 1) return;
  const auto collective = c10::Dispatcher::singleton().findSchema({"c10d::allreduce_", ""});
  const auto key =
      c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device_.type, 0));
  if (collective && collective->hasKernelForDispatchKey(key)) return;
  throw ConfigError("--device " + options_.device +
                    ": LibTorch has no collectives for it: expected one rank, got " +
                    std::to_string(options_.world_size) +
                    ": set trainer.devices and all degrees of parallelism to 1");
}

c10::Device TorchDeviceSession::device_of(int rank) const {
  if (device_.type == c10::DeviceType::CPU) return c10::Device(c10::kCPU);
  const int local = options_.first_local_rank + rank - options_.first_rank;
  return {device_.type, static_cast<c10::DeviceIndex>(local % device_.count)};
}

void TorchDeviceSession::seed(c10::Device device) const {
  if (device.is_cpu()) return;  // the process's own generator: not this provider's to change
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(options_.seed + static_cast<std::uint64_t>(device.index()));
}

void TorchDeviceSession::bind(int rank) {
  const c10::Device device = device_of(rank);
  if (!device.is_cpu()) {
    at::globalContext().lazyInitDevice(device.type());
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  }
  const std::lock_guard lock(mutex_);
  seed(device);
  std::unique_ptr<StepMeter>& meter = meters_[rank];
  meter = std::make_unique<StepMeter>(device);
  bound_meter() = meter.get();
  watch_phases(*meter);
}

void TorchDeviceSession::begin_step() { this_meter("begin_step").begin_step(); }
void TorchDeviceSession::end_step() { this_meter("end_step").end_step(); }

/// Null: the device keeps no account.
json TorchDeviceSession::memory_of(c10::Device device) const {
  if (device.is_cpu()) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return nullptr;
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  json memory = {{"peak_allocated_bytes", stats.allocated_bytes[kAll].peak},
                 {"peak_reserved_bytes", stats.reserved_bytes[kAll].peak}};
  try {
    memory["capacity_bytes"] = allocator->getMemoryInfo(device.index()).second;
  } catch (const c10::Error&) {  // an allocator need not know
  }
  return memory;
}

json TorchDeviceSession::rank_row(int rank, const StepMeter& meter) const {
  const auto steps = by_time(meter);
  const StepMeter::Step* const median = median_step(steps);
  json row = {{"rank", rank},
              {"device", device_of(rank).str()},
              {"clock", meter.has_events() ? "device events" : "host clock"},
              {"steps", steps.size()},
              {"warmup_steps", meter.num_steps() > 1 ? 1 : 0}};
  if (median != nullptr) {
    row["step_time_s"] = median->seconds;
    row["fastest_step_s"] = steps.front()->seconds;
    row["slowest_step_s"] = steps.back()->seconds;
    row["phases"] = median->phases;
  }
  if (json memory = memory_of(device_of(rank)); !memory.is_null())
    row["memory"] = std::move(memory);
  return row;
}

json TorchDeviceSession::measured() const {
  const std::lock_guard lock(mutex_);
  json rows = json::array();
  for (const auto& [rank, meter] : meters_) rows.push_back(rank_row(rank, *meter));
  for (const json& row : other_rows_) rows.push_back(row);
  const json* slowest = nullptr;
  for (const json& row : rows) {
    if (row.contains("step_time_s") &&
        (slowest == nullptr || row.at("step_time_s") > slowest->at("step_time_s")))
      slowest = &row;
  }
  json document = {{"schema", "trellis.measured/1"},
                   {"device", device_.name},
                   {"provider", "trellis-torch-device " TRELLIS_VERSION},
                   {"torch_version", TORCH_VERSION},
                   {"backend", options_.backend.empty() ? "host" : options_.backend}};
  if (slowest != nullptr) {
    for (const char* key : {"clock", "steps", "warmup_steps", "step_time_s", "fastest_step_s",
                            "slowest_step_s", "phases"})
      document[key] = slowest->at(key);
    document["slowest_rank"] = slowest->at("rank");
  }
  document["ranks"] = std::move(rows);
  return document;
}

json TorchDeviceSession::check_operators(const json& portability) const {
  return device::check_operators(portability, device_of(options_.first_rank));
}

std::string TorchDeviceSession::give_accounts() const { return measured().at("ranks").dump(); }

void TorchDeviceSession::take_accounts(std::string_view bytes) {
  const json rows = json::parse(bytes);
  const std::lock_guard lock(mutex_);
  for (const json& row : rows) other_rows_.push_back(row);
}

}  // namespace trellis::device
