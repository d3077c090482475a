#include <deque>
#include <memory>

#include <c10/core/AutogradState.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "base/error.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/hangs/crash.h"
#include "runtime/hangs/dump_once.h"
#include "runtime/hangs/hang_watch.h"
#include "runtime/ranks/rank_process.h"
#include "runtime/ranks/world.h"
#include "runtime/rendezvous/rendezvous.h"

/// Classes that make this room usable from Python: torch.classes.trellis.RankWorld for ranks that
/// are threads, torch.classes.trellis.RankProcess for one that is a process. Both return a
/// ProcessGroup; Python unboxes it and takes its backend.
namespace trellis::runtime {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// The ranks of one process, each on a thread that the caller made. Calls other than the
/// constructor come from the rank's own thread. All of them may run at once: a thread of Python
/// holds its own lock, so none may wait for a permit to run.
class RankWorld final : public torch::CustomClassHolder {
 public:
  RankWorld(const std::string& library, std::int64_t world_size, bool shape_only,
            std::int64_t timeout_ms, const std::string& records)
      : write_([records, origin = host_time_ns()](const std::vector<FlightDump>& dumps) {
          return write_records(records, dumps, origin, 0);
        }) {
    options_.plugin = &DevicePlugin::load(library);
    TORCH_CHECK(options_.plugin->api().device_type != nullptr, library,
                ": expected the provider of one device, whose ranks can be threads of Python");
    options_.device_type = options_.plugin->api().device_type;
    options_.world_size = static_cast<int>(world_size);
    options_.host_threads = options_.world_size;
    options_.shape_only = shape_only;
    options_.timeout = std::chrono::milliseconds(timeout_ms);
    std::vector<int> everyone(static_cast<std::size_t>(options_.world_size));
    std::iota(everyone.begin(), everyone.end(), 0);
    rendezvous_ = std::make_shared<Rendezvous>(everyone, options_.host_threads, options_.timeout);
    dump_.emplace(*rendezvous_, write_);
    signal_stacks_.resize(everyone.size());
    for (int rank : everyone)
      ranks_.push_back(std::make_unique<RankContext>(rank, rank, options_, *rendezvous_));
  }

  /// From now on stuck ranks are reported on stderr: see HangWatch. `python_signal`: raised after
  /// it. Call it once.
  void watch(bool exit, std::int64_t python_signal) {
    crashes_.emplace();
    watch_ = std::make_unique<HangWatch>(
        rendezvous_,
        HangWatch::Options{exit, static_cast<int>(python_signal), [this] { return (*dump_)(); }});
  }
  /// Writes what each rank did last, once; returns where it is.
  [[nodiscard]] std::string records() { return (*dump_)(); }
  void stop_watching() {
    watch_.reset();
    crashes_.reset();
  }
  void beat() { watch_->beat(); }                                    ///< see HangWatch
  void python_stacks_written() { watch_->python_stacks_written(); }  ///< see HangWatch
  /// The ranks that go on although they should have ended.
  [[nodiscard]] std::vector<std::int64_t> overdue() const {
    std::vector<std::int64_t> ranks;
    if (const auto overdue = rendezvous_->overdue()) {
      for (const Rendezvous::Whereabouts& each : overdue->ranks) ranks.push_back(each.rank);
    }
    return ranks;
  }
  /// Why they should have; "" when overdue() is empty.
  [[nodiscard]] std::string cause() const {
    const auto overdue = rendezvous_->overdue();
    return overdue ? overdue->cause : "";
  }
  /// Throws for what only some ranks did, once all have ended.
  void check_complete() const { rendezvous_->check_complete(); }

  void enter(std::int64_t rank) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    options_.plugin->check(options_.plugin->api().bind_rank(static_cast<std::int32_t>(rank)));
    signal_stacks_[static_cast<std::size_t>(index(rank))].emplace();
    rendezvous_->enter(index(rank));
  }
  void leave(std::int64_t rank) {
    rendezvous_->end(index(rank));
    signal_stacks_[static_cast<std::size_t>(index(rank))].reset();
  }
  /// `hang`: the cause is a hang or a mismatch, which every rank has waited for already.
  void fail(std::int64_t rank, const std::string& cause, bool hang) {
    rendezvous_->fail(index(rank), std::make_exception_ptr(
                                       Error(hang ? ExitCode::kHang : ExitCode::kInternal, cause)));
  }
  void begin_step(std::int64_t rank, std::int64_t step) { context(rank).begin_step(step); }
  void barrier(std::int64_t rank) { rendezvous_->host_barrier(index(rank)); }
  GroupPtr group(std::int64_t rank, const std::string& axis,
                 const std::vector<std::int64_t>& ranks) {
    return context(rank).new_group(axis, {ranks.begin(), ranks.end()});
  }

 private:
  [[nodiscard]] int index(std::int64_t rank) const {
    TORCH_CHECK(rank >= 0 && rank < options_.world_size, "expected a rank between 0 and ",
                options_.world_size - 1, ", got ", rank);
    return static_cast<int>(rank);
  }
  RankContext& context(std::int64_t rank) { return *ranks_[static_cast<std::size_t>(index(rank))]; }

  WorldOptions options_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::vector<std::unique_ptr<RankContext>> ranks_;
  FlightDumpWriter write_;
  std::optional<DumpOnce> dump_;
  std::deque<std::optional<SignalStack>> signal_stacks_;  ///< by rank, of its thread
  std::optional<CrashHandler> crashes_;
  std::unique_ptr<HangWatch> watch_;  ///< last: it uses the others
};

TORCH_LIBRARY_FRAGMENT(trellis, m) {
  m.class_<RankWorld>("RankWorld")
      .def(torch::init<const std::string&, std::int64_t, bool, std::int64_t, const std::string&>())
      .def("watch", &RankWorld::watch)
      .def("stop_watching", &RankWorld::stop_watching)
      .def("beat", &RankWorld::beat)
      .def("python_stacks_written", &RankWorld::python_stacks_written)
      .def("overdue", &RankWorld::overdue)
      .def("cause", &RankWorld::cause)
      .def("records", &RankWorld::records)
      .def("check_complete", &RankWorld::check_complete)
      .def("enter", &RankWorld::enter)
      .def("leave", &RankWorld::leave)
      .def("fail", &RankWorld::fail)
      .def("begin_step", &RankWorld::begin_step)
      .def("barrier", &RankWorld::barrier)
      .def("group", &RankWorld::group);
  m.class_<RankProcess>("RankProcess")
      .def(torch::init<const std::string&, const GroupPtr&, const std::vector<std::int64_t>&,
                       std::int64_t, std::int64_t, std::int64_t, const std::string&>())
      .def("group", &RankProcess::group)
      .def("fail", &RankProcess::fail)
      .def("leave", &RankProcess::leave)
      .def("is_asked", &RankProcess::is_asked)
      .def("answer", &RankProcess::answer);
}

}  // namespace
}  // namespace trellis::runtime
