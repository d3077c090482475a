#include "tests/fuzz/machine.h"

#include <algorithm>
#include <cstring>
#include <regex>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

namespace trellis::fuzz {
namespace {

/// Larger results are not kept, so that chains of repeat, outer, pad … stay small.
constexpr std::int64_t kMostElements = 2048;
constexpr std::size_t kMostBytes = 65536;

struct Missing {};

std::string first_line(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string without_device(const std::string& text) {
  static const std::regex device("neuron:[0-9]+|neuron|PrivateUse1|privateuseone|CPU");
  return std::regex_replace(text, device, "cpu");
}

at::Tensor literal_values(const Literal& literal, at::IntArrayRef sizes) {
  at::Generator generator = at::detail::createCPUGenerator(literal.seed);
  switch (literal.fill) {
    case Literal::Fill::kIndex:
      return at::randint(0, std::max<std::int64_t>(1, literal.below), sizes, generator,
                         at::TensorOptions(literal.type));
    case Literal::Fill::kPositive:
      return at::randint(1, 5, sizes, generator, at::TensorOptions(at::kLong)).to(literal.type);
    case Literal::Fill::kEmpty:
    case Literal::Fill::kNormal: break;
  }
  if (literal.type == at::kBool)
    return at::randint(0, 2, sizes, generator, at::TensorOptions(at::kBool));
  return at::randn(sizes, generator,
                   at::TensorOptions(c10::isComplexType(literal.type) ? literal.type : at::kDouble))
      .mul(3)
      .to(literal.type);
}

/// Bytes of each storage that lives. Memory that a statement adds to one is undefined.
std::map<c10::StorageImpl*, std::size_t> storage_sizes(const std::map<Id, at::Tensor>& live) {
  std::map<c10::StorageImpl*, std::size_t> sizes;
  for (const auto& [id, tensor] : live)
    sizes.emplace(tensor.storage().unsafeGetStorageImpl(), tensor.storage().nbytes());
  return sizes;
}

void define(const at::Tensor& tensor, std::size_t from) {
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() > from && storage.data() != nullptr)
    std::memset(static_cast<char*>(storage.mutable_data()) + from, 0, storage.nbytes() - from);
}

/// PyTorch lets some operators make such tensors; no one may read them.
bool reaches_beyond_its_storage(const at::Tensor& tensor) {
  const auto offset = static_cast<std::size_t>(tensor.storage_offset());
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          offset) > tensor.storage().nbytes();
}

bool leaves_memory_undefined(const Statement& statement) {
  return statement.op.name.find("resize_") != std::string::npos ||
         statement.op.name.find("set_") != std::string::npos;
}

bool makes_undefined_memory(const Statement& statement) {
  return statement.op.name.find("empty") != std::string::npos;
}

}  // namespace

std::string to_text(const Outcome& outcome) {
  if (outcome.skipped) return "skipped";
  if (!outcome.error.empty()) return outcome.error;
  return c10::str("no error; ", c10::Join(" ", outcome.plain));
}

