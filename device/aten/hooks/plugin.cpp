#include "device/plugin.h"

#include <string>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>
#include <torch/headeronly/version.h>

#include "base/error.h"
#include "base/log.h"
#include "device/aten/dispatch/recording.h"
#include "device/aten/hooks/plugin_border.h"
#include "device/aten/hooks/process_session.h"

/// The C ABI of the emulated device: forwards to one process-wide Session. No exception passes this
/// border.
namespace {

using trellis::Error;
using trellis::ExitCode;
using trellis::device::BufferCategory;
using trellis::device::guarded;
using trellis::device::RankState;

RankState& this_rank(const char* what) {
  RankState* const rank = trellis::device::bound_rank();
  if (rank == nullptr)
    throw Error(ExitCode::kInternal,
                std::string("neuron: ") + what +
                    " needs a thread that is bound to a rank: call bind_rank() first");
  return *rank;
}

/// As for operators: what a thread that is bound to no rank communicates is not recorded (nullptr).
RankState* recorded_rank() {
  if (RankState* const rank = trellis::device::bound_rank(); rank != nullptr) return rank;
  RankState& here = trellis::device::rank_state(trellis::device::current_device());
  if (here.recorder().recording() && here.first_time("unbound communication"))
    trellis::log_warning(
        "communications of a thread that is not bound to a rank run but are not recorded: call "
        "bind_rank on the thread");
  return nullptr;
}

// ── the functions of the table ──

int configure(const char* text) {
  return guarded([&] {
    trellis::device::configure_session(
        trellis::device::parse_options(text == nullptr ? "{}" : text));
    return 0;
  });
}

int bind_rank(std::int32_t rank) {
  return guarded([&] {
    trellis::device::bind_this_thread(trellis::device::session().index_of(rank));
    return 0;
  });
}

void check_array(const void* array, std::int32_t count, const char* what) {
  if (count < 0 || (count > 0 && array == nullptr))
    throw Error(ExitCode::kInternal, std::string("neuron: ") + what + " is missing");
}

trellis::device::CommRequest to_request(const trellis_comm& comm) {
  check_array(comm.ranks, comm.num_ranks, "comm_start: ranks");
  check_array(comm.inputs, comm.num_inputs, "comm_start: inputs");
  check_array(comm.outputs, comm.num_outputs, "comm_start: outputs");
  if (comm.kind < TRELLIS_ALL_REDUCE || comm.kind > TRELLIS_BARRIER) {
    throw Error(ExitCode::kInternal,
                "neuron: comm_start: unknown kind " + std::to_string(comm.kind));
  }
  trellis::device::CommRequest request;
  request.kind = static_cast<trellis::sim::CollectiveKind>(comm.kind);
  request.axis = comm.axis == nullptr ? "" : comm.axis;
  request.ranks.assign(comm.ranks, comm.ranks + comm.num_ranks);
  request.sequence = comm.sequence;
  request.elements = comm.elements;
  request.dtype =
      trellis::device::record_type(static_cast<c10::ScalarType>(comm.scalar_type)).dtype;
  return request;
}

const at::Tensor& tensor_at(void* const* tensors, std::int32_t index) {
  return *static_cast<const at::Tensor*>(tensors[index]);
}

std::int64_t comm_start(const trellis_comm* comm) {
  return guarded([&]() -> std::int64_t {
    const trellis::device::CommRequest request = to_request(*comm);
    RankState* const rank = recorded_rank();
    if (rank == nullptr) return TRELLIS_NOT_RECORDED;
    trellis::device::Operands operands(*rank);
    for (std::int32_t i = 0; i < comm->num_inputs; ++i) {
      const at::Tensor& tensor = tensor_at(comm->inputs, i);
      if (tensor.is_privateuseone()) operands.add_input(*tensor.unsafeGetTensorImpl());
    }
    for (std::int32_t i = 0; i < comm->num_outputs; ++i) {
      const at::Tensor& tensor = tensor_at(comm->outputs, i);
      if (tensor.is_privateuseone()) operands.add_output(*tensor.unsafeGetTensorImpl());
    }
    return operands.comm_start(request);
  });
}

int comm_wait(std::int64_t handle) {
  return guarded([&] {
    if (handle == TRELLIS_NOT_RECORDED) return 0;
    if (RankState* const rank = recorded_rank(); rank != nullptr)
      rank->recorder().comm_wait(handle);
    return 0;
  });
}

int set_category(const void* tensor, std::int32_t category) {
  return guarded([&] {
    if (category < 0 || category >= trellis::device::kNumBufferCategories) {
      throw Error(ExitCode::kInternal,
                  "neuron: set_category: unknown category " + std::to_string(category));
    }
    const auto& subject = *static_cast<const at::Tensor*>(tensor);
    if (subject.is_privateuseone() && subject.has_storage()) {
      trellis::device::storage_of(subject).set_category(static_cast<BufferCategory>(category));
    }
    return 0;
  });
}

int mark_period() {
  return guarded([&] {
    RankState& rank = this_rank("mark_period");
    rank.settle();
    rank.recorder().mark_period();
    return 0;
  });
}

/// A tensor like `kept`, over its own block.
at::Tensor* new_over(RankState& rank, const at::Tensor& kept, trellis::device::MemoryBlock& block) {
  c10::intrusive_ptr<c10::StorageImpl> storage = trellis::device::new_storage(rank, 0);
  static_cast<trellis::device::NeuronStorage&>(*storage).take_block(
      block, static_cast<std::int64_t>(kept.storage().nbytes()));
  auto tensor = kept.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  tensor->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  return new at::Tensor(std::move(tensor));
}

int repeat_period(std::int64_t times, void* const* kept, std::int32_t num_kept, void** copies) {
  return guarded([&] {
    check_array(kept, num_kept, "repeat_period: kept");
    RankState& rank = this_rank("repeat_period");
    rank.settle();
    std::vector<trellis::device::MemoryBlock*> blocks;
    for (std::int32_t i = 0; i < num_kept; ++i)
      blocks.push_back(trellis::device::storage_of(tensor_at(kept, i)).block());
    const auto repeated = rank.recorder().repeat_period(times, {blocks.data(), blocks.size()});
    if (!repeated) return 1;
    for (std::size_t i = 0; i < repeated->size(); ++i) {
      copies[i] = new_over(rank, tensor_at(kept, static_cast<std::int32_t>(i % blocks.size())),
                           *(*repeated)[i]);
    }
    return 0;
  });
}

int end_step(std::int64_t step) {
  return guarded([&] {
    trellis::device::end_step_on_this_thread(step);
    return 0;
  });
}

int report_text(std::string& kept, const nlohmann::json& report, const char** text) {
  kept = report.dump();
  *text = kept.c_str();
  return 0;
}

int simulate_step(std::int64_t step, const char** report) {
  static std::string kept;
  return guarded(
      [&] { return report_text(kept, trellis::device::session().simulate_step(step), report); });
}

int write_trace(const char* path, const char* format) {
  return guarded([&] {
    trellis::device::session().write_trace(path, format);
    return 0;
  });
}

int memory_report(const char** report) {
  static std::string kept;
  return guarded(
      [&] { return report_text(kept, trellis::device::session().memory_report(), report); });
}

int portability_report(const char** report) {
  static std::string kept;
  return guarded(
      [&] { return report_text(kept, trellis::device::session().portability_report(), report); });
}

using trellis::device::Session;

int give(std::string& kept, std::string (Session::*what)(const std::vector<int>&),
         const std::int32_t* ranks, std::int32_t num_ranks, const char** bytes,
         std::int64_t* size) {
  return guarded([&] {
    kept = (trellis::device::session().*what)({ranks, ranks + num_ranks});
    *bytes = kept.data();
    *size = static_cast<std::int64_t>(kept.size());
    return 0;
  });
}

int take(void (Session::*what)(std::string_view), const char* bytes, std::int64_t size) {
  return guarded([&] {
    (trellis::device::session().*what)({bytes, static_cast<std::size_t>(size)});
    return 0;
  });
}

int give_step(const std::int32_t* ranks, std::int32_t num_ranks, const char** bytes,
              std::int64_t* size) {
  static std::string kept;
  return give(kept, &Session::give_step, ranks, num_ranks, bytes, size);
}

int take_step(const char* bytes, std::int64_t size) {
  return take(&Session::take_step, bytes, size);
}

int give_accounts(const std::int32_t* ranks, std::int32_t num_ranks, const char** bytes,
                  std::int64_t* size) {
  static std::string kept;
  return give(kept, &Session::give_accounts, ranks, num_ranks, bytes, size);
}

int take_accounts(const char* bytes, std::int64_t size) {
  return take(&Session::take_accounts, bytes, size);
}

constexpr trellis_device_plugin_t kPlugin = {
    .abi_version = TRELLIS_PLUGIN_ABI_VERSION,
    .struct_size = sizeof(trellis_device_plugin_t),
    .device_type = "neuron",
    .provider = "trellis-emulator " TRELLIS_VERSION,
    .torch_version = TORCH_VERSION,
    .last_error = trellis::device::last_plugin_error,
    .configure = configure,
    .bind_rank = bind_rank,
    .comm_start = comm_start,
    .comm_wait = comm_wait,
    .set_category = set_category,
    .end_step = end_step,
    .simulate_step = simulate_step,
    .write_trace = write_trace,
    .memory_report = memory_report,
    .portability_report = portability_report,
    .mark_period = mark_period,
    .repeat_period = repeat_period,
    .give_step = give_step,
    .take_step = take_step,
    .give_accounts = give_accounts,
    .take_accounts = take_accounts,
};

}  // namespace

/// The host compares abi_version and torch_version itself: both are in the table, so that its
/// message can name them.
extern "C" __attribute__((visibility("default"))) const trellis_device_plugin_t*
trellis_device_plugin(std::uint32_t, const char*) {
  return &kPlugin;
}
