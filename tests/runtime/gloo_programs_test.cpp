// Random programs of collectives on `neuron`'s process group, on LibTorch's own ProcessGroupGloo,
// and in double precision. A run of the whole set: TRELLIS_COLLECTIVE_PROGRAMS=1000 (first seed:
// TRELLIS_COLLECTIVE_SEED) runtime_gloo_programs_test.
#include <cstdlib>
#include <thread>

#include "runtime/groups/device_plugin.h"
#include "tests/runtime/collective_player.h"
#include "tests/runtime/gloo_groups.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

constexpr int kMostRanks = 8;

/// [rank][instruction]
using Outputs = std::vector<std::vector<Tensors>>;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// The emulated device, for as many ranks as the largest program has.
const DevicePlugin& plugin() {
  static const DevicePlugin& loaded = []() -> const DevicePlugin& {
    const auto& library =
        DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
    library.check(library.api().configure(
        R"({"schema":"trellis.device_options/1","instance":"trn2.48xlarge","world_size":8})"));
    return library;
  }();
  return loaded;
}

Outputs play_on_neuron(const Program& program, bool on_device) {
  WorldOptions options = world(program.ranks);
  options.host_threads = program.host_threads;
  if (on_device) {
    options.plugin = &plugin();
    options.device_type = "neuron";
  }
  Outputs outputs(static_cast<std::size_t>(program.ranks));
  run_ranks(options, [&](RankContext& context) {
    Stage stage{context.rank(), context.device(), {}, true, nullptr};
    for (const auto& ranks : program.groups) {
      const bool member = std::find(ranks.begin(), ranks.end(), context.rank()) != ranks.end();
      stage.groups.push_back(member ? context.new_group("any", ranks)->getBackend(c10::kCPU)
                                    : nullptr);
    }
    outputs[static_cast<std::size_t>(context.rank())] = play(program, stage);
    if (on_device) plugin().check(plugin().api().end_step(static_cast<std::int64_t>(program.seed)));
  });
  return outputs;
}

/// ProcessGroupGloo does not average, and its all-to-all of tensor lists takes equal sizes only:
/// the oracle alone judges those.
bool gloo_can(const Instruction& in) {
  if (in.op == ProgramOp::kAllToAll) return in.splits.empty();
  return in.reduction != c10d::ReduceOp::AVG || !is_reduction(in.op);
}

Outputs play_on_gloo(const Program& program, GlooGroups& gloo) {
  std::vector<Stage> stages(static_cast<std::size_t>(program.ranks));
  std::map<std::size_t, int> lent;
  for (const auto& ranks : program.groups) {
    const auto& members = gloo.lend(static_cast<int>(ranks.size()), lent[ranks.size()]++);
    for (Stage& stage : stages) stage.groups.emplace_back();
    for (std::size_t m = 0; m < ranks.size(); ++m)
      stages[static_cast<std::size_t>(ranks[m])].groups.back() = members[m];
  }
  Outputs outputs(stages.size());
  std::vector<std::exception_ptr> errors(stages.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    stages[rank].rank = static_cast<int>(rank);
    stages[rank].can_play = gloo_can;
    threads.emplace_back([&, rank] {
      try {
        outputs[rank] = play(program, stages[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return outputs;
}

/// A reduction in double precision and, element by element, the sum of the absolute values that its
/// rounding errors scale with.
struct Reference {
  at::Tensor value;
  at::Tensor scale;
};

Reference reference(const Tensors& contributed, c10d::ReduceOp::RedOpType op) {
  Tensors wide;
  Tensors sizes;
  for (const at::Tensor& tensor : contributed) {
    wide.push_back(tensor.to(at::kDouble));
    sizes.push_back(wide.back().abs());
  }
  const at::Tensor value = reduced(wide, op);
  return {value, op == c10d::ReduceOp::PRODUCT
                     ? value.abs()
                     : reduced(sizes, op == c10d::ReduceOp::AVG ? op : c10d::ReduceOp::SUM)};
}

double epsilon(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return 0x1p-52;
    case at::kFloat: return 0x1p-23;
    case at::kHalf: return 0x1p-10;
    default: return 0x1p-7;  // bfloat16
  }
}

bool is_exact(const Instruction& in, std::size_t contributions) {
  return contributions == 1 || at::isIntegralType(in.dtype, false) ||
         in.reduction == c10d::ReduceOp::MIN || in.reduction == c10d::ReduceOp::MAX;
}

/// |got − reference| ≤ n · epsilon(partial sums) · scale + epsilon(result) · |reference|: each of n
/// − 1 operations and the last rounding err by half an epsilon of what they round.
bool within_bound(const at::Tensor& got, const Reference& expected, std::size_t n,
                  at::ScalarType partial, at::ScalarType result) {
  const at::Tensor bound = expected.scale * (static_cast<double>(n) * epsilon(partial)) +
                           expected.value.abs() * epsilon(result);
  return (got.to(at::kDouble) - expected.value).abs().le(bound).all().item<bool>();
}

/// One rank's outputs of one instruction: neuron against the definition, bit for bit, and both
/// backends against the oracle.
void compare(const Program& program, const Instruction& in, int rank, const Tensors& neuron,
             const Tensors& gloo) {
  const auto& ranks = program.groups[in.group];
  const int member = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const auto expected = contributions(in, member, static_cast<int>(ranks.size()));
  ASSERT_EQ(neuron.size(), expected.size());
  const bool has_gloo = gloo_can(in);
  ASSERT_EQ(gloo.size(), has_gloo ? expected.size() : 0);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t n = expected[i].size();
    ASSERT_TRUE(at::equal(neuron[i], reduced(expected[i], in.reduction)))
        << "neuron, output " << i << ": " << neuron[i];
    // Gloo leaves partial sums with those that are not the root.
    const bool in_gloo = has_gloo && (in.op != ProgramOp::kReduce || member == in.root);
    if (is_exact(in, n)) {
      ASSERT_TRUE(!in_gloo || at::equal(neuron[i], gloo[i]))
          << "Gloo, output " << i << ": " << gloo[i];
      continue;
    }
    const Reference oracle = reference(expected[i], in.reduction);
    ASSERT_TRUE(within_bound(neuron[i], oracle, n, in.dtype, in.dtype))
        << "neuron, output " << i << " and double precision";
    ASSERT_TRUE(!in_gloo || within_bound(gloo[i], oracle, n, in.dtype, in.dtype))
        << "Gloo, output " << i << " and double precision";
  }
}

void compare(const Program& program, const Outputs& neuron, const Outputs& gloo) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& in = program.instructions[i];
    for (int rank : program.groups[in.group]) {
      const auto r = static_cast<std::size_t>(rank);
      SCOPED_TRACE(c10::str("instruction ", i, ", rank ", rank, ": ", describe(program, in)));
      compare(program, in, rank, neuron[r][i], gloo[r][i]);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CollectivePrograms, EqualGlooAndTheOracle) {
  const std::uint64_t first = number_from("TRELLIS_COLLECTIVE_SEED", 1);
  const std::uint64_t programs = number_from("TRELLIS_COLLECTIVE_PROGRAMS", 40);
  static_cast<void>(plugin());
  GlooGroups gloo;
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    const Program program = random_program(seed);
    ASSERT_LE(program.ranks, kMostRanks);
    SCOPED_TRACE(c10::str("seed ", seed));
    compare(program, play_on_neuron(program, seed % 2 == 1), play_on_gloo(program, gloo));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace trellis::runtime::testing
