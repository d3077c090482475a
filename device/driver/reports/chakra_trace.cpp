#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/check.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "device/driver/reports/trace_folders.h"

namespace trellis::device {

namespace {

using protozero::pbf_writer;
using sim::ScheduleItem;

// Field numbers of Chakra's schema/protobuf/et_def.proto, named message_field as there.
enum : std::uint32_t {
  kMetadata_version = 1,
  kNode_id = 1,
  kNode_name = 2,
  kNode_type = 3,
  kNode_data_deps = 5,
  kNode_start_time_micros = 6,
  kNode_duration_micros = 7,
  kNode_attr = 10,
  kAttribute_name = 1,
  kAttribute_int32_val = 7,
  kAttribute_int64_val = 9,
  kAttribute_bool_val = 27,
  kAttribute_string_val = 29,
};
enum NodeType : std::int32_t { kComp = 4, kSend = 5, kRecv = 6, kCollective = 7 };

/// CollectiveCommType. A barrier is the all-reduce of one element that its plan is: ASTRA-sim ends
/// with an error at the schema's own BARRIER.
std::int64_t comm_type(sim::CollectiveKind kind) {
  switch (kind) {
    case sim::CollectiveKind::kAllReduce:
    case sim::CollectiveKind::kBarrier: return 0;
    case sim::CollectiveKind::kAllGather: return 2;
    case sim::CollectiveKind::kReduceScatter: return 7;
    case sim::CollectiveKind::kBroadcast: return 5;
    case sim::CollectiveKind::kAllToAll: return 6;
    case sim::CollectiveKind::kSendRecv:
    case sim::CollectiveKind::kPermute: break;
  }
  TRELLIS_CHECK(false, "a transfer is no collective");
}

/// Bytes that a member gives: the schema's size of a collective is that of its input. An all-gather
/// is planned with the size of its result.
std::int64_t input_bytes(const sim::ClusterComm& comm, std::size_t members) {
  std::int64_t elements = comm.elements;
  if (comm.kind == sim::CollectiveKind::kBarrier) elements = 1;
  if (comm.kind == sim::CollectiveKind::kAllGather) elements /= static_cast<std::int64_t>(members);
  return elements * comm.element_bytes;
}

class EtFile {
 public:
  explicit EtFile(const std::filesystem::path& path) : file_(path) {
    std::string metadata;
    pbf_writer(metadata).add_string(kMetadata_version, "0.0.4");
    write(metadata);
  }

  /// A message with its length in front.
  void write(const std::string& message) {
    std::string length;
    protozero::add_varint_to_buffer(&length, message.size());
    file_.stream() << length << message;
  }
  void finish() { file_.commit(AtomicFile::Durability::kProcess); }

 private:
  AtomicFile file_;
};

/// One rank's items as nodes. Work is sequential: each node waits for the one before, and for the
/// communications that the rank waited for in between.
class RankNodes {
 public:
  RankNodes(const sim::ClusterJob& job, int rank, const std::vector<std::string>& group_names,
            EtFile& file)
      : job_(job), rank_(rank), groups_(group_names), file_(file) {}

  void add(const std::vector<ScheduleItem>& items, const std::vector<sim::ItemTiming>& times) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const ScheduleItem& item = items[i];
      if (item.kind == ScheduleItem::Kind::kCommWait) {
        flush();
        const std::vector<std::uint64_t>& nodes = started_.at(item.comm);
        waits_.insert(waits_.end(), nodes.begin(), nodes.end());
      } else if (item.kind == ScheduleItem::Kind::kCommStart) {
        flush();
        communication(item);
      } else {
        work_ += times[i].end - times[i].start;
        busy_ = true;
      }
    }
    // A rank that ran nothing has a node of no work: ASTRA-sim ends with an error at an empty file.
    busy_ |= next_ == 0;
    flush();
  }

