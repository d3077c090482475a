#include "tests/runtime/collective_program.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>

namespace trellis::runtime::testing {
namespace {

using Random = std::mt19937_64;
using Shape = std::vector<std::int64_t>;

constexpr std::array kDtypes = {at::kDouble, at::kFloat, at::kBFloat16,
                                at::kHalf,   at::kLong,  at::kByte};

template <typename T, std::size_t n>
T one_of(const std::array<T, n>& choices, Random& random) {
  return choices[random() % n];
}

/// Nothing, one element, a handful, or more than one movement part's worth of small blocks.
std::int64_t random_extent(Random& random) {
  constexpr std::array kExtents = {0, 1, 1, 2, 3, 7, 16, 33, 100, 257};
  return one_of(kExtents, random);
}

Shape random_shape(Random& random) {
  if (random() % 2 == 0) return {random_extent(random)};
  return {random_extent(random), 1 + static_cast<std::int64_t>(random() % 5)};
}

std::vector<int> random_group(int ranks, Random& random) {
  std::vector<int> group(static_cast<std::size_t>(ranks));
  std::iota(group.begin(), group.end(), 0);
  std::shuffle(group.begin(), group.end(), random);
  group.resize(1 + random() % group.size());
  return group;
}

/// Tags of a program are distinct: Gloo pairs by tag, `neuron` by order.
std::vector<ProgramMessage> random_messages(int members, int first_tag, Random& random) {
  std::vector<ProgramMessage> messages;
  for (std::size_t i = 0; members > 1 && i < 1 + random() % 6; ++i) {
    const int from = static_cast<int>(random() % static_cast<std::uint64_t>(members));
    const int to =
        (from + 1 + static_cast<int>(random() % static_cast<std::uint64_t>(members - 1))) % members;
    messages.push_back({from, to, first_tag + static_cast<int>(i), random_extent(random)});
  }
  return messages;
}

Instruction random_instruction(const Program& program, Random& random) {
  constexpr std::array kReductions = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::MIN,
                                      c10d::ReduceOp::MAX, c10d::ReduceOp::PRODUCT};
  Instruction in;
  in.op = static_cast<ProgramOp>(random() % kProgramOps);
  in.group = random() % program.groups.size();
  in.dtype = one_of(kDtypes, random);
  in.reduction = one_of(kReductions, random);
  if (in.reduction == c10d::ReduceOp::AVG && at::isIntegralType(in.dtype, false))
    in.reduction = c10d::ReduceOp::SUM;
  in.seed = random();
  const std::size_t members = program.groups[in.group].size();
  in.root = static_cast<int>(random() % members);
  const bool several = in.op == ProgramOp::kAllReduceCoalesced ||
                       in.op == ProgramOp::kAllGatherCoalesced ||
                       in.op == ProgramOp::kReduceScatterCoalesced;
  for (std::size_t i = 0; i < (several ? 1 + random() % 4 : 1); ++i)
    in.shapes.push_back(random_shape(random));
  if (in.op == ProgramOp::kMessages)
    in.messages = random_messages(static_cast<int>(members),
                                  8 * static_cast<int>(program.instructions.size()), random);
  const bool uneven = in.op == ProgramOp::kAllToAllBase || in.op == ProgramOp::kAllToAll;
  if (uneven && random() % 4 != 0) {
    for (std::size_t from = 0; from < members; ++from) {
      in.splits.emplace_back();
      for (std::size_t to = 0; to < members; ++to)
        in.splits.back().push_back(static_cast<std::int64_t>(random() % 9));
    }
  }
  return in;
}

/// A factor on dimension 0: what a gathered tensor has.
Shape times(Shape shape, std::int64_t n) {
  shape[0] *= n;
  return shape;
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

std::int64_t rows(const Instruction& in, int from, int to) {
  if (in.splits.empty()) return in.shapes[0][0];
  return in.splits[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

template <typename Rows>
Shape summed(const Instruction& in, int members, Rows rows_of) {
  std::int64_t sum = 0;
  for (int m = 0; m < members; ++m) sum += rows_of(m);
  return with_rows(in.shapes[0], sum);
}

std::vector<Shape> input_shapes(const Instruction& in, int member, int n) {
  std::vector<Shape> shapes = in.shapes;
  switch (in.op) {
    case ProgramOp::kReduceScatterBase:
    case ProgramOp::kReduceScatterCoalesced:
      for (Shape& shape : shapes) shape = times(shape, n);
      return shapes;
    case ProgramOp::kReduceScatter:
      return std::vector<Shape>(static_cast<std::size_t>(n), shapes[0]);
    case ProgramOp::kScatter:
      return std::vector<Shape>(static_cast<std::size_t>(member == in.root ? n : 0), shapes[0]);
    case ProgramOp::kAllToAll: {
      std::vector<Shape> each;
      for (int to = 0; to < n; ++to) each.push_back(with_rows(shapes[0], rows(in, member, to)));
      return each;
    }
    case ProgramOp::kAllToAllBase:
      return {summed(in, n, [&](int to) { return rows(in, member, to); })};
    case ProgramOp::kMessages: {
      std::vector<Shape> sent;
      for (const ProgramMessage& message : in.messages) {
        if (message.from == member) sent.push_back({message.elements});
      }
      return sent;
    }
    case ProgramOp::kBarrier: return {};
    default: return shapes;
  }
}

/// Products of eight of them stay within half precision; integers wrap where uint8 must.
at::Tensor numbers(const Shape& shape, at::ScalarType dtype, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  if (dtype == at::kByte) return at::randint(0, 256, shape, generator, at::kLong).to(dtype);
  if (at::isIntegralType(dtype, false))
    return at::randint(-50, 51, shape, generator, at::kLong).to(dtype);
  const at::Tensor magnitude = at::rand(shape, generator, at::kDouble) * 1.25 + 0.5;
  const at::Tensor sign = at::randint(0, 2, shape, generator, at::kDouble) * 2 - 1;
  return (magnitude * sign).to(dtype);
}

}  // namespace

const char* name(ProgramOp op) {
  constexpr std::array<const char*, kProgramOps> kNames = {"all-reduce",
                                                           "all-reduce coalesced",
                                                           "reduce",
                                                           "broadcast",
                                                           "all-gather",
                                                           "all-gather base",
                                                           "all-gather coalesced",
                                                           "reduce-scatter",
                                                           "reduce-scatter base",
                                                           "reduce-scatter coalesced",
                                                           "gather",
                                                           "scatter",
                                                           "all-to-all",
                                                           "all-to-all base",
                                                           "messages",
                                                           "barrier"};
  return kNames[static_cast<std::size_t>(op)];
}

Program random_program(std::uint64_t seed) {
  Random random(seed);
  Program program;
  program.seed = seed;
  program.ranks = 2 + static_cast<int>(random() % 7);
  program.host_threads = 1 + static_cast<int>(random() % 4);
  std::vector<int> everyone(static_cast<std::size_t>(program.ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  program.groups.push_back(everyone);
  for (int i = 0; i < 3; ++i) program.groups.push_back(random_group(program.ranks, random));
  for (int i = 0; i < 24; ++i) program.instructions.push_back(random_instruction(program, random));
  return program;
}

std::string describe(const Program& program, const Instruction& in) {
  std::string text = c10::str(name(in.op), " of ", in.dtype, ", group [",
                              c10::Join(", ", program.groups[in.group]), "], reduction ",
                              static_cast<int>(in.reduction), ", root ", in.root, ", shapes");
  for (const Shape& shape : in.shapes) text += c10::str(" [", c10::Join(", ", shape), "]");
  for (const Shape& splits : in.splits) text += c10::str(" splits [", c10::Join(", ", splits), "]");
  for (const ProgramMessage& m : in.messages)
    text += c10::str(" ", m.from, "->", m.to, " (", m.elements, ")");
  return text;
}

Tensors inputs_of(const Instruction& in, int member, int members) {
  Tensors tensors;
  std::uint64_t seed = in.seed + static_cast<std::uint64_t>(member) * 1000;
  for (const Shape& shape : input_shapes(in, member, members))
    tensors.push_back(numbers(shape, in.dtype, ++seed));
  return tensors;
}

std::vector<Shape> output_shapes(const Instruction& in, int member, int n) {
  std::vector<Shape> shapes = in.shapes;
  switch (in.op) {
    case ProgramOp::kAllGather: return std::vector<Shape>(static_cast<std::size_t>(n), shapes[0]);
    case ProgramOp::kAllGatherBase:
    case ProgramOp::kAllGatherCoalesced:
      for (Shape& shape : shapes) shape = times(shape, n);
      return shapes;
    case ProgramOp::kGather:
      return std::vector<Shape>(static_cast<std::size_t>(member == in.root ? n : 0), shapes[0]);
    case ProgramOp::kAllToAll: {
      std::vector<Shape> each;
      for (int from = 0; from < n; ++from)
        each.push_back(with_rows(shapes[0], rows(in, from, member)));
      return each;
    }
    case ProgramOp::kAllToAllBase:
      return {summed(in, n, [&](int from) { return rows(in, from, member); })};
    case ProgramOp::kMessages: {
      std::vector<Shape> received;
      for (const ProgramMessage& message : in.messages) {
        if (message.to == member) received.push_back({message.elements});
      }
      return received;
    }
    case ProgramOp::kBarrier: return {};
    default: return shapes;
  }
}

bool is_in_place(ProgramOp op) {
  return op == ProgramOp::kAllReduce || op == ProgramOp::kAllReduceCoalesced ||
         op == ProgramOp::kReduce || op == ProgramOp::kBroadcast;
}

bool is_reduction(ProgramOp op) {
  return op == ProgramOp::kAllReduce || op == ProgramOp::kAllReduceCoalesced ||
         op == ProgramOp::kReduce || op == ProgramOp::kReduceScatter ||
         op == ProgramOp::kReduceScatterBase || op == ProgramOp::kReduceScatterCoalesced;
}

}  // namespace trellis::runtime::testing
