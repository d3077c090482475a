#pragma once

#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/storage/storage.h"

/// Small good files of each format, and functions that read all of them.
namespace trellis::checkpoint::testing_support {

inline std::vector<float> numbers(std::size_t count) {
  std::vector<float> result(count);
  std::iota(result.begin(), result.end(), 1.0f);
  return result;
}

inline void write_torch_sample(Storage& storage, const std::string& path) {
  TorchFileWriter writer(storage.create(path));
  const std::vector<float> data = numbers(12);
  const auto bytes = std::as_bytes(std::span(data));
  const std::int64_t whole = writer.add_tensor({.shape = {3, 4}, .is_parameter = true}, bytes);
  const std::int64_t view = writer.add_view(whole, {.shape = {4, 2}}, 1, {1, 4});
  const std::int64_t half =
      writer.add_tensor({.dtype = DType::kFloat8E4M3FN, .shape = {48}}, bytes);
  writer.finish(Value::dict({{"whole", Value::tensor(whole)},
                             {"view", Value::tensor(view)},
                             {"half", Value::tensor(half)},
                             {"step", 7},
                             {"names", Value::list({"a", "b", Value::tuple({1, 2.5})})}}));
}

/// Everything that a torch file says.
inline std::string read_torch(const TorchFileReader& reader) {
  std::string all = reader.root().text(100'000);
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const TensorMeta& meta = reader.tensors()[i].meta;
    std::vector<std::byte> bytes(static_cast<std::size_t>(meta.bytes()));
    reader.read_tensor(static_cast<std::int64_t>(i), bytes);
    all += std::string(name(meta.dtype)) + Value::size(meta.shape).text();
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}
inline std::string read_torch(Storage& storage, const std::string& path) {
  return read_torch(TorchFileReader(storage.open(path)));
}

inline void write_safetensors_sample(Storage& storage, const std::string& path) {
  const std::vector<float> data = numbers(12);
  const auto bytes = std::as_bytes(std::span(data));
  SafetensorsWriter writer(storage.create(path),
                           {{"b", {.shape = {3, 4}}},
                            {"a", {.dtype = DType::kUInt8, .shape = {5}}},
                            {"none", {.shape = {0, 2}}}},
                           {{"format", "pt"}});
  for (const std::size_t i : writer.data_order())
    writer.write(i == 0 ? bytes : bytes.first(i == 1 ? 5 : 0));
  writer.finish();
}

inline std::string read_safetensors(Storage& storage, const std::string& path) {
  const SafetensorsReader reader(storage.open(path));
  std::string all;
  for (const auto& [key, text] : reader.metadata()) all += key + text;
  for (const SafetensorsEntry& entry : reader.tensors()) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.meta.bytes()));
    reader.read_bytes(entry, 0, bytes);
    all += entry.name + name(entry.meta.dtype) + Value::size(entry.meta.shape).text();
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

inline void write_dcp_sample(Storage& storage, const std::string& folder) {
  const std::vector<float> data = numbers(12);
  const auto bytes = std::as_bytes(std::span(data));
  DcpMetadata metadata;
  DcpTensor& tensor = metadata.tensors["w"];
  tensor.meta = {.shape = {3, 4}};
  DcpFileWriter first(storage, folder, dcp_file_name(0, 0)),
      second(storage, folder, dcp_file_name(1, 0));
  first.begin_chunk({.shape = {2, 4}});
  first.write(bytes.first(32));
  tensor.chunks.push_back({.offsets = {0, 0}, .sizes = {2, 4}, .place = first.end_chunk()});
  second.begin_chunk({.shape = {1, 4}});
  second.write(bytes.subspan(32));
  tensor.chunks.push_back({.offsets = {2, 0}, .sizes = {1, 4}, .place = second.end_chunk()});
  metadata.objects["step"] = second.add_object(Value::list({1, "x"}));
  metadata.planner_data =
      Value::dict({{"w", Value::tuple({"w"})}, {"step", Value::tuple({"step"})}});
  first.close();
  second.close();
  write_dcp_metadata(storage, folder, metadata);
}

inline std::string read_dcp(const std::shared_ptr<Storage>& storage, const std::string& folder) {
  const DcpReader reader(storage, folder);
  std::string all = reader.metadata().planner_data.text(100'000);
  for (const auto& [name, tensor] : reader.metadata().tensors) {
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const TensorMeta meta{.dtype = tensor.meta.dtype, .shape = tensor.chunks[i].sizes};
      std::vector<std::byte> bytes(static_cast<std::size_t>(meta.bytes()));
      reader.read_chunk(name, i, 0, bytes);
      all += name + Value::size(tensor.chunks[i].offsets).text();
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  for (const auto& [name, place] : reader.metadata().objects)
    all += name + read_torch(*reader.open_object(name));
  return all;
}

}  // namespace trellis::checkpoint::testing_support