 private:
  /// Microseconds of all work so far are rounded, not those of each node: errors do not add up.
  void flush() {
    if (!busy_) return;
    const std::int64_t end = (work_.value + 500'000) / 1'000'000;
    node("work", kComp, end - written_, [](pbf_writer& body) {
      attribute(body, "is_cpu_op", [](pbf_writer& a) { a.add_bool(kAttribute_bool_val, false); });
    });
    written_ = end;
    busy_ = false;
  }

  void communication(const ScheduleItem& item) {
    const sim::ClusterComm& comm = job_.comms[item.comm];
    std::vector<std::uint64_t>& nodes = started_[item.comm];
    if (comm.kind == sim::CollectiveKind::kSendRecv) {
      nodes.push_back(comm_node(comm, comm.from == rank_ ? kSend : kRecv, comm.from, comm.to));
    } else if (comm.kind == sim::CollectiveKind::kPermute) {
      // The schema has none: each member sends to the next.
      const std::vector<int>& ranks = job_.groups[comm.group].ranks;
      const auto at = static_cast<std::size_t>(std::ranges::find(ranks, rank_) - ranks.begin());
      const int next = ranks[(at + 1) % ranks.size()];
      const int last = ranks[(at + ranks.size() - 1) % ranks.size()];
      nodes.push_back(comm_node(comm, kSend, rank_, next));
      nodes.push_back(comm_node(comm, kRecv, last, rank_));
    } else {
      nodes.push_back(comm_node(comm, kCollective, 0, 0));
    }
  }

  std::uint64_t comm_node(const sim::ClusterComm& comm, NodeType type, int from, int to) {
    const bool pair = type != kCollective;
    const std::uint64_t before = previous_;
    const std::uint64_t id =
        node(std::string(sim::name(comm.kind)), type, 0, [&](pbf_writer& body) {
          const auto integer = [&](const char* name, std::int64_t value) {
            attribute(body, name, [&](pbf_writer& a) { a.add_int64(kAttribute_int64_val, value); });
          };
          const auto small = [&](const char* name, std::int32_t value) {
            attribute(body, name, [&](pbf_writer& a) { a.add_int32(kAttribute_int32_val, value); });
          };
          attribute(body, "is_cpu_op",
                    [](pbf_writer& a) { a.add_bool(kAttribute_bool_val, false); });
          integer("comm_size", input_bytes(comm, job_.groups[comm.group].ranks.size()));
          if (pair) {
            small("comm_src", from);
            small("comm_dst", to);
            small("comm_tag", static_cast<std::int32_t>(comm.sequence));
          } else {
            integer("comm_type", comm_type(comm.kind));
            attribute(body, "pg_name", [&](pbf_writer& a) {
              a.add_string(kAttribute_string_val, groups_[comm.group]);
            });
          }
        });
    previous_ = before;  // work goes on next to it
    return id;
  }

  template <typename Fill>
  static void attribute(pbf_writer& body, const char* name, const Fill& fill) {
    pbf_writer one(body, kNode_attr);
    one.add_string(kAttribute_name, name);
    fill(one);
  }

  template <typename Fill>
  std::uint64_t node(const std::string& name, NodeType type, std::int64_t duration,
                     const Fill& fill) {
    std::string message;
    {
      pbf_writer body(message);
      body.add_uint64(kNode_id, next_);
      body.add_string(kNode_name, name);
      body.add_enum(kNode_type, type);
      std::vector<std::uint64_t> deps = waits_;
      if (previous_ != kNone) deps.push_back(previous_);
      std::ranges::sort(deps);
      body.add_packed_uint64(kNode_data_deps, deps.begin(), deps.end());
      body.add_uint64(kNode_duration_micros, static_cast<std::uint64_t>(duration));
      fill(body);
    }
    file_.write(message);
    if (type == kComp) waits_.clear();  // a communication does not end the wait for another
    previous_ = next_;
    return next_++;
  }

  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  const sim::ClusterJob& job_;
  int rank_;
  const std::vector<std::string>& groups_;
  EtFile& file_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> started_;  ///< communication → its nodes
  std::vector<std::uint64_t> waits_;
  std::uint64_t previous_ = kNone, next_ = 0;
  Picoseconds work_;
  std::int64_t written_ = 0;
  bool busy_ = false;
};

/// ASTRA-sim's `--comm-group-configuration`: name → ranks. Equal groups have one name. Names are
/// numbers from 1: whatever the file says, ASTRA-sim takes group 0 for all ranks.
std::vector<std::string> name_groups(const sim::ClusterJob& job,
                                     const std::filesystem::path& folder) {
  std::map<std::vector<int>, std::string> names;
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  std::vector<std::string> by_group;
  for (const sim::CommGroup& group : job.groups) {
    const auto [at, fresh] = names.try_emplace(group.ranks, fmt::format("{}", names.size() + 1));
    if (fresh) document[at->second] = group.ranks;
    by_group.push_back(at->second);
  }
  write_file_atomically(folder / "comm_groups.json", document.dump(1) + "\n");
  return by_group;
}

}  // namespace

void write_chakra_trace(const std::filesystem::path& folder, const StepTiming& step) {
  const int world = static_cast<int>(step.job.cores.size());
  if (world > kMostChakraRanks)
    throw ConfigError(fmt::format(
        "--trace-format chakra writes a file for each rank: expected at most {} ranks, got {}; "
        "simulate fewer data-parallel ranks",
        kMostChakraRanks, world));
  std::vector<std::size_t> sources(step.job.ranks.size());
  std::iota(sources.begin(), sources.end(), std::size_t{0});
  sim::ClusterJob whole;
  if (!step.job.fold.empty()) {
    sources.clear();
    std::vector<int> each(static_cast<std::size_t>(world));
    std::iota(each.begin(), each.end(), 0);
    whole = sim::unfold(step.job, sim::RankFold::with_classes(step.job.fold.mesh(), each), sources);
  }
  const sim::ClusterJob& job = step.job.fold.empty() ? step.job : whole;
  const std::vector<std::string> groups = name_groups(job, folder);
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    EtFile file(folder / fmt::format("step.{}.et", rank));
    RankNodes(job, static_cast<int>(rank), groups, file)
        .add(job.ranks[rank], step.timing.ranks[sources[rank]]);
    file.finish();
  }
}

}  // namespace trellis::device
