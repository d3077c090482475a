// Random programs of collectives on eight ranks, with waits put off, against one thread that plays
// all ranks one after the other: bit for bit.
#include <functional>
#include <random>

#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

constexpr int kRanks = 8;
constexpr int kRegisters = 3;
constexpr std::int64_t kElements = 840;  // divides by every group size
constexpr int kPrograms = 300;

using Ranks = std::vector<int>;
/// Groups that cover the world without overlap, so that every rank has exactly one to speak in.
using Partition = std::vector<Ranks>;

enum class Kind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kUnevenAllToAll,
  kBroadcast,
  kReduce,
  kShift,
  kBarrier
};
constexpr int kKinds = 9;

struct Instruction {
  Kind kind = Kind::kBarrier;
  std::size_t partition = 0;
  std::size_t reg = 0;
  int root = 0;
  c10d::ReduceOp::RedOpType reduce = c10d::ReduceOp::SUM;
  bool wait_now = true;
};

struct Program {
  at::ScalarType dtype = at::kFloat;
  int host_threads = 1;
  std::vector<Partition> partitions;
  std::vector<Instruction> instructions;
};

Partition random_partition(std::mt19937_64& random) {
  Ranks order = all_ranks(kRanks);
  std::shuffle(order.begin(), order.end(), random);
  Partition partition;
  for (std::size_t begin = 0; begin < order.size();) {
    const std::size_t size = std::min<std::size_t>(1 + random() % 8, order.size() - begin);
    partition.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                           order.begin() + static_cast<std::ptrdiff_t>(begin + size));
    begin += size;
  }
  return partition;
}

Program random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Program program;
  program.dtype = std::array{at::kFloat, at::kDouble, at::kBFloat16, at::kLong}[random() % 4];
  program.host_threads = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < 3; ++i) program.partitions.push_back(random_partition(random));
  constexpr std::array kReductions = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::MIN,
                                      c10d::ReduceOp::MAX, c10d::ReduceOp::PRODUCT};
  for (int i = 0; i < 16; ++i) {
    program.instructions.push_back({static_cast<Kind>(random() % kKinds),
                                    random() % program.partitions.size(), random() % kRegisters,
                                    static_cast<int>(random() % kRanks),
                                    kReductions[random() % kReductions.size()], random() % 2 == 0});
  }
  return program;
}

/// Elements from member `from` to member `to` of an uneven all-to-all that keeps every member's
/// total at kElements.
std::int64_t split(int from, int to, int members) {
  const std::int64_t even = kElements / members;
  if (members == 1) return even;
  const int partner = (from + 1) % members;  // the next member gets more, the own block is smaller;
                                             // each receives as much as it sends
  const std::int64_t more = even / 3;
  return even + (to == partner ? more : 0) - (to == from ? more : 0);
}

/// Keeps values small on every rank in the same way, so that programs of any length stay
/// comparable.
at::Tensor tamed(const at::Tensor& x) { return at::fmod(x, 7).to(x.scalar_type()); }

/// Plays the effect of an instruction on the registers of one group's members, one after the other.
Tensors play(const Instruction& instruction, const Tensors& x) {
  const int n = static_cast<int>(x.size());
  const int root = instruction.root % n;
  const auto size = static_cast<std::size_t>(n);
  Tensors result;
  for (std::size_t m = 0; m < size; ++m) result.push_back(x[m].clone());
  const std::int64_t shard = kElements / n;
  const auto piece = [&](std::size_t m, std::int64_t begin, std::int64_t length) {
    return x[m].slice(0, begin, begin + length);
  };
  switch (instruction.kind) {
    case Kind::kAllReduce:
      for (auto& r : result) r = reduced(x, instruction.reduce);
      break;
    case Kind::kReduce:
      result[static_cast<std::size_t>(root)] = reduced(x, instruction.reduce);
      break;
    case Kind::kBroadcast:
      for (auto& r : result) r = x[static_cast<std::size_t>(root)].clone();
      break;
    case Kind::kShift:
      for (std::size_t m = 0; m < size; ++m) result[m] = x[(m + size - 1) % size].clone();
      break;
    case Kind::kAllGather: {
      Tensors shards;
      for (std::size_t m = 0; m < size; ++m) shards.push_back(piece(m, 0, shard));
      for (auto& r : result) r = at::cat(shards);
      break;
    }
    case Kind::kReduceScatter:
      for (std::size_t m = 0; m < size; ++m) {
        const auto begin = static_cast<std::int64_t>(m) * shard;
        result[m]
            .slice(0, 0, shard)
            .copy_(reduced(x, instruction.reduce).slice(0, begin, begin + shard));
      }
      break;
    case Kind::kAllToAll:
    case Kind::kUnevenAllToAll:
      for (int to = 0; to < n; ++to) {
        Tensors blocks;
        for (int from = 0; from < n; ++from) {
          std::int64_t begin = 0;
          const auto length = [&](int t) {
            return instruction.kind == Kind::kAllToAll ? shard : split(from, t, n);
          };
          for (int before = 0; before < to; ++before) begin += length(before);
          blocks.push_back(piece(static_cast<std::size_t>(from), begin, length(to)));
        }
        result[static_cast<std::size_t>(to)] = at::cat(blocks);
      }
      break;
    case Kind::kBarrier: break;
  }
  for (auto& r : result) r = tamed(r);
  return result;
}

std::vector<Tensors> start_registers(const Program& program) {
  std::vector<Tensors> registers(kRegisters);
  for (int r = 0; r < kRegisters; ++r) {
    for (int rank = 0; rank < kRanks; ++rank)
      registers[static_cast<std::size_t>(r)].push_back(
          numbers(rank, {kElements}, program.dtype, static_cast<std::uint64_t>(r)));
  }
  return registers;
}