Machine::Machine(at::Device device, std::uint64_t seed)
    : device_(device),
      generator_(device.is_cpu() ? at::detail::createCPUGenerator(seed)
                                 : at::globalContext().defaultGenerator(device).clone()) {
  generator_.set_current_seed(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(seed);
}

at::Tensor Machine::make(const Literal& literal) const {
  const at::Device device = literal.on_host ? at::Device(at::kCPU) : device_;
  if (literal.fill == Literal::Fill::kEmpty)
    return at::empty({0}, at::TensorOptions(literal.type).device(device));
  std::vector<std::int64_t> sizes = literal.sizes;
  const bool flat = sizes.empty();
  switch (flat ? Literal::Layout::kContiguous : literal.layout) {
    case Literal::Layout::kContiguous: break;
    case Literal::Layout::kTransposed:
      std::swap(sizes.front(), sizes.back());
      return literal_values(literal, sizes).to(device).transpose(0, -1);
    case Literal::Layout::kStepped:
      sizes.back() = sizes.back() * 2 + 1;
      return literal_values(literal, sizes).to(device).slice(-1, 1, sizes.back(), 2);
    case Literal::Layout::kOffset:
      sizes.front() += 2;
      return literal_values(literal, sizes).to(device).slice(0, 1, sizes.front() - 1);
    case Literal::Layout::kExpanded:
      sizes.front() = 1;
      return literal_values(literal, sizes).to(device).expand(literal.sizes);
  }
  return literal_values(literal, sizes).to(device);
}

at::Tensor Machine::tensor(const Operand& operand) const {
  if (const auto* value = std::get_if<Value>(&operand)) {
    const auto found = live_.find(value->id);
    if (found == live_.end()) throw Missing();
    return found->second;
  }
  if (const auto* literal = std::get_if<Literal>(&operand)) return make(*literal);
  return {};
}

c10::IValue Machine::ivalue(const Argument& argument) const {
  if (const auto* plain = std::get_if<c10::IValue>(&argument)) return *plain;
  if (const auto* operand = std::get_if<Operand>(&argument)) {
    return std::holds_alternative<NoTensor>(*operand) ? c10::IValue()
                                                      : c10::IValue(tensor(*operand));
  }
  if (const auto* storage = std::get_if<StorageOf>(&argument))
    return tensor(Value{storage->id}).storage();
  if (std::holds_alternative<TheGenerator>(argument)) return generator_;
  if (std::holds_alternative<TheDevice>(argument)) return device_;
  const auto& operands = std::get<Operands>(argument);
  c10::List<at::Tensor> tensors;
  c10::List<std::optional<at::Tensor>> optionals;
  for (const Operand& operand : operands.tensors) {
    const at::Tensor one = tensor(operand);
    if (operands.optional) {
      optionals.push_back(one.defined() ? std::optional(one) : std::nullopt);
    } else {
      tensors.push_back(one);
    }
  }
  return operands.optional ? c10::IValue(optionals) : c10::IValue(tensors);
}

void Machine::keep(Id& id, const at::Tensor& result) {
  const Id mine = id++;
  if (!result.defined() || result.device() != device_) return;
  if (result.numel() <= kMostElements && result.storage().nbytes() <= kMostBytes)
    live_[mine] = result;
}

Outcome Machine::call(const Statement& statement) {
  Outcome outcome;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      statement.op.name.c_str(), statement.op.overload_name.c_str());
  torch::jit::Stack stack;
  for (const Argument& argument : statement.arguments) stack.push_back(ivalue(argument));
  op.callBoxed(&stack);
  Id id = statement.first_result;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      keep(id, value.toTensor());
    } else if (value.isTensorList()) {
      std::size_t count = 0;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (++count < kMaxResults) keep(id, tensor);
      }
    } else {
      outcome.plain.push_back(c10::str(value));
    }
  }
  return outcome;
}

/// Defines the bytes after the last element of a new storage, or of one that grew. They are
/// undefined: kernels may have used them, or never.
void Machine::define_tails(const Statement& statement,
                           const std::map<c10::StorageImpl*, std::size_t>& before) {
  std::map<c10::StorageImpl*, std::size_t> ends;
  for (auto made = live_.lower_bound(statement.first_result); made != live_.end(); ++made) {
    const at::Tensor& tensor = made->second;
    const bool undefined = makes_undefined_memory(statement);
    const auto known = before.find(tensor.storage().unsafeGetStorageImpl());
    if (!undefined && known != before.end() && known->second >= tensor.storage().nbytes()) continue;
    const auto offset = static_cast<std::size_t>(tensor.storage_offset());
    std::size_t end = undefined ? 0
                                : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                                   tensor.itemsize(), offset);
    if (known != before.end() && known->second < offset * tensor.itemsize())
      end = known->second;  // it grew, with a gap before the tensor
    std::size_t& latest = ends[tensor.storage().unsafeGetStorageImpl()];
    latest = std::max(latest, end);
  }
  for (auto made = live_.lower_bound(statement.first_result); made != live_.end(); ++made) {
    if (const auto end = ends.find(made->second.storage().unsafeGetStorageImpl());
        end != ends.end())
      define(made->second, end->second);
  }
}

void Machine::leaf(const Statement& statement) {
  Id id = statement.first_result;
  keep(id, tensor(std::get<Operand>(statement.arguments[0])).detach().clone().requires_grad_());
}

void Machine::backward(const Statement& statement) {
  const at::Tensor result = tensor(std::get<Operand>(statement.arguments[0]));
  std::vector<at::Tensor> leaves;
  for (const auto& [id, tensor] : live_) {
    if (tensor.requires_grad() && tensor.is_leaf() && static_cast<Id>(leaves.size()) < kMaxResults)
      leaves.push_back(tensor);
  }
  const bool again = std::get<c10::IValue>(statement.arguments[1]).toBool();
  const auto gradients = torch::autograd::grad({result}, leaves, {at::ones_like(result)},
                                               /*retain_graph=*/true, again, /*allow_unused=*/true);
  Id id = statement.first_result;
  for (const at::Tensor& gradient : gradients) keep(id, gradient);
}

