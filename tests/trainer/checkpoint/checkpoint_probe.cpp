#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/checkpoint/storage/storage.h"

/// For the Python oracles of this folder: reads files and says in JSON what they hold, and writes
/// files that PyTorch, safetensors and megatron-core then read.
namespace trellis::checkpoint {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  return text;
}

json to_json(const Value& value) {
  const auto all = [](const Value::List& items) {
    json list = json::array();
    for (const Value& item : items) list.push_back(to_json(item));
    return list;
  };
  switch (value.kind()) {
    case Value::Kind::kNone: return nullptr;
    case Value::Kind::kBool: return value.as_bool();
    case Value::Kind::kInt: return value.as_int();
    case Value::Kind::kFloat: return value.as_double();
    case Value::Kind::kString: return value.as_string();
    case Value::Kind::kBytes: return {{"bytes", hex(std::as_bytes(std::span(value.as_bytes())))}};
    case Value::Kind::kTensor: return {{"tensor", value.as_tensor()}};
    case Value::Kind::kList: return {{"list", all(value.items())}, {"class", value.class_name()}};
    case Value::Kind::kTuple: return {{"tuple", all(value.items())}, {"class", value.class_name()}};
    case Value::Kind::kDict: {
      json items = json::array();
      for (const auto& [key, item] : value.as_dict())
        items.push_back({to_json(key), to_json(item)});
      return {{"dict", items}, {"class", value.class_name()}};
    }
    case Value::Kind::kObject:
      return {{"object", value.class_name()},
              {"form", static_cast<int>(value.as_object().form)},
              {"arguments", all(value.as_object().arguments)},
              {"state", to_json(value.as_object().state)}};
  }
  return nullptr;
}

json meta_json(const TensorMeta& meta) {
  return {{"dtype", name(meta.dtype)},
          {"shape", meta.shape},
          {"requires_grad", meta.requires_grad},
          {"is_parameter", meta.is_parameter}};
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string leaf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

TorchFileReader open_torch(const std::string& path) {
  return TorchFileReader(open_storage(parent(path))->open(leaf(path)));
}

std::vector<std::byte> content(const TorchFileReader& reader, std::int64_t tensor) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(reader.tensors()[static_cast<std::size_t>(tensor)].meta.bytes()));
  reader.read_tensor(tensor, bytes);
  return bytes;
}

void torch_describe(const Arguments& arguments) {
  const TorchFileReader reader = open_torch(arguments.at(0));
  json tensors = json::array();
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    json tensor = meta_json(reader.tensors()[i].meta);
    tensor["storage"] = reader.tensors()[i].storage;
    tensor["data"] = hex(content(reader, static_cast<std::int64_t>(i)));
    // The same in pieces of some elements.
    const std::int64_t width = element_bytes(reader.tensors()[i].meta.dtype);
    std::vector<std::byte> pieces(static_cast<std::size_t>(reader.tensors()[i].meta.bytes()));
    for (std::size_t at = 0; at < pieces.size();) {
      const std::size_t count = std::min(pieces.size() - at, static_cast<std::size_t>(5 * width));
      reader.read_bytes(static_cast<std::int64_t>(i), static_cast<std::int64_t>(at),
                        std::span(pieces).subspan(at, count));
      at += count;
    }
    tensor["pieces"] = hex(pieces);
    tensors.push_back(tensor);
  }
  std::cout << json{{"root", to_json(reader.root())}, {"tensors", tensors}}.dump() << "\n";
}

/// Every tensor becomes contiguous with its own storage.
void torch_copy(const Arguments& arguments) {
  const TorchFileReader reader = open_torch(arguments.at(0));
  TorchFileWriter writer(open_storage(parent(arguments.at(1)))->create(leaf(arguments.at(1))));
  for (std::size_t i = 0; i < reader.tensors().size(); ++i)
    (void)writer.add_tensor(reader.tensors()[i].meta,
                            content(reader, static_cast<std::int64_t>(i)));
  writer.finish(reader.root());
}

