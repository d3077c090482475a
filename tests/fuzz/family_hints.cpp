#include "tests/fuzz/family_hints.h"

#include <ATen/core/Tensor.h>

namespace trellis::fuzz::hints {

using Sizes = std::vector<std::int64_t>;

Hints nothing(Chooser&) { return {}; }
/// Pointwise kernels promise something when `out=` shares memory with an operand: an error or the
/// right result.
Hints pointwise(Chooser&) { return {{kOutMayAlias, c10::IValue(true)}}; }
/// A CPU tensor of dimension 0 may take part in arithmetic on any device.
Hints arithmetic(Chooser& choose) {
  const Operand self = choose.any();
  if (!choose.random.chance(0.05)) return {{"self", self}, {kOutMayAlias, c10::IValue(true)}};
  Literal number{{}, choose.type_of(self)};
  number.on_host = true;
  return {{"self", self}, {"other", Operand(number)}};
}

Hints floating(Chooser& choose) { return {{"self", choose.floating()}}; }

/// Whole-number division: no divisor of -1, on which the smallest integer traps the processor.
Hints division(Chooser& choose) {
  const Operand self = choose.any();
  Literal other = choose.literal(choose.broadcast(choose.sizes_of(self)), choose.type_of(self));
  other.fill = Literal::Fill::kPositive;
  return {{"self", self},
          {"other", choose.random.chance(0.5) ? Argument(Operand(other))
                                              : Argument(c10::IValue(std::int64_t{3}))}};
}
/// The same for overloads with a Tensor only.
Hints tensor_division(Chooser& choose) {
  Hints hints = division(choose);
  Literal other = choose.literal({}, at::kLong);
  other.fill = Literal::Fill::kPositive;
  if (std::holds_alternative<c10::IValue>(hints.at("other"))) hints["other"] = Operand(other);
  return hints;
}

// ── views ──

Sizes factors(Chooser& choose, std::int64_t count) {
  Sizes sizes;
  for (const std::int64_t factor : {2, 3}) {
    if (count > 0 && count % factor == 0 && choose.random.chance(0.7)) {
      sizes.push_back(factor);
      count /= factor;
    }
  }
  sizes.push_back(choose.random.chance(0.3) ? -1 : count);
  return sizes;
}

Hints reshaping(Chooser& choose) {
  const Operand self = choose.any();
  std::int64_t count = 1;
  for (const std::int64_t size : choose.sizes_of(self)) count *= size;
  return {{"self", self},
          {"size", ints(factors(choose, count))},
          {"shape", ints(factors(choose, count))}};
}

Hints expansion(Chooser& choose) {
  const Operand self = choose.any();
  Sizes sizes = choose.sizes_of(self);
  for (std::int64_t& size : sizes) {
    if (size == 1 && choose.random.chance(0.5)) size = 3;
  }
  if (choose.random.chance(0.3)) sizes.insert(sizes.begin(), 2);
  return {{"self", self}, {"size", ints(sizes)}};
}

Hints permutation(Chooser& choose) {
  const Operand self = choose.any();
  Sizes dims(choose.sizes_of(self).size());
  for (std::size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = dims.size(); i > 1; --i)
    std::swap(dims[i - 1],
              dims[static_cast<std::size_t>(choose.random.below(static_cast<std::int64_t>(i)))]);
  return {{"self", self}, {"dims", ints(dims)}};
}

/// Windows over the whole storage, overlapping ones too; a few leave it.
Hints window(Chooser& choose) {
  const Operand self = choose.any();
  Sizes sizes, strides;
  for (std::int64_t i = choose.random.between(0, 2); i > 0; --i) {
    sizes.push_back(choose.random.between(0, 3));
    strides.push_back(choose.random.between(0, 3));
  }
  return {{"self", self},
          {"size", ints(sizes)},
          {"stride", ints(strides)},
          {"storage_offset", c10::IValue(choose.random.between(0, 2))}};
}

Hints splitting(Chooser& choose) {
  const Operand self = choose.any();
  const Sizes own = choose.sizes_of(self);
  const std::int64_t extent = own.empty() ? 1 : own.front();
  const std::int64_t first = choose.random.between(0, extent);
  return {{"self", self},
          {"split_sizes", ints({first, extent - first})},
          {"chunks", c10::IValue(choose.random.between(1, 3))},
          {"dim", c10::IValue(std::int64_t{0})}};
}

Hints resizing(Chooser& choose) {
  return {{"size", ints(choose.sizes(3))}, {"memory_format", c10::IValue()}};
}

Hints storages(Chooser& choose) {
  const Operand self = choose.any(),
                source = choose.existing([](const at::Tensor&) { return true; },
                                         choose.literal({2}, at::kFloat));
  Hints hints = {{"self", self},
                 {"size", ints({choose.random.between(0, 3)})},
                 {"stride", ints({1})},
                 {"storage_offset", c10::IValue(choose.random.between(0, 2))}};
  const auto* const value = std::get_if<Value>(&source);
  if (value != nullptr && choose.random.chance(0.5)) {
    hints["source"] = StorageOf{value->id};
  } else {
    hints["source"] = source;
  }
  return hints;
}

// ── products ──

Literal matrix(Chooser& choose, Sizes sizes, at::ScalarType type) {
  return choose.literal(std::move(sizes), type);
}

Hints products(Chooser& choose) {
  const bool batched = choose.random.chance(0.5);
  const Operand first = choose.existing(
      [&](const at::Tensor& tensor) { return tensor.dim() == (batched ? 3 : 2); },
      matrix(choose, batched ? Sizes{2, 3, 4} : Sizes{3, 4}, choose.floating_type()));
  const Sizes a = choose.sizes_of(first);
  const at::ScalarType type = choose.type_of(first);
  const std::int64_t columns = choose.random.between(0, 4);
  Sizes b = {a.back(), columns}, sum = {a[a.size() - 2], columns};
  if (batched) {
    b.insert(b.begin(), a.front());
    sum.insert(sum.begin(), a.front());
  }
  const Operand second = matrix(choose, b, type), vector = matrix(choose, {a.back()}, type);
  return {{"mat1", first},   {"mat", first},
          {"batch1", first}, {"tensor1", first},
          {"mat2", second},  {"batch2", second},
          {"vec", vector},   {"self", Operand(matrix(choose, choose.broadcast(sum), type))}};
}

Hints matmuls(Chooser& choose) {
  Hints hints = products(choose);
  hints["self"] = hints.at("mat1");
  hints["other"] = hints.at("mat2");
  hints["input"] = hints.at("mat1");
  const Operand first = std::get<Operand>(hints.at("mat1"));
  const std::int64_t columns = choose.random.between(1, 4), inner = choose.sizes_of(first).back();
  hints["weight"] = Operand(matrix(choose, {columns, inner}, choose.type_of(first)));
  hints["bias"] = choose.random.chance(0.5)
                      ? Argument(Operand(matrix(choose, {columns}, choose.type_of(first))))
                      : Argument(c10::IValue());
  return hints;
}

Hints vectors(Chooser& choose) {
  const Operand self = choose.existing([](const at::Tensor& tensor) { return tensor.dim() == 1; },
                                       choose.literal({3}, choose.floating_type()));
  const Operand other = choose.literal(choose.sizes_of(self), choose.type_of(self));
  return {{"self", self}, {"other", other}, {"tensor", other}, {"vec2", other}};
}

// ── indexing ──

struct Indexed {
  Operand self;
  std::int64_t dim = 0, extent = 1;
  Sizes sizes;
};

Indexed indexed(Chooser& choose) {
  Indexed chosen{choose.any(), 0, 1, {}};
  chosen.sizes = choose.sizes_of(chosen.self);
  if (chosen.sizes.empty()) return chosen;
  chosen.dim = choose.random.below(static_cast<std::int64_t>(chosen.sizes.size()));
  chosen.extent = chosen.sizes[static_cast<std::size_t>(chosen.dim)];
  return chosen;
}

/// index has the sizes of self but along dim.
Hints gathering(Chooser& choose) {
  const Indexed chosen = indexed(choose);
  Sizes sizes = chosen.sizes;
  if (!sizes.empty()) sizes[static_cast<std::size_t>(chosen.dim)] = choose.random.between(0, 4);
  const Operand source = choose.literal(sizes, choose.type_of(chosen.self));
  return {{"self", chosen.self},
          {"dim", c10::IValue(chosen.dim)},
          {"index", Operand(choose.indices(sizes, chosen.extent))},
          {"src", source},
          {"sparse_grad", c10::IValue(false)}};  // neuron has no sparse tensors
}

/// index is a vector that selects along dim.
Hints selecting(Chooser& choose) {
  const Indexed chosen = indexed(choose);
  const std::int64_t count = choose.random.between(0, 4);
  Sizes sizes = chosen.sizes;
  if (!sizes.empty()) sizes[static_cast<std::size_t>(chosen.dim)] = count;
  return {{"self", chosen.self},
          {"dim", c10::IValue(chosen.dim)},
          {"index", Operand(choose.indices({count}, chosen.extent))},
          {"source", Operand(choose.literal(sizes, choose.type_of(chosen.self)))}};
}

Hints advanced(Chooser& choose) {
  const Operand self = choose.any();
  const Sizes sizes = choose.sizes_of(self);
  Operands indices{{}, true};
  if (choose.random.chance(0.15)) {
    indices.tensors.push_back(choose.literal(sizes, at::kBool));
  } else {
    const Sizes common = choose.sizes(2);
    for (const std::int64_t size : sizes) {
      if (choose.random.chance(0.3)) {
        indices.tensors.push_back(NoTensor());
      } else {
        indices.tensors.push_back(choose.indices(common, size));
      }
      if (choose.random.chance(0.4)) break;
    }
  }
  const Sizes values = choose.random.chance(0.7) ? Sizes() : choose.broadcast(sizes);
  return {{"self", self},
          {"indices", indices},
          {"values", Operand(choose.literal(values, choose.type_of(self)))}};
}

Hints taking(Chooser& choose) {
  const Operand self = choose.any();
  std::int64_t count = 1;
  for (const std::int64_t size : choose.sizes_of(self)) count *= size;
  const Sizes sizes = choose.sizes(2);
  return {{"self", self},
          {"index", Operand(choose.indices(sizes, count))},
          {"source", Operand(choose.literal(sizes, choose.type_of(self)))}};
}

Hints counting(Chooser& choose) {
  return {
      {"self", Operand(choose.indices({choose.random.between(0, 6)}, 5))},
      {"weights", c10::IValue()},
      {"num_classes", c10::IValue(choose.random.chance(0.5) ? std::int64_t{6} : std::int64_t{-1})}};
}

Hints searching(Chooser& choose) {
  const at::ScalarType type = choose.floating_type();
  Literal sorted = choose.literal({5}, type);
  return {{"sorted_sequence", Operand(sorted)},
          {"boundaries", Operand(sorted)},
          {"self", Operand(choose.literal(choose.sizes(2), type))},
          {"sorter", c10::IValue()},
          {"side", c10::IValue()}};
}

Hints repeating(Chooser& choose) {
  const Operand self = choose.any();
  Sizes repeats(choose.sizes_of(self).size());
  for (std::int64_t& repeat : repeats) repeat = choose.random.between(0, 2);
  return {{"self", self}, {"repeats", ints(repeats)}, {"dims", ints(repeats)}};
}

// ── networks ──

Hints normalising(Chooser& choose) {
  const Operand input = choose.existing(
      [](const at::Tensor& tensor) {
        return at::isFloatingType(tensor.scalar_type()) && !tensor.requires_grad();
      },
      choose.literal({2, 3, 4}, choose.floating_type()));
  const Sizes sizes = choose.sizes_of(input);
  const at::ScalarType type = choose.type_of(input);
  const Sizes normalised = sizes.empty() ? Sizes{1} : Sizes{sizes.back()};
  const auto parameter = [&](const Sizes& size) {
    return choose.random.chance(0.6) ? Argument(Operand(choose.literal(size, type)))
                                     : Argument(c10::IValue());
  };
  return {{"input", input},
          {"normalized_shape", ints(normalised)},
          {"weight", parameter(normalised)},
          {"bias", parameter(normalised)},
          {"eps", c10::IValue(1e-5)}};
}

/// The second dimension has channels, which come in groups.
Hints channels(Chooser& choose) {
  const at::ScalarType type = choose.floating_type();
  const std::int64_t count = 2 * choose.random.between(1, 2);
  const auto input = choose.existing(
      [&](const at::Tensor& tensor) {
        return tensor.dim() == 3 && tensor.size(1) == count && tensor.scalar_type() == type;
      },
      choose.literal({choose.random.between(0, 2), count, 5}, type));
  const auto parameter = [&] {
    return choose.random.chance(0.7) ? Argument(Operand(choose.literal({count}, type)))
                                     : Argument(c10::IValue());
  };
  return {{"input", input},
          {"num_groups", c10::IValue(std::int64_t{2})},
          {"weight", parameter()},
          {"bias", parameter()},
          {"eps", c10::IValue(1e-5)},
          {"running_mean", c10::IValue()},
          {"running_var", c10::IValue()},
          {"training", c10::IValue(true)}};
}

Hints convolving(Chooser& choose) {
  const at::ScalarType type = choose.floating_type();
  const Operand input = choose.literal({choose.random.between(1, 2), 2, 6}, type),
                weight = choose.literal({3, 2, choose.random.between(1, 3)}, type);
  const auto each = [&](std::int64_t low, std::int64_t high) {
    return ints({choose.random.between(low, high)});
  };
  return {{"input", input},
          {"weight", weight},
          {"groups", c10::IValue(std::int64_t{1})},
          {"stride", each(1, 2)},
          {"padding", each(0, 1)},
          {"dilation", each(1, 2)},
          {"bias", choose.random.chance(0.5) ? Argument(Operand(choose.literal({3}, type)))
                                             : Argument(c10::IValue())}};
}

/// On `neuron` attention is one operator, the CPU decomposes its gradient: operands that want none.
Hints attending(Chooser& choose) {
  const at::ScalarType type = choose.floating_type();
  const std::int64_t length = choose.random.between(1, 5);
  const auto heads = [&](std::int64_t rows) {
    return Operand(choose.literal({2, 2, rows, 4}, type));
  };
  return {{"query", heads(choose.random.between(1, 5))},
          {"key", heads(length)},
          {"value", heads(length)},
          {"attn_mask", c10::IValue()},
          {"dropout_p", c10::IValue(0.0)},
          {"enable_gqa", c10::IValue(false)}};
}

Hints embedding(Chooser& choose) {
  return {{"weight", Operand(choose.existing(
                         [](const at::Tensor& t) {
                           return t.dim() == 2 && t.size(0) > 0 &&
                                  at::isFloatingType(t.scalar_type());
                         },
                         choose.literal({5, 3}, choose.floating_type())))},
          {"indices", Operand(choose.indices(choose.sizes(2), 4))},
          {"sparse", c10::IValue(false)},
          {"padding_idx", c10::IValue(std::int64_t{-1})}};
}

Hints classifying(Chooser& choose) {
  const Operand self = choose.existing(
      [](const at::Tensor& t) {
        return t.dim() == 2 && t.size(1) > 0 && at::isFloatingType(t.scalar_type());
      },
      choose.literal({3, 4}, choose.floating_type()));
  const Sizes sizes = choose.sizes_of(self);
  return {{"self", self},
          {"target", Operand(choose.indices({sizes.front()}, sizes.back()))},
          {"weight", c10::IValue()}};
}

Hints pooling(Chooser& choose) {
  const Operand self = choose.existing(
      [](const at::Tensor& t) { return t.dim() >= 3 && at::isFloatingType(t.scalar_type()); },
      choose.literal({2, 2, 5, 5}, choose.floating_type()));
  return {{"self", self},
          {"kernel_size", ints({2})},
          {"output_size", ints({2, 2})},
          {"stride", ints({choose.random.between(1, 2)})},
          {"padding", ints({choose.random.between(0, 1)})},
          {"dilation", ints({1})},
          {"divisor_override", c10::IValue()}};
}

Hints padding(Chooser& choose) {
  return {{"self", choose.any()},
          {"pad", ints({choose.random.between(-1, 2), choose.random.between(0, 2)})},
          {"mode", c10::IValue("constant")}};
}

// ── random numbers, factories ──

Hints drawing(Chooser& choose) {
  return {{"self", choose.floating()},  {"generator", TheGenerator()}, {"p", c10::IValue(0.4)},
          {"from", c10::IValue(0.0)},   {"to", c10::IValue(2.0)},      {"mean", c10::IValue(0.5)},
          {"std", c10::IValue(1.5)},    {"lambd", c10::IValue(2.0)},   {"sigma", c10::IValue(1.0)},
          {"median", c10::IValue(0.0)}, {"train", c10::IValue(true)}};
}

Hints drawing_integers(Chooser& choose) {
  return {{"self", choose.any()},
          {"generator", TheGenerator()},
          {"from", c10::IValue(std::int64_t{0})},
          {"to", c10::IValue(std::int64_t{9})},
          {"low", c10::IValue(std::int64_t{0})},
          {"high", c10::IValue(std::int64_t{9})},
          {"n", c10::IValue(choose.random.between(0, 9))},
          {"size", ints(choose.sizes(3))}};
}

Hints sampling(Chooser& choose) {
  Literal weights = choose.literal({2, 5}, choose.floating_type());
  weights.fill = Literal::Fill::kPositive;
  return {{"self", Operand(weights)},
          {"generator", TheGenerator()},
          {"num_samples", c10::IValue(choose.random.between(1, 4))}};
}

Hints making(Chooser& choose) {
  return {{"size", ints(choose.sizes(3))},
          {"n", c10::IValue(choose.random.between(0, 4))},
          {"m", c10::IValue(choose.random.between(0, 4))},
          {"end", c10::IValue(choose.random.between(0, 9))},
          {"start", c10::IValue(std::int64_t{0})},
          {"step", c10::IValue(std::int64_t{1})},
          {"steps", c10::IValue(choose.random.between(0, 5))},
          {"row", c10::IValue(choose.random.between(0, 4))},
          {"col", c10::IValue(choose.random.between(0, 4))},
          {"stride", ints({1})}};
}

}  // namespace trellis::fuzz::hints
