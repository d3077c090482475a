// Operations on views that are permuted, stepped and broadcast: what is laid out anew on the way
// gives the numbers of a loop over the elements.
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "analysis/selfcheck/view_modules.h"
#include "device/compiler/compile.h"
#include "device/compiler/graph/scalars.h"
#include "tests/device/compiler/graph_fixture.h"
#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/test_core.h"

namespace trellis::device::testing {
namespace {

using Contents = std::map<std::uint32_t, Values>;  // by buffer of the graph

/// The elements of a view, in the order of its dimensions.
std::vector<std::int64_t> places(const TensorView& v) {
  std::vector<std::int64_t> out{v.offset};
  for (std::size_t d = 0; d < v.sizes.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t at : out) {
      for (std::int64_t i = 0; i < v.sizes[d]; ++i) next.push_back(at + i * v.strides[d]);
    }
    out = std::move(next);
  }
  return out;
}

class Reference {
 public:
  Reference(const Graph& graph, Contents& contents) : graph_(graph), contents_(contents) {}

  void run() {
    for (const Node& node : graph_.nodes) run(node);
  }

 private:
  [[nodiscard]] const TensorView& view(std::uint32_t value) const {
    return graph_.values[value].view;
  }
  Values read(std::uint32_t value) {
    Values out;
    for (const std::int64_t at : places(view(value)))
      out.push_back(contents_[graph_.values[value].buffer][static_cast<std::size_t>(at)]);
    return out;
  }
  void write(std::uint32_t value, const Values& numbers) {
    const auto at = places(view(value));
    for (std::size_t i = 0; i < at.size(); ++i)
      contents_[graph_.values[value].buffer][static_cast<std::size_t>(at[i])] = numbers[i];
  }

  /// Calls body(elements along `dim`) for each line, and puts back what it leaves of them.
  Values along(const Node& node, std::int64_t dim, const std::function<Values(Values)>& body) {
    const TensorView& v = view(node.inputs[0]);
    const Values in = read(node.inputs[0]);
    const auto d = static_cast<std::size_t>(dim);
    std::int64_t inner = 1;
    for (std::size_t i = d + 1; i < v.sizes.size(); ++i) inner *= v.sizes[i];
    const std::int64_t length = v.sizes[d],
                       outer = static_cast<std::int64_t>(in.size()) / (length * inner);
    std::vector<Values> lines;
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t i = 0; i < inner; ++i) {
        Values line;
        for (std::int64_t l = 0; l < length; ++l)
          line.push_back(in[static_cast<std::size_t>((o * length + l) * inner + i)]);
        lines.push_back(body(std::move(line)));
      }
    }
    Values out;
    const auto left = static_cast<std::int64_t>(lines[0].size());
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t l = 0; l < left; ++l) {
        for (std::int64_t i = 0; i < inner; ++i)
          out.push_back(
              lines[static_cast<std::size_t>(o * inner + i)][static_cast<std::size_t>(l)]);
      }
    }
    return out;
  }

  static Values softmax(Values line) {
    const double most = *std::max_element(line.begin(), line.end());
    double sum = 0;
    for (double& x : line) sum += x = std::exp(x - most);
    for (double& x : line) x /= sum;
    return line;
  }

  Values stacked(const Node& node, std::int64_t dim) {
    const Values a = read(node.inputs[0]), b = read(node.inputs[1]);
    std::size_t inner = 1;
    const auto& sizes = view(node.inputs[0]).sizes;
    for (std::size_t d = static_cast<std::size_t>(dim); d < sizes.size(); ++d)
      inner *= static_cast<std::size_t>(sizes[d]);
    Values out;
    for (std::size_t at = 0; at < a.size(); at += inner) {
      const auto from = static_cast<std::ptrdiff_t>(at),
                 to = static_cast<std::ptrdiff_t>(at + inner);
      out.insert(out.end(), a.begin() + from, a.begin() + to);
      out.insert(out.end(), b.begin() + from, b.begin() + to);
    }
    return out;
  }

  Values binary(const Node& node, const std::function<double(double, double)>& f) {
    Values a = read(node.inputs[0]);
    const Values b = read(node.inputs[1]);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = f(a[i], b[i]);
    return a;
  }

  void run(const Node& node) {
    const Scalars scalars(node.scalars);
    const auto sum = [](const Values& x) { return std::accumulate(x.begin(), x.end(), 0.0); };
    const std::uint32_t out = node.outputs[0];
    if (node.op == "add.Tensor") return write(out, binary(node, std::plus<>()));
    if (node.op == "mul.Tensor") return write(out, binary(node, std::multiplies<>()));
    if (node.op == "clone") return write(out, read(node.inputs[0]));
    if (node.op == "stack") return write(out, stacked(node, scalars.integer("dim", 0)));
    if (node.op == "mul.Scalar") {
      Values in = read(node.inputs[0]);
      for (double& x : in) x *= scalars.number("other", 0);
      return write(out, in);
    }
    if (node.op == "_softmax") return write(out, along(node, scalars.integer("dim", 0), softmax));
    const std::int64_t dim = scalars.list("dim").at(0);
    if (node.op == "sum.dim_IntList")
      return write(out, along(node, dim, [&](const Values& x) { return Values{sum(x)}; }));
    if (node.op == "mean.dim")
      return write(out, along(node, dim, [&](const Values& x) {
                     return Values{sum(x) / static_cast<double>(x.size())};
                   }));
    ASSERT_EQ(node.op, "amax");
    write(out, along(node, dim, [](const Values& x) {
            return Values{*std::max_element(x.begin(), x.end())};
          }));
  }

  const Graph& graph_;
  Contents& contents_;
};

