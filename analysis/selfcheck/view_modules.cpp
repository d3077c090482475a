#include "analysis/selfcheck/view_modules.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trellis::analysis {
namespace {

using device::BufferRole;
using device::DType;
using device::TensorView;
using Sizes = std::vector<std::int64_t>;

/// Dense strides of sizes in the order `order`, outermost first.
Sizes strides_in_order(const Sizes& sizes, const std::vector<std::size_t>& order) {
  Sizes strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= sizes[order[i]];
  }
  return strides;
}

class Drawer {
 public:
  Drawer(std::uint32_t seed, ViewSize size) : random_(seed), size_(size) {}

  ViewModule draw() {
    dtype_ = pick<DType>({DType::kFp32, DType::kBf16});
    sizes_ = size_ == ViewSize::kMillion ? pick<Sizes>({{1024, 1024},
                                                        {8, 256, 512},
                                                        {512, 8, 256},
                                                        {4, 8, 256, 128},
                                                        {16, 196, 384},
                                                        {8, 64, 32, 64},
                                                        {2048, 2, 256}})
                                         : pick<Sizes>({{96, 130},
                                                        {3, 70, 80},
                                                        {130, 2, 33},
                                                        {2, 3, 65, 67},
                                                        {70, 5, 64},
                                                        {4, 200, 12}});
    switch (pick({0, 1, 2, 3, 4, 5, 6})) {
      case 0: binary("add.Tensor", "alpha=1"); break;
      case 1: binary("mul.Tensor", ""); break;
      case 2: copy(); break;
      case 3: reduce(pick<std::string>({"sum.dim_IntList", "amax", "mean.dim"})); break;
      case 4: softmax(); break;
      case 5: stack(); break;
      default: two_readers(); break;
    }
    module_.graph.name = "views";
    return std::move(module_);
  }

 private:
  template <typename T>
  T pick(std::initializer_list<T> list) {
    return *(list.begin() + random_() % list.size());
  }
  bool one_in(unsigned n) { return random_() % n == 0; }

  std::uint32_t value(BufferRole role, const TensorView& view) {
    std::int64_t reach = view.offset + 1, distinct = 1;
    for (std::size_t d = 0; d < view.sizes.size(); ++d) {
      reach += view.strides[d] * (view.sizes[d] - 1);
      distinct *= view.strides[d] == 0 ? 1 : view.sizes[d];
    }
    device::Graph& graph = module_.graph;
    graph.buffers.push_back({role, reach * sim::isa::size_bytes(view.dtype)});
    graph.values.push_back({static_cast<std::uint32_t>(graph.buffers.size() - 1), view});
    module_.bytes += distinct * sim::isa::size_bytes(view.dtype);
    module_.elements = std::max(module_.elements, view.elements());
    return static_cast<std::uint32_t>(graph.values.size() - 1);
  }

  /// A view of `sizes`: dense, permuted, stepped, or broadcast along one or two dimensions.
  TensorView view(const Sizes& sizes, bool may_broadcast = true) {
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    const int kind = may_broadcast ? pick({0, 1, 1, 2, 3, 3}) : pick({0, 1, 1, 2});
    if (kind == 1) std::shuffle(order.begin(), order.end(), random_);
    TensorView v{sizes, strides_in_order(sizes, order), 0, dtype_};
    const std::int64_t step = pick<std::int64_t>({2, 3});
    if (kind == 2) {
      for (auto& stride : v.strides) stride *= step;
      v.offset = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(step));
    }
    if (kind == 3) broadcast(v);
    return v;
  }

  void broadcast(TensorView& v) {
    Sizes kept = v.sizes;
    const std::size_t first = random_() % kept.size();
    kept[first] = 1;
    if (kept.size() > 2 && one_in(2)) kept[random_() % kept.size()] = 1;
    std::vector<std::size_t> order(kept.size());
    std::iota(order.begin(), order.end(), 0);
    v.strides = strides_in_order(kept, order);
    for (std::size_t d = 0; d < kept.size(); ++d) {
      if (kept[d] == 1) v.strides[d] = 0;
    }
  }

  TensorView dense(const Sizes& sizes) {
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    return {sizes, strides_in_order(sizes, order), 0, dtype_};
  }

  std::uint32_t input(const Sizes& sizes, bool may_broadcast = true) {
    const TensorView v = view(sizes, may_broadcast);
    module_.name += fmt::format(" {}[{}]:[{}]", sim::isa::name(v.dtype), fmt::join(v.sizes, ","),
                                fmt::join(v.strides, ","));
    return value(BufferRole::kExternal, v);
  }
  std::uint32_t output(const Sizes& sizes) { return value(BufferRole::kOutput, dense(sizes)); }

  void node(const std::string& op, std::vector<std::uint32_t> inputs,
            std::vector<std::uint32_t> outputs, std::string scalars) {
    device::Node n;
    n.op = op;
    n.inputs = std::move(inputs);
    n.outputs = std::move(outputs);
    n.scalars = std::move(scalars);
    module_.name = op + " " + n.scalars + module_.name;
    module_.graph.nodes.push_back(std::move(n));
  }

  void binary(const std::string& op, const std::string& scalars) {
    const std::uint32_t a = input(sizes_), b = input(sizes_);
    node(op, {a, b}, {output(sizes_)}, scalars);
  }
  void copy() {
    const std::uint32_t a = input(sizes_);
    node("clone", {a}, {output(sizes_)}, "");
  }
  void reduce(const std::string& op) {
    const std::size_t dim = random_() % sizes_.size();
    const std::uint32_t a = input(sizes_, false);
    Sizes left = sizes_;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(dim));
    node(op, {a}, {output(left)}, fmt::format("dim=[{}] keepdim=0", dim));
  }
  void softmax() {
    const std::size_t dim = random_() % sizes_.size();
    const std::uint32_t a = input(sizes_, false);
    node("_softmax", {a}, {output(sizes_)}, fmt::format("dim={} half_to_float=0", dim));
  }
  void stack() {
    const std::uint32_t a = input(sizes_), b = input(sizes_);
    Sizes out = sizes_;
    const std::size_t dim = random_() % (sizes_.size() + 1);
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(dim), 2);
    node("stack", {a, b}, {output(out)}, fmt::format("dim={}", dim));
  }
  /// One tensor, read in its order and in the transposed one.
  void two_readers() {
    const std::int64_t n = size_ == ViewSize::kMillion ? 1024 : 100;
    const Sizes sizes{n, n};
    const std::uint32_t a = value(BufferRole::kExternal, dense(sizes));
    module_.graph.values.push_back({module_.graph.values[a].buffer, {sizes, {1, n}, 0, dtype_}});
    const auto transposed = static_cast<std::uint32_t>(module_.graph.values.size() - 1);
    node("mul.Scalar", {a}, {output(sizes)}, "other=2");
    node("mul.Scalar", {transposed}, {output(sizes)}, "other=3");
    module_.name += fmt::format(" {} of one tensor, dense and transposed", sim::isa::name(dtype_));
  }

  std::mt19937 random_;
  ViewSize size_;
  DType dtype_ = DType::kFp32;
  Sizes sizes_;
  ViewModule module_;
};

}  // namespace

ViewModule random_view_module(std::uint32_t seed, ViewSize size) {
  return Drawer(seed, size).draw();
}

}  // namespace trellis::analysis
