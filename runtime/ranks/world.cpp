#include "runtime/ranks/world.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "base/log.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/groups/group_backends.h"
#include "runtime/groups/process_group_neuron.h"
#include "runtime/hangs/dump_once.h"
#include "runtime/hangs/hang_watch.h"
#include "runtime/links/process_link.h"
#include "runtime/ranks/rank_thread.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

constexpr const char* kCpu = "cpu";

std::vector<int> ranks_that_run(const WorldOptions& options) {
  if (!options.representatives.empty()) return options.representatives;
  const int processes = options.link == nullptr ? 1 : options.link->processes();
  const int each = options.world_size / processes;
  std::vector<int> ranks(static_cast<std::size_t>(each));
  std::iota(ranks.begin(), ranks.end(),
            options.link == nullptr ? 0 : options.link->process() * each);
  return ranks;
}

void check_processes(const WorldOptions& options) {
  if (options.link == nullptr) return;
  const int processes = options.link->processes();
  if (options.world_size % processes != 0) {
    throw ConfigError(c10::str("expected as many ranks in every process, got ", options.world_size,
                               " ranks and ", processes,
                               " processes: start a number of processes "
                               "that divides the ranks (trainer.devices × trainer.num_nodes)"));
  }
  if (options.shape_only)
    throw ConfigError("shapes without data need no other process: start one process");
}

void check_representatives(const WorldOptions& options) {
  const std::vector<int>& ranks = options.representatives;
  if (ranks.empty()) return;
  if (!options.shape_only)
    throw ConfigError(
        "ranks that represent others: expected shape_only, because those that do not run have no "
        "data");
  const bool ascend =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ascend || ranks.front() < 0 || ranks.back() >= options.world_size) {
    throw ConfigError(
        c10::str("ranks that represent others: expected ascending ranks of a world of ",
                 options.world_size, ", got ", c10::Join(", ", ranks)));
  }
}

void check_options(const WorldOptions& options) {
  check_processes(options);
  check_representatives(options);
  if (options.replay && !options.shape_only)
    throw ConfigError(
        "passes that are not executed: expected shape_only, because they compute nothing");
  if (options.world_size < 1)
    throw ConfigError(c10::str("world size: expected at least 1 rank, got ", options.world_size));
  if (options.host_threads < 0)
    throw ConfigError(
        c10::str("host threads: expected 0 (all cores) or more, got ", options.host_threads));
  if (options.timeout.count() <= 0)
    throw ConfigError(
        c10::str("communication timeout: expected more than 0 ms, got ", options.timeout.count()));
  if (options.plugin == nullptr && !options.backend.empty()) {
    throw ConfigError(
        c10::str("backend ", options.backend, ": no device plugin is loaded that could make it"));
  }
  if (options.device_type == kCpu && options.plugin == nullptr) return;
  if (options.plugin == nullptr) {
    throw ConfigError(c10::str("device ", options.device_type,
                               ": no device plugin is loaded: load one, or use device cpu"));
  }
  if (!options.plugin->serves(options.device_type)) {
    throw ConfigError(c10::str("device ", options.device_type, ": the loaded plugin serves \"",
                               options.plugin->api().device_type,
                               "\": use that device or load another plugin"));
  }
  if (options.replay && options.plugin->api().repeat_period == nullptr) {
    throw ConfigError(c10::str("device ", options.device_type,
                               ": its plugin repeats no passes: execute them all"));
  }
  if (!options.backend.empty() && options.plugin->api().new_backend == nullptr) {
    throw ConfigError(c10::str("backend ", options.backend, ": the plugin of device ",
                               options.device_type, " makes none: leave it out"));
  }
  if (options.plugin->api().device_of_rank != nullptr) return;
  constexpr std::size_t kMostIndices = 127;  // c10::DeviceIndex is a signed byte
  const std::size_t indices = ranks_that_run(options).size();
  if (indices > kMostIndices) {
    auto processes = static_cast<int>((indices + kMostIndices - 1) / kMostIndices);
    while (options.world_size % processes != 0) ++processes;
    throw ConfigError(c10::str(
        "device ", options.device_type, ": expected at most ", kMostIndices,
        " ranks in a process, because LibTorch's device index is a signed byte, got ", indices,
        ": start more processes, which share the ranks out, such as torchrun --nproc-per-node ",
        processes));
  }
}