/// Bytes 0, 1, 2, … in one tensor of each type, views of one storage, and plain values.
void torch_write(const Arguments& arguments) {
  TorchFileWriter writer(open_storage(parent(arguments.at(0)))->create(leaf(arguments.at(0))));
  Value root = Value::dict();
  for (const DType dtype : all_dtypes()) {
    const TensorMeta meta{.dtype = dtype, .shape = {2, 3}};
    std::vector<std::byte> data(static_cast<std::size_t>(meta.bytes()));
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<std::byte>(dtype == DType::kBool ? i % 2 : i);
    const std::int64_t tensor = writer.add_tensor(meta);
    writer.write(std::span(data).first(5));
    writer.write(std::span(data).subspan(5));
    root.set(name(dtype), Value::tensor(tensor));
  }
  root.set("empty", Value::tensor(writer.add_tensor({.shape = {0, 3}}, {})));
  const std::vector<float> numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::int64_t base =
      writer.add_tensor({.shape = {2, 4}, .requires_grad = true, .is_parameter = true},
                        std::as_bytes(std::span(numbers)));
  root.set("parameter", Value::tensor(base));
  root.set("transposed", Value::tensor(writer.add_view(base, {.shape = {4, 2}}, 0, {1, 4})));
  root.set("scalar", Value::tensor(writer.add_view(base, {.shape = {}}, 5, {})));
  root.set("values", Value::list({1,
                                  -1,
                                  70000,
                                  std::int64_t{1} << 40,
                                  0.5,
                                  true,
                                  {},
                                  "text é",
                                  Value::bytes(std::string("\0\xff", 2)),
                                  Value::tuple({}),
                                  Value::tuple({1, 2, 3, 4}),
                                  Value::size({2, 3}),
                                  Value::ordered_dict({{"a", 1}}),
                                  Value::dtype(DType::kBFloat16),
                                  Value::list({1, 2}, "builtins.set")}));
  writer.finish(root);
}

/// Leaves blocks of zeros out of the file, so that 5 GiB cost no disk.
class SparseFile : public WritableFile {
 public:
  explicit SparseFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0666)) {}
  ~SparseFile() override { ::close(descriptor_); }
  void write(std::span<const std::byte> bytes) override {
    const bool zeros = bytes.size() >= 4096 && bytes[0] == std::byte{0} &&
                       std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
    if (!zeros && pwrite(descriptor_, bytes.data(), bytes.size(), position_) !=
                      static_cast<ssize_t>(bytes.size()))
      throw Error(ExitCode::kOutput, "pwrite");
    position_ += static_cast<off_t>(bytes.size());
  }
  void close() override { (void)!ftruncate(descriptor_, position_); }

 private:
  int descriptor_;
  off_t position_ = 0;
};

/// A tensor of 5 GiB, whose record needs zip64, and one after it.
void torch_big(const Arguments& arguments) {
  TorchFileWriter writer(std::make_unique<SparseFile>(arguments.at(0)));
  const std::int64_t bytes = std::int64_t{5} << 30;
  const std::int64_t big = writer.add_tensor({.dtype = DType::kUInt8, .shape = {bytes}});
  const std::vector<std::byte> zeros(std::size_t{64} << 20);
  const std::byte seven{7};
  for (std::int64_t left = bytes - 1; left > 0;) {
    const auto count = std::min<std::int64_t>(left, static_cast<std::int64_t>(zeros.size()));
    writer.write(std::span(zeros).first(static_cast<std::size_t>(count)));
    left -= count;
  }
  writer.write({&seven, 1});
  const std::vector<float> numbers = {1, 2, 3};
  const std::int64_t after_it =
      writer.add_tensor({.shape = {3}}, std::as_bytes(std::span(numbers)));
  writer.finish(Value::dict({{"big", Value::tensor(big)}, {"after_it", Value::tensor(after_it)}}));
  const TorchFileReader reader = open_torch(arguments.at(0));
  std::byte last{};
  reader.read_bytes(big, bytes - 1, {&last, 1});
  std::cout << json{{"last", static_cast<int>(last)}, {"after_it", hex(content(reader, after_it))}}
            << "\n";
}