Outcome Machine::run(const Statement& statement) {
  const auto before = storage_sizes(live_);
  std::map<Id, std::int64_t> versions;
  for (const auto& [id, tensor] : live_) versions[id] = tensor._version();
  Outcome outcome;
  try {
    switch (statement.kind) {
      case Statement::Kind::kCall: outcome = call(statement); break;
      case Statement::Kind::kLeaf: leaf(statement); break;
      case Statement::Kind::kBackward: backward(statement); break;
      case Statement::Kind::kDrop:
        live_.erase(std::get<Value>(std::get<Operand>(statement.arguments[0])).id);
        break;
    }
  } catch (const Missing&) {
    outcome.skipped = true;
  } catch (const std::exception& error) {
    outcome.error = c10::str(typeid(error).name(), ": ", without_device(first_line(error)));
  }
  changed_.clear();
  for (const auto& [id, version] : versions) {
    // An operator that throws half way has changed some.
    if (const auto found = live_.find(id);
        outcome.error.empty() && found != live_.end() && found->second._version() != version)
      changed_.insert(id);
  }
  define_tails(statement, before);
  std::erase_if(live_, [](const auto& one) { return reaches_beyond_its_storage(one.second); });
  if (!outcome.error.empty() || leaves_memory_undefined(statement)) {
    for (const auto& [id, tensor] : live_) {
      const auto found = before.find(tensor.storage().unsafeGetStorageImpl());
      define(tensor, found == before.end() ? 0 : found->second);
    }
  }
  return outcome;
}

namespace {

std::string layout_text(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " sizes ", tensor.sizes(), " strides ", tensor.strides(),
                  " offset ", tensor.storage_offset(), " storage of ", tensor.storage().nbytes(),
                  " bytes", tensor.requires_grad() ? " requires_grad" : "",
                  tensor.is_leaf() ? " leaf" : "", tensor._is_zerotensor() ? " zero" : "",
                  tensor.is_conj() ? " conj" : "", tensor.is_neg() ? " neg" : "");
}

/// The elements' bytes in order of the indices.
std::string elements(const at::Tensor& tensor) {
  if (tensor._is_zerotensor())
    return std::string(static_cast<std::size_t>(tensor.numel()) * tensor.itemsize(),
                       '\0');  // autograd's: no bytes
  const auto* const base = static_cast<const char*>(tensor.storage().data()) +
                           tensor.storage_offset() * tensor.itemsize();
  if (tensor.is_contiguous()) return {base, base + tensor.numel() * tensor.itemsize()};
  std::string bytes;
  bytes.reserve(static_cast<std::size_t>(tensor.numel() * tensor.itemsize()));
  std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.dim()), 0);
  for (std::int64_t n = 0; n < tensor.numel(); ++n) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * tensor.strides()[d];
    bytes.append(base + at * tensor.itemsize(), static_cast<std::size_t>(tensor.itemsize()));
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == tensor.sizes()[d];) index[d] = 0;
  }
  return bytes;
}

/// Per tensor, the first one that lives with the same storage and the first one that is the same
/// tensor.
std::map<Id, std::pair<Id, Id>> sharing(const Machine& machine) {
  std::map<c10::StorageImpl*, Id> storages;
  std::map<c10::TensorImpl*, Id> tensors;
  std::map<Id, std::pair<Id, Id>> shared;
  for (const auto& [id, tensor] : machine.live()) {
    shared[id] = {storages.emplace(tensor.storage().unsafeGetStorageImpl(), id).first->second,
                  tensors.emplace(tensor.unsafeGetTensorImpl(), id).first->second};
  }
  return shared;
}

}  // namespace

namespace {

std::string joined(const std::set<Id>& ids) {
  std::string text;
  for (const Id id : ids) text += c10::str(text.empty() ? "" : " %", id);
  return text.empty() ? "(none)" : text;
}

}  // namespace

std::optional<std::string> layout_difference(const Machine& expected, const Machine& got) {
  for (const auto& [id, tensor] : expected.live()) {
    if (!got.live().contains(id)) return c10::str("%", id, " lives on the CPU only");
  }
  for (const auto& [id, tensor] : got.live()) {
    const auto other = expected.live().find(id);
    if (other == expected.live().end()) return c10::str("%", id, " does not live on the CPU");
    const std::string want = layout_text(other->second), have = layout_text(tensor);
    if (want != have) return c10::str("%", id, ": expected ", want, ", got ", have);
  }
  // More is harmless: LibTorch forgets some on the CPU (kron.out).
  if (!std::includes(got.changed().begin(), got.changed().end(), expected.changed().begin(),
                     expected.changed().end())) {
    return c10::str("expected new versions of %", joined(expected.changed()), ", got of %",
                    joined(got.changed()));
  }
  const auto want = sharing(expected), have = sharing(got);
  for (const auto& [id, first] : want) {
    if (have.at(id) != first) {
      return c10::str("%", id, ": expected the storage of %", first.first, " and the identity of %",
                      first.second, ", got %", have.at(id).first, " and %", have.at(id).second);
    }
  }
  return std::nullopt;
}

std::optional<std::string> difference(const Machine& expected, const Machine& got) {
  if (const auto layout = layout_difference(expected, got)) return layout;
  for (const auto& [id, tensor] : expected.live()) {
    if (elements(tensor) == elements(got.live().at(id))) continue;
    const at::NoGradGuard no_grad;
    return c10::str("%", id, " has other values: expected\n", tensor, "\ngot\n",
                    got.live().at(id).cpu());
  }
  return std::nullopt;
}

}  // namespace trellis::fuzz