/// Another backend's waits are not seen here: a rank that waits in one keeps its permit.
int permits(const WorldOptions& options) {
  if (!options.backend.empty()) return static_cast<int>(ranks_that_run(options).size());
  return options.host_threads > 0
             ? options.host_threads
             : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// The calling thread's LibTorch settings and device for the time a rank runs on it.
class RankBinding {
 public:
  explicit RankBinding(const RankContext& context) {
    // With multithreading, backward would run on an engine thread that all ranks of a device index
    // share: collectives inside would deadlock.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    at::set_num_threads(1);
    if (context.plugin() == nullptr) return;
    context.plugin()->check(context.plugin()->api().bind_rank(context.rank()));
    if (!context.device().is_cpu()) guard_.emplace(context.device());
  }

 private:
  std::optional<c10::DeviceGuard> guard_;
};

/// The exception in flight, with the rank in its text. Hangs and mismatches name theirs, the same
/// in every rank.
std::exception_ptr current_exception_of(int rank) {
  const std::string where = c10::str("raised by rank ", rank);
  const auto named = [&](const Error& error) {
    const std::string_view text = error.what();
    return error.code() == ExitCode::kHang ||
           text.find(c10::str("rank ", rank)) != std::string_view::npos ||
           text.find("raised by rank ") != std::string_view::npos;
  };
  const auto with_rank = [&](const Error& error) { return error.what() + ("\n  " + where); };
  try {
    throw;
  } catch (const ConfigError& error) {
    return named(error) ? std::current_exception()
                        : std::make_exception_ptr(ConfigError(with_rank(error)));
  } catch (const Error& error) {
    if (named(error)) return std::current_exception();
    return std::make_exception_ptr(Error(error.code(), with_rank(error)));
  } catch (c10::OutOfMemoryError&
               error) {  // the device's: a run that does not fit has its own exit code
    return std::make_exception_ptr(Error(ExitCode::kDoesNotFit, error.what_without_backtrace()));
  } catch (c10::Error& error) {
    error.add_context(where);
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

void run_rank(int rank, int seat, const WorldOptions& options, Rendezvous& rendezvous,
              const std::function<void(RankContext&)>& body) {
  rendezvous.enter(rank);
  try {
    RankContext context(rank, seat, options, rendezvous);
    const RankBinding binding(context);
    body(context);
  } catch (...) {
    rendezvous.fail(rank, current_exception_of(rank));
  }
  rendezvous.end(rank);
}

}  // namespace

namespace {

c10::Device device_of(int rank, int seat, const WorldOptions& options) {
  const bool says = options.plugin != nullptr && options.plugin->api().device_of_rank != nullptr;
  if (says) {
    std::int32_t type = 0, index = 0;
    options.plugin->check(options.plugin->api().device_of_rank(rank, &type, &index));
    return {static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index)};
  }
  if (options.device_type == kCpu) return c10::Device(c10::kCPU);
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(seat)};
}

}  // namespace

RankContext::RankContext(int rank, int seat, const WorldOptions& options, Rendezvous& rendezvous)
    : rank_(rank),
      options_(options),
      rendezvous_(rendezvous),
      device_(device_of(rank, seat, options)) {}

c10::intrusive_ptr<c10d::ProcessGroup> RankContext::new_group(const std::string& axis,
                                                              const std::vector<int>& ranks) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  TORCH_CHECK(place != ranks.end(), "new group ", axis, " [", c10::Join(", ", ranks), "]: rank ",
              rank_, " is not a member");
  for (int rank : ranks)
    TORCH_CHECK(rank >= 0 && rank < world_size(), "new group ", axis, ": rank ", rank,
                " is not in a world of ", world_size());
  const int member = static_cast<int>(place - ranks.begin());
  Rendezvous::Group& group = rendezvous_.join(axis, ranks, rank_);
  const auto backend = c10::make_intrusive<ProcessGroupNeuron>(
      rendezvous_.shared_from_this(), group, member,
      ProcessGroupNeuron::Options{device_.is_cpu() ? nullptr : options_.plugin, options_.shape_only,
                                  device()});
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(
      c10::make_intrusive<c10d::HashStore>(), member, static_cast<int>(ranks.size()));
  set_backends(*process_group, backend, {options_, rendezvous_, *group.info, member, device_});
  process_group->setGroupName(c10::str(group.info->label, " #", group.info->instance));
  process_group->setGroupDesc(axis);
  return process_group;
}

void RankContext::host_barrier(std::chrono::milliseconds timeout, std::source_location where) {
  const CallSite site(where);
  rendezvous_.host_barrier(rank_, timeout);
}

void RankContext::process_barrier(std::chrono::milliseconds timeout, std::source_location where) {
  const CallSite site(where);
  rendezvous_.process_barrier(rank_, timeout);
}

const std::vector<int>& RankContext::process_ranks() const { return rendezvous_.running(); }

std::string RankContext::take_text(const std::string& name) {
  std::optional<std::string> text = options_.link->take_text(name);
  if (!text) rendezvous_.check_section(rank_);
  if (!text) throw Cancelled();
  return std::move(*text);
}