SafetensorsReader open_safetensors(const std::string& path) {
  return SafetensorsReader(open_storage(parent(path))->open(leaf(path)));
}

std::vector<std::byte> content(const SafetensorsReader& reader, const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.meta.bytes()));
  reader.read_bytes(entry, 0, bytes);
  return bytes;
}

void safetensors_describe(const Arguments& arguments) {
  const SafetensorsReader reader = open_safetensors(arguments.at(0));
  json tensors = json::object();
  for (const SafetensorsEntry& entry : reader.tensors()) {
    tensors[entry.name] = meta_json(entry.meta);
    tensors[entry.name]["data"] = hex(content(reader, entry));
  }
  std::cout << json{{"metadata", reader.metadata()}, {"tensors", tensors}}.dump() << "\n";
}

void safetensors_copy(const Arguments& arguments) {
  const SafetensorsReader reader = open_safetensors(arguments.at(0));
  std::vector<std::pair<std::string, TensorMeta>> entries;
  for (const SafetensorsEntry& entry : reader.tensors())
    entries.emplace_back(entry.name, entry.meta);
  SafetensorsWriter writer(open_storage(parent(arguments.at(1)))->create(leaf(arguments.at(1))),
                           entries, reader.metadata());
  for (const std::size_t i : writer.data_order())
    writer.write(content(reader, *reader.find(entries[i].first)));
  writer.finish();
}

void index_copy(const Arguments& arguments) {
  const auto in = open_storage(parent(arguments.at(0)));
  const SafetensorsIndex index = read_safetensors_index(*in, leaf(arguments.at(0)));
  write_safetensors_index(*open_storage(parent(arguments.at(1))), leaf(arguments.at(1)), index);
}

std::vector<std::byte> content(const DcpReader& reader, const std::string& tensor,
                               std::size_t chunk) {
  const DcpTensor& whole = reader.metadata().tensors.at(tensor);
  const TensorMeta meta{.dtype = whole.meta.dtype, .shape = whole.chunks[chunk].sizes};
  std::vector<std::byte> bytes(static_cast<std::size_t>(meta.bytes()));
  reader.read_chunk(tensor, chunk, 0, bytes);
  return bytes;
}

void dcp_describe(const Arguments& arguments) {
  const DcpReader reader(open_storage(arguments.at(0)), "");
  json tensors = json::object(), objects = json::object();
  for (const auto& [name, tensor] : reader.metadata().tensors) {
    json described = meta_json(tensor.meta);
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
      described["chunks"].push_back({{"offsets", tensor.chunks[i].offsets},
                                     {"sizes", tensor.chunks[i].sizes},
                                     {"data", hex(content(reader, name, i))}});
    tensors[name] = described;
  }
  for (const auto& [name, place] : reader.metadata().objects)
    objects[name] = to_json(reader.open_object(name)->root());
  std::cout << json{{"tensors", tensors},
                    {"objects", objects},
                    {"planner", to_json(reader.metadata().planner_data)}}
                   .dump()
            << "\n";
}

/// The same checkpoint, written by us: chunks to two files, alternately.
void dcp_copy(const Arguments& arguments) {
  const DcpReader reader(open_storage(arguments.at(0)), "");
  const auto storage = open_storage(arguments.at(1));
  DcpMetadata copy = reader.metadata();
  DcpFileWriter first(*storage, "", dcp_file_name(0, 0)), second(*storage, "", dcp_file_name(1, 0));
  std::size_t count = 0;
  for (auto& [name, tensor] : copy.tensors) {
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      DcpFileWriter& file = ++count % 2 == 0 ? first : second;
      file.begin_chunk({.dtype = tensor.meta.dtype, .shape = tensor.chunks[i].sizes});
      file.write(content(reader, name, i));
      tensor.chunks[i].place = file.end_chunk();
    }
  }
  for (auto& [name, place] : copy.objects) {
    const auto object = reader.open_object(name);
    if (object->tensors().empty()) {
      place = first.add_object(object->root());
    } else {
      std::string bytes(static_cast<std::size_t>(place.length), '\0');
      open_storage(arguments.at(0))
          ->open(place.file)
          ->read(place.offset, std::as_writable_bytes(std::span(bytes)));
      place = second.add_object_file(bytes);
    }
  }
  first.close();
  second.close();
  write_dcp_metadata(*storage, "", copy);
}

