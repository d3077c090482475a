#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>
#include <torch/library.h>

#include "base/activity.h"
#include "base/error.h"
#include "device/aten/hooks/process_session.h"
#include "device/aten/state/rank_state.h"
#include "sim/config/load_system.h"

/// Operators by which the Python package queries the session: torch.ops.trellis.*. Documents are
/// JSON texts with a "schema".
namespace trellis::device {
namespace {

/// The user's mistakes become ValueError in Python, the rest RuntimeError.
template <typename Body>
auto translated(Body body) -> std::invoke_result_t<Body> {
  try {
    return body();
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(error.code() != ExitCode::kConfig, error.what());
    TORCH_CHECK(false, error.what());
  }
}

c10::DeviceIndex to_index(std::int64_t device) {
  TORCH_CHECK(device >= 0 && device < available_devices(), "neuron: invalid device index ", device,
              ": expected 0 to ", available_devices() - 1);
  return static_cast<c10::DeviceIndex>(device);
}

void configure(const std::string& options) {
  translated([&] { configure_session(parse_options(options, options_of_environment())); });
}

bool is_machine_of(const SessionOptions& asked) {
  const auto what = [](const SessionOptions& o) {
    return std::tie(o.instance, o.nodes, o.world_size, o.shape_only, o.record, o.estimate_unknown);
  };
  return is_configured() && what(session().options()) == what(asked) &&
         load_system(asked).instance.logical_core_size ==
             session().system().instance.logical_core_size;
}

/// As configure(), but leaves a session alone that is what was asked for: its tensors stay usable.
void configure_unless_so(const std::string& options) {
  translated([&] {
    const SessionOptions asked = parse_options(options, options_of_environment());
    if (!is_machine_of(asked)) configure_session(asked);
  });
}

void configure_default(std::int64_t world_size) {
  translated([&] {
    SessionOptions options = default_options();
    options.world_size = static_cast<int>(world_size);
    configure_session(options);
  });
}

void bind_rank(std::int64_t rank) {
  translated([&] { bind_this_thread(static_cast<int>(rank)); });
}

/// Throws what available_devices() only logs: a wrong environment variable, an unknown instance.
std::int64_t count_devices() {
  return translated([] { return static_cast<std::int64_t>(session().options().world_size); });
}

void end_step(std::int64_t step) {
  translated([&] { end_step_on_this_thread(step); });
}

void discard_step() { discard_step_on_this_thread(); }

void forget_steps() { session().forget_steps(); }

std::string simulate_step(std::int64_t step) {
  return translated([&] { return session().simulate_step(step).dump(); });
}

at::Tensor tensor_of(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string_view bytes_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kByte && tensor.is_contiguous(),
              "expected a contiguous tensor of uint8 on the CPU");
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::vector<int> ranks_of(at::IntArrayRef ranks) { return {ranks.begin(), ranks.end()}; }

// See plugin.h: steps and accounts of ranks that are other processes.
at::Tensor give_step(at::IntArrayRef ranks) {
  return translated([&] { return tensor_of(session().give_step(ranks_of(ranks))); });
}

void take_step(const at::Tensor& bytes) {
  translated([&] { session().take_step(bytes_of(bytes)); });
}

at::Tensor give_accounts(at::IntArrayRef ranks) {
  return translated([&] { return tensor_of(session().give_accounts(ranks_of(ranks))); });
}

void take_accounts(const at::Tensor& bytes) {
  translated([&] { session().take_accounts(bytes_of(bytes)); });
}

/// Sets the activity of the Python package until the next call; "": none.
void say_activity(const std::string& what) {
  static std::atomic<Activity*> under_way{
      nullptr};  // not destroyed at the end of the process: a fork has none of its threads
  if (what.empty()) {
    delete under_way.exchange(nullptr);
  } else if (Activity* activity = under_way.load()) {
    activity->now(what);
  } else {
    under_way = new Activity(what);
  }
}

void write_trace(const std::string& path, const std::string& format) {
  translated([&] { session().write_trace(path, format); });
}

std::string memory_report() {
  return translated([] { return session().memory_report().dump(); });
}

std::string portability_report() {
  return translated([] { return session().portability_report().dump(); });
}

std::string session_options() {
  return translated([] {
    const SessionOptions& options = session().options();
    const sim::SystemConfig& system = session().system();
    return nlohmann::json{{"schema", "trellis.session/1"},
                          {"instance", options.instance},
                          {"nodes", options.nodes},
                          {"logical_core_size", system.instance.logical_core_size},
                          {"world_size", options.world_size},
                          {"shape_only", options.shape_only},
                          {"record", options.record},
                          {"estimate_unknown", options.estimate_unknown},
                          {"unlimited_memory", options.unlimited_memory},
                          {"chip", system.chip.generation},
                          {"logical_cores", system.logical_cores()},
                          {"memory_per_core_bytes", system.hbm_per_logical_core().value}}
        .dump();
  });
}

at::Generator default_generator(std::int64_t device) {
  return rank_state(to_index(device)).generator();
}

TORCH_LIBRARY_FRAGMENT(trellis, m) {
  m.def("configure(str options) -> ()", &configure);
  m.def("configure_unless_so(str options) -> ()", &configure_unless_so);
  m.def("configure_default(int world_size) -> ()", &configure_default);
  m.def("is_configured() -> bool", &is_configured);
  m.def("session_options() -> str", &session_options);
  m.def("bind_rank(int rank) -> ()", &bind_rank);
  m.def("device_count() -> int", &count_devices);
  m.def("end_step(int step) -> ()", &end_step);
  m.def("discard_step() -> ()", &discard_step);
  m.def("forget_steps() -> ()", &forget_steps);
  m.def("simulate_step(int step) -> str", &simulate_step);
  m.def("give_step(int[] ranks) -> Tensor", &give_step);
  m.def("take_step(Tensor bytes) -> ()", &take_step);
  m.def("give_accounts(int[] ranks) -> Tensor", &give_accounts);
  m.def("take_accounts(Tensor bytes) -> ()", &take_accounts);
  m.def("say_activity(str what) -> ()", &say_activity);
  m.def("write_trace(str path, str format) -> ()", &write_trace);
  m.def("memory_report() -> str", &memory_report);
  m.def("portability_report() -> str", &portability_report);
  m.def("default_generator(int device) -> Generator?", &default_generator);
}

}  // namespace
}  // namespace trellis::device
