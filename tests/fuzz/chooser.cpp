#include "tests/fuzz/chooser.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>

namespace trellis::fuzz {
namespace {

using Sizes = std::vector<std::int64_t>;

const std::vector<at::ScalarType> kFloatingTypes = {at::kFloat, at::kFloat, at::kDouble,
                                                    at::kBFloat16, at::kHalf};
const std::vector<at::ScalarType> kTypes = {
    at::kFloat, at::kFloat, at::kFloat, at::kDouble, at::kBFloat16,
    at::kHalf,  at::kLong,  at::kInt,   at::kBool,   at::kComplexFloat};
const std::vector<std::int64_t> kExtents = {0, 1, 1, 2, 2, 3, 3, 4, 5, 7};

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

bool broadcasts(at::IntArrayRef a, const Sizes& b) {
  for (std::size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const std::int64_t x = a[a.size() - i], y = b[b.size() - i];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

at::ScalarType Chooser::type() { return random.pick(kTypes); }
at::ScalarType Chooser::floating_type() { return random.pick(kFloatingTypes); }

Sizes Chooser::sizes(std::int64_t most_dims) {
  Sizes sizes(static_cast<std::size_t>(random.between(0, most_dims)));
  for (std::int64_t& size : sizes) size = random.pick(kExtents);
  return sizes;
}

Sizes Chooser::broadcast(const Sizes& from) {
  Sizes sizes = from;
  for (std::int64_t& size : sizes) {
    if (random.chance(0.2)) size = 1;
  }
  if (!sizes.empty() && random.chance(0.2)) sizes.erase(sizes.begin());
  if (random.chance(0.05)) sizes.insert(sizes.begin(), random.between(1, 2));
  return sizes;
}

Literal Chooser::literal(Sizes sizes, at::ScalarType type) {
  Literal literal{std::move(sizes), type};
  if (random.chance(0.4)) literal.layout = static_cast<Literal::Layout>(random.between(1, 4));
  literal.seed = random.next() % 100000;
  return literal;
}

Literal Chooser::indices(Sizes sizes, std::int64_t below) {
  Literal index = literal(std::move(sizes), random.chance(0.9) ? at::kLong : at::kInt);
  index.fill = Literal::Fill::kIndex;
  index.below = below + (random.chance(0.05) ? 1 : 0);  // out of range now and then
  return index;
}

Operand Chooser::any() {
  return existing([](const at::Tensor&) { return true; }, literal(sizes(), type()));
}

Operand Chooser::floating() {
  return existing([](const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); },
                  literal(sizes(), floating_type()));
}

const at::Tensor* Chooser::value(const Operand& operand) const {
  const auto* const value = std::get_if<Value>(&operand);
  return value == nullptr ? nullptr : &machine_.live().at(value->id);
}

Sizes Chooser::sizes_of(const Operand& operand) const {
  if (const at::Tensor* tensor = value(operand)) return tensor->sizes().vec();
  const auto* const literal = std::get_if<Literal>(&operand);
  return literal == nullptr ? Sizes() : literal->sizes;
}

at::ScalarType Chooser::type_of(const Operand& operand) const {
  if (const at::Tensor* tensor = value(operand)) return tensor->scalar_type();
  const auto* const literal = std::get_if<Literal>(&operand);
  return literal == nullptr ? at::kFloat : literal->type;
}

bool Chooser::requires_grad(const Operand& operand) const {
  const at::Tensor* const tensor = value(operand);
  return tensor != nullptr && tensor->requires_grad();
}

std::int64_t Chooser::dim() {
  const auto dims = static_cast<std::int64_t>(sizes_of(first_).size());
  if (random.chance(0.03)) return dims + 1;
  return dims == 0 ? random.between(-1, 0) : random.between(-dims, dims - 1);
}

std::int64_t Chooser::integer(const std::string& name) {
  const Sizes sizes = sizes_of(first_);
  const std::int64_t extent = sizes.empty() ? 1 : random.pick(sizes);
  if (starts_with(name, "dim") || starts_with(name, "axis") || name == "source" ||
      name == "destination")
    return dim();
  if (name == "index") return random.between(-extent, extent);
  if (name == "start") return random.between(-2, 3);
  if (name == "end") return random.between(0, 6);
  if (name == "step") return random.between(1, 3);
  if (name == "k" || name == "split_size" || name == "length") return random.between(0, extent + 1);
  if (name == "reduction") return random.between(0, 2);
  if (name == "diagonal" || name == "offset" || name == "correction") return random.between(-2, 2);
  return random.between(0, 4);
}

Sizes Chooser::integers(const std::string& name) {
  const Sizes own = sizes_of(first_);
  if (name == "size") return broadcast(own);
  Sizes values(static_cast<std::size_t>(
      random.between(0, std::max<std::int64_t>(1, static_cast<std::int64_t>(own.size())))));
  for (std::int64_t& value : values)
    value = starts_with(name, "dim") ? dim() : random.between(0, 3);
  return values;
}

Operand Chooser::tensor(const c10::Argument& parameter) {
  const std::string& name = parameter.name();
  const Sizes sizes = sizes_of(first_);
  const at::ScalarType own = type_of(first_);
  if (parameter.is_out()) {
    Literal fresh = literal({0}, random.chance(0.8) ? own : type());
    fresh.fill = Literal::Fill::kEmpty;
    if (random.chance(0.4)) return fresh;
    const auto is_separate = [&](const at::Tensor& tensor) {
      return out_may_alias_ || std::find(used_.begin(), used_.end(),
                                         tensor.storage().unsafeGetStorageImpl()) == used_.end();
    };
    return existing(
        [&](const at::Tensor& tensor) {
          return tensor.scalar_type() == own && !tensor.requires_grad() && is_separate(tensor);
        },
        fresh);
  }
  if (name == "mask" || name == "condition") return literal(broadcast(sizes), at::kBool);
  Literal companion = literal(broadcast(sizes), random.chance(0.8) ? own : type());
  if (random.chance(0.45)) return companion;
  if (random.chance(0.9))
    return existing([&](const at::Tensor& other) { return broadcasts(other.sizes(), sizes); },
                    companion);
  return any();
}

Operands Chooser::tensor_list(bool optional, bool written) {
  const bool leads = list_length_ == 0;
  if (leads) list_length_ = static_cast<std::size_t>(random.between(1, 4));
  if (!has_first_) {
    first_ = any();
    has_first_ = true;
  }
  const Sizes sizes = sizes_of(first_);
  const at::ScalarType own = type_of(first_);
  Operands list{{}, optional};
  const auto listed = [&](const at::Tensor& other) {
    return std::any_of(list.tensors.begin(), list.tensors.end(), [&](const Operand& operand) {
      const at::Tensor* const known = value(operand);
      return known != nullptr &&
             known->storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
    });
  };
  for (std::size_t i = 0; i < list_length_; ++i) {
    if (i == 0 && leads) {
      list.tensors.push_back(first_);
      continue;
    }
    // Autograd's account of memory that one call changes twice depends on the order in which its
    // parts are asked.
    const auto alike = [&](const at::Tensor& other) {
      return other.sizes() == at::IntArrayRef(sizes) && other.scalar_type() == own &&
             !(written && listed(other));
    };
    const Literal fresh = literal(written || random.chance(0.9) ? sizes : broadcast(sizes),
                                  random.chance(0.95) ? own : type());
    list.tensors.push_back(random.chance(0.4) ? Operand(fresh) : existing(alike, fresh));
  }
  return list;
}

Argument Chooser::list(const c10::Argument& parameter, const c10::Type& element) {
  const bool written = parameter.alias_info() != nullptr && parameter.alias_info()->isWrite();
  switch (element.kind()) {
    case c10::TypeKind::TensorType: return tensor_list(false, written);
    case c10::TypeKind::OptionalType: return tensor_list(true, written);
    case c10::TypeKind::BoolType: {
      c10::List<bool> values;
      for (std::int64_t i = parameter.N().value_or(1); i > 0; --i)
        values.push_back(random.chance(0.5));
      return c10::IValue(values);
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> values;
      for (std::size_t i = 0; i < std::max<std::size_t>(1, list_length_); ++i)
        values.push_back(0.5);
      return c10::IValue(values);
    }
    case c10::TypeKind::NumberType: {
      c10::List<at::Scalar> values;
      for (std::size_t i = 0; i < std::max<std::size_t>(1, list_length_); ++i)
        values.push_back(at::Scalar(random.between(1, 3)));
      return c10::IValue(c10::IValue(values));
    }
    default: return ints(integers(parameter.name()));
  }
}

Argument Chooser::by_type(const c10::Argument& parameter) {
  const c10::Type* type = parameter.real_type().get();
  if (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType().get();
  switch (type->kind()) {
    case c10::TypeKind::TensorType: {
      if (has_first_) return tensor(parameter);
      has_first_ = true;
      return first_ = any();
    }
    case c10::TypeKind::ListType:
      return list(parameter, *type->castRaw<c10::ListType>()->getElementType());
    case c10::TypeKind::NumberType: {
      static const std::vector<c10::IValue> numbers = {
          0.5, -1.5, 2.0, std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, true};
      return random.pick(numbers);
    }
    case c10::TypeKind::ScalarTypeType:
      return c10::IValue(static_cast<std::int64_t>(random.chance(0.7) ? this->type() : at::kFloat));
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return c10::IValue(integer(parameter.name()));
    case c10::TypeKind::FloatType:
      return c10::IValue(0.25 * static_cast<double>(random.between(0, 4)));
    case c10::TypeKind::BoolType: return c10::IValue(random.chance(0.5));
    case c10::TypeKind::GeneratorType: return TheGenerator();
    case c10::TypeKind::DeviceObjType: return TheDevice();
    case c10::TypeKind::StringType: {
      static const std::vector<std::string> words = {"none", "trunc", "floor", "sum",  "prod",
                                                     "mean", "amax",  "amin",  "tanh", "constant"};
      return c10::IValue(random.pick(words));
    }
    default: return c10::IValue();
  }
}

Argument Chooser::argument(const c10::Argument& parameter, const Hints& hints) {
  if (const auto hint = hints.find(parameter.name()); hint != hints.end()) return hint->second;
  const auto kind = parameter.real_type()->kind();
  const bool optional = kind == c10::TypeKind::OptionalType;
  const c10::Type& inner =
      optional ? *parameter.real_type()->castRaw<c10::OptionalType>()->getElementType()
               : *parameter.real_type();
  if (inner.kind() == c10::TypeKind::DeviceObjType) return TheDevice();
  if (inner.kind() == c10::TypeKind::GeneratorType) return TheGenerator();
  if (inner.kind() == c10::TypeKind::LayoutType || parameter.name() == "pin_memory" ||
      parameter.name() == "layout")
    return c10::IValue();
  if (inner.kind() == c10::TypeKind::MemoryFormatType) {
    return random.chance(0.8)
               ? c10::IValue()
               : c10::IValue(static_cast<std::int64_t>(at::MemoryFormat::Contiguous));
  }
  if (parameter.default_value().has_value() && random.chance(0.6))
    return *parameter.default_value();
  if (optional && random.chance(0.3)) return c10::IValue();
  return by_type(parameter);
}

void Chooser::note_use(const Argument& argument) {
  const auto note = [&](const Operand& operand) {
    if (const at::Tensor* tensor = value(operand))
      used_.push_back(tensor->storage().unsafeGetStorageImpl());
  };
  if (const auto* operand = std::get_if<Operand>(&argument)) note(*operand);
  if (const auto* operands = std::get_if<Operands>(&argument))
    std::for_each(operands->tensors.begin(), operands->tensors.end(), note);
}

std::vector<Argument> Chooser::fill(const c10::FunctionSchema& schema, const Hints& hints) {
  has_first_ = false;
  first_ = NoTensor();
  list_length_ = 0;
  used_.clear();
  out_may_alias_ = hints.contains(kOutMayAlias);
  for (const c10::Argument& parameter :
       schema.arguments()) {  // the first tensor, if the family names it: dims and sizes follow it
    const auto hint = hints.find(parameter.name());
    if (hint == hints.end()) continue;
    if (const auto* operand = std::get_if<Operand>(&hint->second)) {
      first_ = *operand;
      has_first_ = true;
      break;
    }
  }
  std::vector<Argument> arguments;
  for (const c10::Argument& parameter : schema.arguments()) {
    arguments.push_back(argument(parameter, hints));
    note_use(arguments.back());
  }
  return arguments;
}

}  // namespace trellis::fuzz