std::map<int, at::Tensor> RankContext::exchange_bytes(
    const std::map<int, std::vector<at::Tensor>>& gives, const std::set<int>& from) {
  const std::string name = std::to_string(rendezvous_.next_call(rank_));
  std::map<int, at::Tensor> got;
  if (options_.link == nullptr || !leads_process()) return got;
  ProcessLink& link = *options_.link;
  for (const auto& [process, tensors] : gives) {
    std::vector<Outgoing::Bytes> pieces;
    for (const at::Tensor& tensor : tensors)
      pieces.emplace_back(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    link.send_bytes(process, name, std::move(pieces));
  }
  for (const int process : from) {
    const std::uint64_t interrupts = link.interrupts();
    rendezvous_.check_section(rank_);
    auto bytes = link.take_bytes(process, name, interrupts);
    if (!bytes) rendezvous_.check_section(rank_);
    if (!bytes) throw Cancelled();
    got.emplace(process, *std::move(bytes));
  }
  return got;
}

void RankContext::together(const std::function<void()>& body) { rendezvous_.together(rank_, body); }

void RankContext::begin_step(std::int64_t step) { rendezvous_.begin_step(rank_, step); }

bool RankContext::stop_requested() const { return rendezvous_.stop_requested(rank_); }

bool RankContext::agree(bool said) { return rendezvous_.agree(rank_, said); }

std::int64_t RankContext::bytes_sent() const { return rendezvous_.bytes_sent(rank_); }

namespace {

/// The math library picks its kernels when it is first called. Ranks that make that call at the
/// same time may for once get others than later, and so other last bits: the first call is made
/// here, alone.
void settle_math_library() {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({16, 16}, 0.5, dtype);
    (void)at::tanh(at::mm(x, x)).exp();
  }
}

/// Limits glibc's allocator to as many heaps as ranks run at once, and lets large blocks go back to
/// the system. Otherwise ranks that take turns would each keep their freed memory in a separate
/// heap, out of reach of the rank that runs next. It is so for the whole process from here on; a
/// program with jemalloc is not affected.
void share_heaps(std::size_t ranks, int permits) {
  if (ranks <= static_cast<std::size_t>(permits)) return;
  constexpr int kLargeBytes = 1024 * 1024;
  mallopt(M_ARENA_MAX, permits);
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
}

}  // namespace

namespace {

std::shared_ptr<Rendezvous> make_rendezvous(const WorldOptions& options,
                                            const std::vector<int>& ranks) {
  if (options.link == nullptr)
    return std::make_shared<Rendezvous>(ranks, permits(options), options.timeout);
  std::vector<int> everyone(static_cast<std::size_t>(options.world_size));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto rendezvous = std::make_shared<Rendezvous>(ranks, permits(options), options.timeout,
                                                 *options.link, std::move(everyone));
  rendezvous->listen();
  return rendezvous;
}

}  // namespace

namespace {

/// Throws the exception in flight, with the dumps' place in its text. A user's mistake needs no
/// dump.
[[noreturn]] void rethrow_with(DumpOnce& dump) {
  try {
    throw;
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    const std::string text = dump();
    if (text.empty()) throw;
    throw Error(error.code(), error.what() + ("\n" + text));
  } catch (c10::Error& error) {
    if (const std::string text = dump(); !text.empty()) error.add_context(text);
    throw;
  } catch (...) {
    if (const std::string text = dump(); !text.empty()) log_warning(text);
    throw;
  }
}

/// Throws what before_leave() threw, unless it is what the failure of a rank led to.
void leave_job(const WorldOptions& options, Rendezvous& rendezvous) {
  std::exception_ptr error;
  try {
    if (options.before_leave && !rendezvous.has_failed()) options.before_leave();
  } catch (...) {
    error = std::current_exception();
  }
  rendezvous.leave();
  if (error && !rendezvous.has_failed()) std::rethrow_exception(error);
}

}  // namespace

void run_ranks(const WorldOptions& options, const std::function<void(RankContext&)>& body) {
  check_options(options);
  at::set_num_threads(1);
  settle_math_library();
  const std::vector<int> ranks = ranks_that_run(options);
  share_heaps(ranks.size(), permits(options));
  const auto rendezvous = make_rendezvous(options, ranks);
  DumpOnce dump(*rendezvous, options.dump);
  {
    const HangWatch watch(rendezvous,
                          {.exit = options.exit_when_stuck, .dump = [&] { return dump(); }});
    std::vector<std::unique_ptr<RankThread>> threads;
    for (std::size_t seat = 0; seat < ranks.size(); ++seat) {
      const int rank = ranks[seat];
      const auto index = static_cast<int>(seat);
      try {
        threads.push_back(std::make_unique<RankThread>(
            [&, rank, index] { run_rank(rank, index, options, *rendezvous, body); }));
      } catch (...) {
        rendezvous->fail(rank, std::current_exception());
        break;
      }
    }
  }
  if (options.link != nullptr) leave_job(options, *rendezvous);
  try {
    rendezvous->rethrow_first_failure();
    rendezvous->check_complete();
  } catch (...) {
    rethrow_with(dump);
  }
}

}  // namespace trellis::runtime
