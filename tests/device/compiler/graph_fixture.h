#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/compiler/compile.h"
#include "device/compiler/emit/hbm_view.h"
#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/test_core.h"

namespace trellis::device::testing {

/// Writes a graph down, compiles it, and runs the program on numbers.
class GraphFixture {
 public:
  using Sizes = std::vector<std::int64_t>;

  explicit GraphFixture(std::int64_t sbuf = 192 * 1024) : core_(test_core(sbuf)) {
    graph_.name = "test";
  }

  std::uint32_t tensor(const Sizes& sizes, DType dtype, BufferRole role) {
    std::int64_t n = 1;
    for (std::int64_t s : sizes) n *= s;
    graph_.buffers.push_back({role, n * sim::isa::size_bytes(dtype)});
    TensorView v{sizes, {}, 0, dtype};
    v.strides.resize(sizes.size());
    std::int64_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) v.strides[d] = stride;
    return value(static_cast<std::uint32_t>(graph_.buffers.size() - 1), v);
  }
  std::uint32_t value(std::uint32_t buffer, const TensorView& view) {
    graph_.values.push_back({buffer, view});
    return static_cast<std::uint32_t>(graph_.values.size() - 1);
  }
  std::uint32_t input(const Sizes& sizes, DType dtype = DType::kFp32) {
    return tensor(sizes, dtype, BufferRole::kExternal);
  }
  std::uint32_t temporary(const Sizes& sizes, DType dtype = DType::kFp32) {
    return tensor(sizes, dtype, BufferRole::kTemporary);
  }
  std::uint32_t output(const Sizes& sizes, DType dtype = DType::kFp32) {
    return tensor(sizes, dtype, BufferRole::kOutput);
  }
  /// Another view of a value's buffer.
  std::uint32_t view(std::uint32_t of, const Sizes& sizes, const Sizes& strides,
                     std::int64_t offset = 0) {
    return value(graph_.values[of].buffer, {sizes, strides, offset, graph_.values[of].view.dtype});
  }

  Node& node(const std::string& op, const std::vector<std::uint32_t>& inputs,
             const std::vector<std::uint32_t>& outputs, const std::string& scalars = "") {
    Node n;
    n.op = op;
    n.scalars = scalars;
    n.inputs = inputs;
    n.outputs = outputs;
    graph_.nodes.push_back(n);
    return graph_.nodes.back();
  }

  /// Numbers for an external value's whole buffer, in elements.
  void set(std::uint32_t value, Values numbers) {
    data_[graph_.values[value].buffer] = std::move(numbers);
  }
  /// Multiples of 1/16 in [low, high].
  Values random(std::uint32_t value, double low = -2, double high = 2) {
    std::int64_t n = graph_.buffers[graph_.values[value].buffer].bytes /
                     sim::isa::size_bytes(graph_.values[value].view.dtype);
    std::uniform_int_distribution<int> draw(static_cast<int>(low * 16),
                                            static_cast<int>(high * 16));
    Values out;
    for (std::int64_t i = 0; i < n; ++i) out.push_back(draw(engine_) / 16.0);
    set(value, out);
    return out;
  }

  /// Compiles, and runs in double for the results. In fp32 a shuffled run element by element has
  /// the bits of another run on tiles, and no run has a hazard.
  void run() {
    compiled_ = compile(graph_, core_);
    results_ = execute(in_double(2));
    const auto tiles = execute({.seed = 0, .hazards = true}),
               exact = execute({.seed = 1, .exact = true, .hazards = true});
    for (const auto& [buffer, values] : tiles) {
      const Values& other = exact.at(buffer);
      ASSERT_EQ(values.size(), other.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool same = values[i] == other[i] || (values[i] != values[i] && other[i] != other[i]);
        ASSERT_TRUE(same) << "buffer " << buffer << " at " << i << ": " << values[i]
                          << " on tiles, " << other[i] << " by element in another order";
      }
    }
  }

  [[nodiscard]] const Values& result(std::uint32_t value) {
    return results_[graph_.values[value].buffer];
  }

  template <typename Expected>
  void expect(std::uint32_t value, Expected expected, double tolerance = 1e-4) {
    const Values& got = result(value);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double want = expected(static_cast<std::int64_t>(i));
      ASSERT_NEAR(got[i], want, tolerance * (1 + std::abs(want))) << "element " << i;
    }
  }

  Graph& graph() { return graph_; }
  CompiledGraph& compiled() { return compiled_; }
  sim::CoreConfig& core() { return core_; }

 private:
  /// The values of all buffers that outlive the program.
  std::map<std::uint32_t, Values> execute(sim::functional::Options options) {
    Interpreter interpreter(compiled_.program, core_.limits, options);
    std::map<std::int32_t, std::uint32_t> program_buffer;
    for (std::uint32_t b = 0; b < compiled_.program.buffers.size(); ++b) {
      if (compiled_.program.buffers[b].slot >= 0)
        program_buffer[compiled_.program.buffers[b].slot] = b;
    }
    std::map<std::uint32_t, std::uint32_t> place;  // buffer of the graph → of the program
    const auto slots = buffer_slots(graph_);
    for (std::uint32_t b = 0; b < slots.size(); ++b) {
      if (slots[b] >= 0 && program_buffer.contains(slots[b])) place[b] = program_buffer[slots[b]];
    }
    for (const auto& [buffer, contents] : data_) {
      if (place.contains(buffer)) interpreter.write(place[buffer], dtype_of(buffer), contents);
    }
    interpreter.run();
    for (const auto& hazard : interpreter.hazards()) ADD_FAILURE() << hazard.text;
    std::map<std::uint32_t, Values> results;
    for (const auto& [buffer, at] : place) {
      const DType dtype = dtype_of(buffer);
      results[buffer] = interpreter.read(
          at, dtype, compiled_.program.buffers[at].bytes / sim::isa::size_bytes(dtype));
    }
    return results;
  }

  DType dtype_of(std::uint32_t buffer) const {
    for (const Value& v : graph_.values) {
      if (v.buffer == buffer) return device_dtype(v.view.dtype);
    }
    return DType::kFp32;
  }

  sim::CoreConfig core_;
  Graph graph_;
  std::map<std::uint32_t, Values> data_, results_;
  CompiledGraph compiled_;
  std::mt19937 engine_{11};
};

}  // namespace trellis::device::testing