DType dtype_of(const Graph& graph, std::uint32_t buffer) {
  for (const auto& v : graph.values) {
    if (v.buffer == buffer) return v.view.dtype;
  }
  return DType::kFp32;
}

void check(const analysis::ViewModule& module, std::uint32_t seed) {
  const Graph& graph = module.graph;
  const sim::CoreConfig core = test_core(192 * 1024);
  const CompiledGraph compiled = compile(graph, core);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> draw(-32, 32);
  Contents contents;
  for (std::uint32_t b = 0; b < graph.buffers.size(); ++b) {
    const std::int64_t n = graph.buffers[b].bytes / sim::isa::size_bytes(dtype_of(graph, b));
    for (std::int64_t i = 0; i < n; ++i) contents[b].push_back(draw(random) / 16.0);
  }
  sim::functional::Options options = in_double(seed);
  options.hazards = true;
  Interpreter interpreter(compiled.program, core.limits, options);
  const auto slots = buffer_slots(graph);
  std::map<std::int32_t, std::uint32_t> program_buffer;
  for (std::uint32_t b = 0; b < compiled.program.buffers.size(); ++b) {
    if (compiled.program.buffers[b].slot >= 0) program_buffer[compiled.program.buffers[b].slot] = b;
  }
  for (const auto& [b, numbers] : contents)
    interpreter.write(program_buffer.at(slots[b]), dtype_of(graph, b), numbers);
  interpreter.run();
  for (const auto& hazard : interpreter.hazards())
    ADD_FAILURE() << module.name << ", seed " << seed << ": " << hazard.text;
  Reference(graph, contents).run();
  for (std::uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].role != BufferRole::kOutput) continue;
    const DType dtype = dtype_of(graph, b);
    const Values got = interpreter.read(program_buffer.at(slots[b]), dtype,
                                        static_cast<std::int64_t>(contents[b].size()));
    const double tolerance = dtype == DType::kFp32 ? 1e-5 : 0x1p-7;
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], contents[b][i], tolerance * (1 + std::abs(contents[b][i])))
          << module.name << ", seed " << seed << ", output " << b << ", element " << i;
  }
}

TEST(Views, GiveTheNumbersOfALoop) {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    check(analysis::random_view_module(seed, analysis::ViewSize::kThousands), seed);
    if (HasFatalFailure()) return;
  }
}

/// Numbers that fp32 does not hold go through no arithmetic on their way.
TEST(Views, IntegersStayWhole) {
  GraphFixture g;
  const auto x = g.input({3, 70, 80}, DType::kInt32), y = g.output({80, 3, 70}, DType::kInt32);
  g.node("clone", {g.view(x, {80, 3, 70}, {1, 5600, 80})}, {y});
  Values numbers;
  for (int i = 0; i < 3 * 70 * 80; ++i) numbers.push_back((1 << 30) + 3 * i + 1);
  g.set(x, numbers);
  g.run();
  g.expect(
      y, [&](std::int64_t i) { return numbers[static_cast<std::size_t>(i % 210 * 80 + i / 210)]; },
      0);
}

/// slice_backward and select_backward of short runs, against the elements one by one.
TEST(Views, SlicesAreSetIntoRowsOfZeros) {
  GraphFixture g;
  const auto pairs = g.input({90, 40}), one = g.input({90, 80}), some = g.input({90, 5, 16});
  const auto stepped = g.output({90, 80}), column = g.output({90, 80, 3}),
             inside = g.output({90, 9, 16}, kB);
  g.node("slice_backward", {pairs}, {stepped}, "dim=1 start=1 end=80 step=2");
  g.node("select_backward", {one}, {column}, "dim=-1 index=2");
  g.node("slice_backward", {g.view(some, {90, 5, 16}, {80, 1, 5})}, {inside},
         "dim=1 start=3 end=8 step=1");
  const Values vp = g.random(pairs), vo = g.random(one), vs = g.random(some);
  g.run();
  const auto at = [](const Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
  g.expect(stepped, [&](std::int64_t i) { return i % 2 == 1 ? at(vp, i / 2) : 0; });
  g.expect(column, [&](std::int64_t i) { return i % 3 == 2 ? at(vo, i / 3) : 0; });
  g.expect(inside, [&](std::int64_t i) {
    const std::int64_t row = i / 144, step = i / 16 % 9 - 3, inner = i % 16;
    return step >= 0 && step < 5 ? at(vs, row * 80 + step + inner * 5) : 0;
  });
}

/// Parts of other widths, orders and types next to each other.
TEST(Views, ShortPartsAreJoined) {
  GraphFixture g;
  const auto a = g.input({300, 7}), b = g.input({5, 300}), c = g.input({300, 9}, kB);
  const auto y = g.output({300, 21});
  g.node("cat", {a, g.view(b, {300, 5}, {1, 300}), c}, {y}, "dim=1");
  const Values va = g.random(a), vb = g.random(b), vc = g.random(c);
  g.run();
  g.expect(y, [&](std::int64_t i) {
    const std::int64_t row = i / 21, column = i % 21;
    return column < 7    ? va[static_cast<std::size_t>(row * 7 + column)]
           : column < 12 ? vb[static_cast<std::size_t>((column - 7) * 300 + row)]
                         : vc[static_cast<std::size_t>(row * 9 + column - 12)];
  });
}

}  // namespace
}  // namespace trellis::device::testing
