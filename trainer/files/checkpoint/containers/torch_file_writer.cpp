#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "trainer/files/checkpoint/containers/pickle.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"

namespace trellis::checkpoint {
namespace {

constexpr const char* kFolder = "archive/";
constexpr const char* kPersistent = "storage";

/// Types without a separate storage class are saved over untyped storages.
const char* storage_class(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return "torch.DoubleStorage";
    case DType::kFloat32: return "torch.FloatStorage";
    case DType::kFloat16: return "torch.HalfStorage";
    case DType::kBFloat16: return "torch.BFloat16Storage";
    case DType::kInt64: return "torch.LongStorage";
    case DType::kInt32: return "torch.IntStorage";
    case DType::kInt16: return "torch.ShortStorage";
    case DType::kInt8: return "torch.CharStorage";
    case DType::kUInt8: return "torch.ByteStorage";
    case DType::kBool: return "torch.BoolStorage";
    case DType::kComplex64: return "torch.ComplexFloatStorage";
    case DType::kComplex128: return "torch.ComplexDoubleStorage";
    default: return nullptr;
  }
}

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

Value call(std::string function, Value::List arguments) {
  return Value::object({.form = ValueObject::Form::kCall,
                        .class_name = std::move(function),
                        .arguments = std::move(arguments)});
}

}  // namespace

struct TorchFileWriter::Impl {
  explicit Impl(std::unique_ptr<WritableFile> file) : zip(std::move(file)) {}

  struct Stored {
    DType dtype;
    std::int64_t bytes;
  };
  ZipWriter zip;
  std::vector<Stored> storages;
  std::vector<TorchTensor> tensors;

  /// The value that torch's pickler writes for a tensor.
  [[nodiscard]] Value rebuilt(const TorchTensor& tensor) const {
    const Stored& storage = storages[static_cast<std::size_t>(tensor.storage)];
    const char* typed = storage_class(storage.dtype);
    const std::int64_t elements =
        typed == nullptr ? storage.bytes : storage.bytes / element_bytes(storage.dtype);
    const Value id = Value::tuple(
        {"storage", Value::named(typed == nullptr ? "torch.storage.UntypedStorage" : typed),
         std::to_string(tensor.storage), "cpu", elements});
    Value::List arguments = {
        call(kPersistent, {id}),
        tensor.storage_offset,
        Value::tuple(Value::List(tensor.meta.shape.begin(), tensor.meta.shape.end())),
        Value::tuple(Value::List(tensor.strides.begin(), tensor.strides.end())),
        tensor.meta.requires_grad && !tensor.meta.is_parameter,
        Value::ordered_dict()};
    if (typed == nullptr) arguments.push_back(Value::dtype(tensor.meta.dtype));
    Value value = call(
        typed == nullptr ? "torch._utils._rebuild_tensor_v3" : "torch._utils._rebuild_tensor_v2",
        std::move(arguments));
    if (!tensor.meta.is_parameter) return value;
    return call("torch._utils._rebuild_parameter",
                {std::move(value), tensor.meta.requires_grad, Value::ordered_dict()});
  }
};

TorchFileWriter::TorchFileWriter(std::unique_ptr<WritableFile> file)
    : impl_(std::make_unique<Impl>(std::move(file))) {}
TorchFileWriter::~TorchFileWriter() = default;

std::int64_t TorchFileWriter::add_tensor(const TensorMeta& meta) {
  check_shape(meta, "a tensor to write");
  const auto storage = static_cast<std::int64_t>(impl_->storages.size());
  impl_->zip.begin(kFolder + ("data/" + std::to_string(storage)), meta.bytes());
  impl_->storages.push_back({.dtype = meta.dtype, .bytes = meta.bytes()});
  impl_->tensors.push_back({.meta = meta, .storage = storage, .strides = row_major(meta.shape)});
  return static_cast<std::int64_t>(impl_->tensors.size()) - 1;
}

std::int64_t TorchFileWriter::add_tensor(const TensorMeta& meta, std::span<const std::byte> data) {
  TRELLIS_CHECK(static_cast<std::int64_t>(data.size()) == meta.bytes(), "bytes of the tensor");
  const std::int64_t tensor = add_tensor(meta);
  write(data);
  return tensor;
}

std::int64_t TorchFileWriter::add_view(std::int64_t base, const TensorMeta& meta,
                                       std::int64_t storage_offset,
                                       std::vector<std::int64_t> strides) {
  check_shape(meta, "a view to write");
  const std::int64_t storage = impl_->tensors.at(static_cast<std::size_t>(base)).storage;
  const Impl::Stored& stored = impl_->storages[static_cast<std::size_t>(storage)];
  TRELLIS_CHECK(meta.dtype == stored.dtype, "a view of another type than its storage");
  TRELLIS_CHECK(strides.size() == meta.shape.size(), "a stride per dimension");
  std::int64_t last = storage_offset;
  for (std::size_t i = 0; i < strides.size(); ++i) last += (meta.shape[i] - 1) * strides[i];
  TRELLIS_CHECK(
      meta.numel() == 0 || (storage_offset >= 0 && last < stored.bytes / element_bytes(meta.dtype)),
      "a view that leaves its storage");
  impl_->tensors.push_back({.meta = meta,
                            .storage = storage,
                            .storage_offset = storage_offset,
                            .strides = std::move(strides)});
  return static_cast<std::int64_t>(impl_->tensors.size()) - 1;
}

void TorchFileWriter::write(std::span<const std::byte> bytes) { impl_->zip.write(bytes); }

void TorchFileWriter::finish(const Value& root, const std::string& note) {
  PickleWriteOptions options;
  options.persistent_name = kPersistent;
  options.tensor = [this](std::int64_t index) {
    return impl_->rebuilt(impl_->tensors.at(static_cast<std::size_t>(index)));
  };
  const std::string folder = kFolder;
  impl_->zip.add(folder + "data.pkl", write_pickle(root, options));
  impl_->zip.add(folder + ".format_version", "1");
  impl_->zip.add(folder + ".storage_alignment", "64");
  impl_->zip.add(folder + "byteorder", "little");
  impl_->zip.add(folder + "version", "3\n");
  if (!note.empty()) impl_->zip.add(folder + kNoteRecord, note);
  impl_->zip.finish();
}

}  // namespace trellis::checkpoint
