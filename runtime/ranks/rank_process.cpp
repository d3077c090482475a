#include "runtime/ranks/rank_process.h"

#include <algorithm>
#include <utility>

#include <c10/core/AutogradState.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "base/process/launch.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/hangs/flight_files.h"
#include "runtime/hangs/flight_trace.h"
#include "runtime/links/job_store.h"

namespace trellis::runtime {
namespace {

/// For Python's code to say where it is; it may hold its lock for longer.
constexpr std::chrono::milliseconds kPlacePatience{400};

std::vector<int> numbers(const std::vector<std::int64_t>& ranks) {
  return {ranks.begin(), ranks.end()};
}

Launch launch_of(c10d::ProcessGroup& carrier, int earlier) {
  Launch launch;
  launch.launcher = "torch.distributed";
  launch.process = carrier.getRank();
  launch.processes = carrier.getSize();
  launch.address = process_environment("MASTER_ADDR");
  launch.job = process_environment("TORCHELASTIC_RUN_ID");
  launch.restart = earlier;
  return launch;
}

}  // namespace

std::string write_records(const std::filesystem::path& prefix, const std::vector<FlightDump>& dumps,
                          std::int64_t origin_ns, std::uint32_t part) {
  const std::string files = write_flight_files(prefix, dumps);
  return files + "\n" +
         append_flight_trace(prefix.parent_path() / "trace_of_the_end.pftrace", dumps, origin_ns,
                             part);
}

RankProcess::RankProcess(const std::string& library, const GroupPtr& carrier,
                         const std::vector<std::int64_t>& world, std::int64_t device,
                         std::int64_t earlier, std::int64_t timeout_ms,
                         const std::string& records) {
  options_.plugin = &DevicePlugin::load(library);
  TORCH_CHECK(options_.plugin->api().device_type != nullptr, library,
              ": expected the provider of one device");
  options_.device_type = options_.plugin->api().device_type;
  std::vector<int> ranks = numbers(world);
  options_.world_size = ranks.back() + 1;
  options_.timeout = std::chrono::milliseconds(timeout_ms);
  rank_ = ranks.at(static_cast<std::size_t>(carrier->getRank()));
  const Launch launch = launch_of(*carrier, static_cast<int>(earlier));
  link_ = std::make_unique<ProcessLink>(
      launch, c10::make_intrusive<c10d::PrefixStore>(store_prefix(launch), carrier->getStore()),
      options_.timeout, ProcessLink::Identity{{"version of trellis", TRELLIS_VERSION}});
  const std::string begin =
      link_->from_first("records", std::to_string(host_time_ns()) + " " + records);
  const auto space = begin.find(' ');
  write_ = [prefix = begin.substr(space + 1), origin = std::stoll(begin.substr(0, space)),
            part = static_cast<std::uint32_t>(rank_)](const std::vector<FlightDump>& dumps) {
    return write_records(prefix, dumps, origin, part);
  };
  rendezvous_ = std::make_shared<Rendezvous>(std::vector<int>{rank_}, 1, options_.timeout, *link_,
                                             std::move(ranks));
  dump_.emplace(*rendezvous_, write_);
  rendezvous_->speak_for({[this] { return place(); }, [this] { return (*dump_)(); }});
  rendezvous_->enter(rank_);
  rendezvous_->listen();
  context_ = std::make_unique<RankContext>(rank_, static_cast<int>(device), options_, *rendezvous_);
  crashes_.emplace();
  watch_.emplace(rendezvous_, HangWatch::Options{.dump = [this] { return (*dump_)(); }});
}

RankProcess::~RankProcess() {
  watch_.reset();
  link_->close(std::chrono::milliseconds(0));  // its threads use the rest
}

RankProcess::GroupPtr RankProcess::group(const std::string& axis,
                                         const std::vector<std::int64_t>& ranks,
                                         std::int64_t timeout_ms, std::int64_t number,
                                         const std::string& place) {
  const std::chrono::milliseconds timeout(timeout_ms);
  const std::vector<int> members = numbers(ranks);
  rendezvous_->meet_for_group(rank_, axis, members, {number, place}, timeout);
  GroupPtr group = context_->new_group(axis, members);
  group->getBackend(c10::kPrivateUse1)->setTimeout(timeout);
  return group;
}

void RankProcess::fail(const std::string& text) {
  rendezvous_->fail(rank_, std::make_exception_ptr(Error(ExitCode::kInternal, text)));
}

std::string RankProcess::leave(std::int64_t patience_ms, std::int64_t number,
                               const std::string& place) {
  if (std::exchange(has_left_, true)) return "";
  watch_.reset();
  crashes_.reset();
  rendezvous_->end(rank_);
  const GroupCount mine{number, place};
  const bool all_left = rendezvous_->leave(std::chrono::milliseconds(patience_ms), mine);
  if (number == 0 || rendezvous_->has_failed() || rendezvous_->is_notified()) return "";
  if (!all_left)
    return c10::str("rank ", rank_, " has not compared what all ranks did: some go on ",
                    patience_ms / 1000, " s after it has ended");
  rendezvous_->check_group_counts(rank_, mine);
  rendezvous_->check_complete();
  return "";
}

bool RankProcess::is_asked(bool single_thread) {
  rendezvous_->set_single_thread(single_thread);
  const std::lock_guard lock(mutex_);
  return is_asked_;
}

void RankProcess::answer(const std::string& place) {
  const std::lock_guard lock(mutex_);
  is_asked_ = false;
  place_ = place;
  answered_.notify_all();
}

std::string RankProcess::place() {
  std::unique_lock lock(mutex_);
  is_asked_ = true;
  const bool came = answered_.wait_for(lock, kPlacePatience, [this] { return !is_asked_; });
  return came ? place_ : ", and does not let Python's code say where";
}

}  // namespace trellis::runtime