std::vector<Tensors> oracle(const Program& program) {
  auto registers = start_registers(program);
  for (const Instruction& instruction : program.instructions) {
    Tensors& x = registers[instruction.reg];
    for (const Ranks& ranks : program.partitions[instruction.partition]) {
      Tensors members;
      for (int rank : ranks) members.push_back(x[static_cast<std::size_t>(rank)]);
      const Tensors after = play(instruction, members);
      for (std::size_t m = 0; m < ranks.size(); ++m)
        x[static_cast<std::size_t>(ranks[m])] = after[m];
    }
  }
  return registers;
}

/// One rank's side of a program. A register whose communication is not waited for yet is finished
/// before its next use.
class Player {
 public:
  Player(RankContext& context, const Program& program) : context_(context), pending_(kRegisters) {
    for (const Partition& partition : program.partitions) {
      for (const Ranks& ranks : partition) {
        if (std::find(ranks.begin(), ranks.end(), context.rank()) != ranks.end())
          groups_.push_back(context.new_group("any", ranks));
      }
    }
    for (const Tensors& by_rank : start_registers(program))
      registers_.push_back(by_rank[static_cast<std::size_t>(context.rank())]);
  }

  void run(const Instruction& instruction) {
    finish(instruction.reg);
    start(instruction);
    if (instruction.wait_now) finish(instruction.reg);
  }

  Tensors results() {
    for (std::size_t r = 0; r < registers_.size(); ++r) finish(r);
    return registers_;
  }

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    std::function<at::Tensor()> result;
  };

  void finish(std::size_t reg) {
    Pending& pending = pending_[reg];
    if (!pending.work) return;
    pending.work->wait();
    registers_[reg] = tamed(pending.result());
    pending = {};
  }

  static Pending all_to_all(const Group& group, at::Tensor x, bool uneven) {
    const int n = group->getSize();
    at::Tensor out = at::empty_like(x);
    std::vector<std::int64_t> sent, received;
    for (int m = 0; m < n && uneven; ++m) {
      sent.push_back(split(group->getRank(), m, n));
      received.push_back(split(m, group->getRank(), n));
    }
    return {group->all_to_all_single(out, x, received, sent), [out] { return out; }};
  }

  void start(const Instruction& instruction) {
    const Group& group = groups_[instruction.partition];
    const int n = group->getSize();
    const int root = instruction.root % n;
    const std::int64_t shard = kElements / n;
    at::Tensor x = registers_[instruction.reg];
    Pending& pending = pending_[instruction.reg];
    const auto in_place = [&](auto work) { pending = {work, [x] { return x; }}; };
    Tensors xs{x};
    switch (instruction.kind) {
      case Kind::kAllReduce: {
        c10d::AllreduceOptions options;
        options.reduceOp = instruction.reduce;
        return in_place(group->allreduce(xs, options));
      }
      case Kind::kReduce: {
        c10d::ReduceOptions options;
        options.reduceOp = instruction.reduce;
        options.rootRank = root;
        return in_place(group->reduce(xs, options));
      }
      case Kind::kBroadcast: {
        c10d::BroadcastOptions options;
        options.rootRank = root;
        return in_place(group->broadcast(xs, options));
      }
      case Kind::kAllGather: {
        at::Tensor mine = x.slice(0, 0, shard);
        at::Tensor whole = at::empty_like(x);
        pending = {group->all_gather_single(whole, mine), [whole] { return whole; }};
        return;
      }
      case Kind::kReduceScatter: {
        at::Tensor part = at::empty({shard}, x.options());
        c10d::ReduceScatterOptions options;
        options.reduceOp = instruction.reduce;
        pending = {group->reduce_scatter_single(part, x, options), [x, part, shard] {
                     x.slice(0, 0, shard).copy_(part);
                     return x;
                   }};
        return;
      }
      case Kind::kAllToAll: pending = all_to_all(group, x, false); return;
      case Kind::kUnevenAllToAll: pending = all_to_all(group, x, true); return;
      case Kind::kShift: {
        Tensors in{at::empty_like(x)};
        group->send(xs, (group->getRank() + 1) % n, 0)->wait();
        pending = {group->recv(in, (group->getRank() + n - 1) % n, 0), [in] { return in[0]; }};
        return;
      }
      case Kind::kBarrier: return in_place(group->barrier());
    }
  }

  RankContext& context_;
  std::vector<Group> groups_;
  Tensors registers_;
  std::vector<Pending> pending_;
};

class Programs : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Programs, EqualTheSequentialOracle) {
  constexpr std::uint64_t kPerCase = 30;
  for (std::uint64_t seed = GetParam() * kPerCase; seed < (GetParam() + 1) * kPerCase; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = random_program(seed);
    const auto expected = oracle(program);
    WorldOptions options = world(kRanks);
    options.host_threads = program.host_threads;
    std::vector<Tensors> got(kRanks);
    run_ranks(options, [&](RankContext& context) {
      Player player(context, program);
      for (const Instruction& instruction : program.instructions) player.run(instruction);
      got[static_cast<std::size_t>(context.rank())] = player.results();
    });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (std::size_t r = 0; r < kRegisters; ++r) {
        ASSERT_TRUE(at::equal(got[rank][r], expected[r][rank]))
            << "rank " << rank << ", register " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Programs, ::testing::Range<std::uint64_t>(0, kPrograms / 30));

}  // namespace
}  // namespace trellis::runtime::testing