std::vector<std::byte> pattern(std::int64_t bytes) {
  std::vector<std::byte> content(static_cast<std::size_t>(bytes));
  std::uint32_t state = 1;
  for (std::byte& byte : content)
    byte = static_cast<std::byte>((state = state * 1664525 + 1) >> 24);
  return content;
}

/// put ADDRESS PATH BYTES
void put(const Arguments& arguments) {
  const auto storage = open_storage(arguments.at(0));
  const auto file = storage->create(arguments.at(1));
  file->write(pattern(std::stoll(arguments.at(2))));
  file->close();
}

/// As put, without close(): nothing may be left.
void put_half(const Arguments& arguments) {
  const auto storage = open_storage(arguments.at(0));
  storage->create(arguments.at(1))->write(pattern(std::stoll(arguments.at(2))));
}

/// check ADDRESS PATH BYTES: what put wrote, in pieces of 3 MB.
void check(const Arguments& arguments) {
  const auto file = open_storage(arguments.at(0))->open(arguments.at(1));
  const std::vector<std::byte> expected = pattern(std::stoll(arguments.at(2)));
  std::vector<std::byte> got(static_cast<std::size_t>(file->size()));
  for (std::size_t at = 0; at < got.size(); at += 3'000'000)
    file->read(static_cast<std::int64_t>(at),
               std::span(got).subspan(at, std::min<std::size_t>(3'000'000, got.size() - at)));
  std::cout << json(got == expected) << "\n";
}

void list(const Arguments& arguments) {
  json entries = json::array();
  for (const Entry& entry :
       open_storage(arguments.at(0))->list(arguments.at(1), arguments.at(2) == "recursive"))
    entries.push_back({entry.path, entry.is_directory, entry.bytes, entry.modified_ns > 0});
  std::cout << entries.dump() << "\n";
}

void exists(const Arguments& arguments) {
  std::cout << json(open_storage(arguments.at(0))->exists(arguments.at(1))) << "\n";
}
void remove_file(const Arguments& arguments) {
  open_storage(arguments.at(0))->remove_file(arguments.at(1));
}
void remove_directory(const Arguments& arguments) {
  open_storage(arguments.at(0))->remove_directory(arguments.at(1));
}

/// modules LIBRARY: whether the process has it after it opened a local storage.
void loads(const Arguments& arguments) {
  (void)open_storage(arguments.at(0))->exists("");
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  std::cout << json(text.find("libarrow") != std::string::npos) << "\n";
}

}  // namespace
}  // namespace trellis::checkpoint

int main(int count, char** values) {
  using namespace trellis::checkpoint;
  const std::map<std::string, void (*)(const Arguments&)> verbs = {
      {"torch-describe", &torch_describe},
      {"torch-copy", &torch_copy},
      {"torch-write", &torch_write},
      {"torch-big", &torch_big},
      {"safetensors-describe", &safetensors_describe},
      {"safetensors-copy", &safetensors_copy},
      {"index-copy", &index_copy},
      {"dcp-describe", &dcp_describe},
      {"dcp-copy", &dcp_copy},
      {"put", &put},
      {"put-half", &put_half},
      {"check", &check},
      {"list", &list},
      {"exists", &exists},
      {"remove-file", &remove_file},
      {"remove-directory", &remove_directory},
      {"loads-arrow", &loads}};
  try {
    const Arguments arguments(values + 2, values + count);
    verbs.at(count > 1 ? values[1] : "")(arguments);
    return 0;
  } catch (const trellis::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
