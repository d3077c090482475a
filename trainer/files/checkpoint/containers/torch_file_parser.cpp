#include "trainer/files/checkpoint/containers/torch_file_parser.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/pickle.h"

namespace trellis::checkpoint {
namespace {

/// The name of the call that represents a storage while the pickle is read.
constexpr const char* kStorage = "storage";
constexpr const char* kWithAttributes = "torch._tensor._rebuild_from_type_v2";
constexpr std::int64_t kMostPickle = std::int64_t{4} << 30;
/// A tensor may repeat its storage, as expand() does, but not so that it fills the memory.
constexpr std::int64_t kMostRepeats = 16, kFreeElements = std::int64_t{1} << 24;

struct StorageClass {
  const char* name;
  DType dtype;
};
constexpr StorageClass kStorageClasses[] = {
    {"torch.DoubleStorage", DType::kFloat64},
    {"torch.FloatStorage", DType::kFloat32},
    {"torch.HalfStorage", DType::kFloat16},
    {"torch.BFloat16Storage", DType::kBFloat16},
    {"torch.LongStorage", DType::kInt64},
    {"torch.IntStorage", DType::kInt32},
    {"torch.ShortStorage", DType::kInt16},
    {"torch.CharStorage", DType::kInt8},
    {"torch.ByteStorage", DType::kUInt8},
    {"torch.BoolStorage", DType::kBool},
    {"torch.ComplexFloatStorage", DType::kComplex64},
    {"torch.ComplexDoubleStorage", DType::kComplex128},
};

std::optional<DType> storage_dtype(const std::string& class_name) {
  for (const StorageClass& known : kStorageClasses) {
    if (class_name == known.name) return known.dtype;
  }
  return std::nullopt;
}

bool starts_with(std::span<const std::byte> bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() &&
         std::string_view(reinterpret_cast<const char*>(bytes.data()), prefix.size()) == prefix;
}

const Value& argument(const Value::List& arguments, std::size_t index) {
  if (index >= arguments.size()) throw ConfigError("an argument is missing");
  return arguments[index];
}

}  // namespace

TorchFileParser::TorchFileParser(TorchFileReader& reader, std::set<std::string> classes)
    : reader_(reader), classes_(std::move(classes)) {}

void TorchFileParser::fail(const std::string& what) const {
  throw ConfigError(reader_.name() + ": " + what);
}

void TorchFileParser::refuse_other_formats() const {
  std::array<std::byte, 512> head{};
  const auto size = static_cast<std::size_t>(
      std::min<std::int64_t>(reader_.file_->size(), static_cast<std::int64_t>(head.size())));
  reader_.file_->read(0, std::span(head).first(size));
  const std::span<const std::byte> bytes = std::span(head).first(size);
  const std::string again =
      "; expected the zip format of PyTorch 1.6 and later: load it with Python and write it again "
      "with torch.save";
  // The first pickle of the older format is a magic number.
  if (starts_with(bytes, std::string_view("\x80\x02\x8a\x0al\xfc\x9c"
                                          "F\xf9 j\xa8P\x19.",
                                          15)))
    fail("is in the format of PyTorch 1.5 and before" + again);
  if (size > 262 && starts_with(bytes.subspan(257), "ustar"))
    fail("is a tar archive of PyTorch 0.1" + again);
  if (starts_with(bytes, "\x80")) fail("is a bare pickle" + again);
  if (!starts_with(bytes, "PK")) fail("is no file of torch.save" + again);
}

void TorchFileParser::find_folder() {
  for (const ZipRecord& found : zip_->records()) {
    if (!found.name.ends_with("/data.pkl") && found.name != "data.pkl") continue;
    const std::string folder = found.name.substr(0, found.name.size() - 8);
    if (folder_.empty() || folder.size() < folder_.size()) folder_ = folder;
  }
  if (record("data.pkl") == nullptr)
    fail("has no record data.pkl: a zip archive, but not of torch.save");
  if (record("constants.pkl") != nullptr)
    fail("is a TorchScript program; expected data, as torch.save writes them");
}

const ZipRecord* TorchFileParser::record(const std::string& name) const {
  return zip_->find(folder_ + name);
}

void TorchFileParser::parse() {
  refuse_other_formats();
  zip_.emplace(reader_.file_);
  find_folder();
  if (const ZipRecord* order = record("byteorder")) {
    const std::vector<std::byte> text = zip_->read(*order);
    if (!starts_with(text, "little"))
      fail("holds big-endian data, which are not supported; expected byteorder little");
  }
  const ZipRecord& data = *record("data.pkl");
  if (data.size > kMostPickle) fail("has a data.pkl of " + std::to_string(data.size) + " bytes");
  PickleOptions options;
  options.where = reader_.name() + ", data.pkl";
  options.classes = std::move(classes_);
  options.persistent = [this](const Value& id) { return storage(id); };
  options.call = [this](const std::string& function, const Value::List& arguments) {
    return call(function, arguments);
  };
  reader_.root_ = read_pickle(zip_->read(data), options);
  constexpr std::int64_t kMostNote = std::int64_t{1} << 16;
  if (const ZipRecord* note = record(kNoteRecord); note != nullptr && note->size <= kMostNote) {
    const std::vector<std::byte> text = zip_->read(*note);
    reader_.note_.assign(reinterpret_cast<const char*>(text.data()), text.size());
  }
}

/// ("storage", class, key, location, elements)
Value TorchFileParser::storage(const Value& id) {
  try {
    const Value::List& parts = id.items();
    if (parts.size() != 5 || parts[0].as_string() != "storage")
      fail("a persistent id that is no storage: " + id.text(80));
    const std::string& class_name = parts[1].class_name();
    const bool untyped = class_name == "torch.storage.UntypedStorage";
    const std::optional<DType> dtype = storage_dtype(class_name);
    if (!dtype && !untyped) fail("a storage of class '" + terminal_line(class_name) + "'");
    const std::string& key = parts[2].as_string();
    const std::int64_t elements = parts[4].as_int(), width = dtype ? element_bytes(*dtype) : 1;
    const auto [known, added] =
        storage_by_key_.try_emplace(key, static_cast<std::int64_t>(reader_.storages_.size()));
    if (added) {
      const ZipRecord* data = record("data/" + key);
      if (data == nullptr) fail("has no record data/" + terminal_line(key));
      reader_.storages_.push_back({.key = key,
                                   .bytes = data->size,
                                   .file_offset = zip_->data_offset(*data),
                                   .location = parts[3].as_string(),
                                   .crc32 = data->crc32});
    }
    const TorchStorage& found = reader_.storages_[static_cast<std::size_t>(known->second)];
    if (elements < 0 || elements > found.bytes / width)
      fail("data/" + terminal_line(key) + " has " + std::to_string(found.bytes) +
           " bytes; expected " + std::to_string(elements) + " elements");
    return Value::object(
        {.form = ValueObject::Form::kCall,
         .class_name = kStorage,
         .arguments = {known->second, dtype ? Value::dtype(*dtype) : Value(), elements}});
  } catch (const ConfigError& error) {
    if (std::string_view(error.what()).starts_with(reader_.name())) throw;
    fail(std::string("a persistent id: ") + error.what());
  }
}

void TorchFileParser::check_strides(const TorchTensor& tensor) const {
  const std::string what = "a tensor that leaves its storage data/" +
                           reader_.storages_[static_cast<std::size_t>(tensor.storage)].key;
  const std::int64_t elements = reader_.storages_[static_cast<std::size_t>(tensor.storage)].bytes /
                                element_bytes(tensor.meta.dtype);
  if (tensor.strides.size() != tensor.meta.shape.size()) fail(what + ": strides do not fit");
  std::int64_t last = tensor.storage_offset;
  if (last < 0 || last > elements) fail(what);
  if (tensor.meta.numel() == 0) return;
  for (std::size_t i = 0; i < tensor.strides.size(); ++i) {
    std::int64_t step = 0;
    if (tensor.strides[i] < 0 ||
        __builtin_mul_overflow(tensor.meta.shape[i] - 1, tensor.strides[i], &step) ||
        __builtin_add_overflow(last, step, &last))
      fail(what);
  }
  if (last >= elements) fail(what);
  if (tensor.meta.numel() > kFreeElements && tensor.meta.numel() / kMostRepeats > elements)
    fail("a tensor of " + std::to_string(tensor.meta.numel()) + " elements over a storage of " +
         std::to_string(elements));
}

/// (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata])
Value TorchFileParser::rebuild_tensor(const Value::List& arguments, bool untyped) {
  const Value& storage = argument(arguments, 0);
  if (storage.class_name() != kStorage || storage.as_object().arguments.size() != 3)
    throw ConfigError("expected a storage, got " + storage.text(80));
  const Value& typed = storage.as_object().arguments[1];
  if (!untyped && typed.is_none()) throw ConfigError("a storage without a type");
  TorchTensor tensor;
  tensor.storage = storage.as_object().arguments[0].as_int();
  tensor.storage_offset = argument(arguments, 1).as_int();
  tensor.meta.shape = argument(arguments, 2).as_ints();
  tensor.strides = argument(arguments, 3).as_ints();
  tensor.meta.dtype = untyped ? argument(arguments, 6).as_dtype() : typed.as_dtype();
  tensor.meta.requires_grad = arguments.size() > 4 && arguments[4].as_bool();
  if (const std::size_t metadata = untyped ? 7 : 6;
      arguments.size() > metadata && arguments[metadata].is_dict()) {
    for (const auto& [key, value] : arguments[metadata].as_dict()) {
      if (value.is(Value::Kind::kBool) && value.as_bool())
        throw ConfigError("a lazily changed view (" + key.text(20) + "), which is not supported");
    }
  }
  check_shape(tensor.meta, reader_.name());
  check_strides(tensor);
  reader_.tensors_.push_back(std::move(tensor));
  return Value::tensor(static_cast<std::int64_t>(reader_.tensors_.size()) - 1);
}

std::optional<Value> TorchFileParser::call(const std::string& function,
                                           const Value::List& arguments) {
  if (!function.starts_with("torch._utils._rebuild") && !function.starts_with("torch._tensor."))
    return std::nullopt;
  if (function == "torch._utils._rebuild_tensor_v2" || function == "torch._utils._rebuild_tensor")
    return rebuild_tensor(arguments, false);
  if (function == "torch._utils._rebuild_tensor_v3") return rebuild_tensor(arguments, true);
  if (function.starts_with("torch._utils._rebuild_parameter")) {
    const Value& data = argument(arguments, 0);
    TensorMeta& meta = reader_.tensors_[static_cast<std::size_t>(data.as_tensor())].meta;
    meta.is_parameter = true;
    meta.requires_grad = argument(arguments, 1).as_bool();
    return data;
  }
  if (function == "torch._utils._rebuild_device_tensor_from_cpu_tensor") {
    const Value& data = argument(arguments, 0);
    TensorMeta& meta = reader_.tensors_[static_cast<std::size_t>(data.as_tensor())].meta;
    if (meta.dtype != argument(arguments, 1).as_dtype())
      throw ConfigError("a tensor that changes its type when it is loaded");
    meta.requires_grad = argument(arguments, 3).as_bool();
    return data;
  }
  if (function == kWithAttributes) {
    const std::string& inner = argument(arguments, 0).class_name();
    // PyTorch writes no such call inside another; a file could nest them without end.
    if (inner != kWithAttributes) return call(inner, argument(arguments, 2).items());
  }
  throw ConfigError("a kind of tensor that is not supported");
}

}  // namespace trellis::checkpoint
