#include "trainer/files/checkpoint/containers/safetensors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/json/json_builder.h"

namespace trellis::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
/// The safetensors library refuses longer headers too.
constexpr std::uint64_t kMostHeader = 100'000'000;
constexpr std::size_t kHeaderAlignment = 8;

struct SafetensorsType {
  DType dtype;
  const char* name;
};
constexpr SafetensorsType kTypes[] = {
    {DType::kFloat64, "F64"},
    {DType::kFloat32, "F32"},
    {DType::kFloat16, "F16"},
    {DType::kBFloat16, "BF16"},
    {DType::kFloat8E4M3FN, "F8_E4M3"},
    {DType::kFloat8E5M2, "F8_E5M2"},
    {DType::kFloat8E8M0FNU, "F8_E8M0"},
    {DType::kFloat8E4M3FNUZ, "F8_E4M3FNUZ"},
    {DType::kFloat8E5M2FNUZ, "F8_E5M2FNUZ"},
    {DType::kInt64, "I64"},
    {DType::kInt32, "I32"},
    {DType::kInt16, "I16"},
    {DType::kInt8, "I8"},
    {DType::kUInt64, "U64"},
    {DType::kUInt32, "U32"},
    {DType::kUInt16, "U16"},
    {DType::kUInt8, "U8"},
    {DType::kBool, "BOOL"},
    {DType::kComplex64, "C64"},
};

std::optional<DType> dtype_of(const std::string& type) {
  for (const SafetensorsType& known : kTypes) {
    if (type == known.name) return known.dtype;
  }
  return std::nullopt;
}

const char* type_of(DType dtype) {
  for (const SafetensorsType& known : kTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return nullptr;
}

/// A document hides a key that occurs twice.
json parse_json(const std::string& text, const std::string& where) {
  try {
    json parsed = JsonBuilder<json>::parse(text, {.deepest = 8, .unique_keys = true});
    if (!parsed.is_object()) throw ConfigError("expected a JSON object");
    return parsed;
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
}

std::int64_t whole_number(const json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >> 62 != 0)
    throw ConfigError(
        where + ": expected a whole number, got " +
        terminal_line(value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 80)));
  return static_cast<std::int64_t>(value.get<std::uint64_t>());
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::shared_ptr<const ReadableFile> file)
    : file_(std::move(file)) {
  const std::int64_t size = file_->size();
  if (size < kLengthBytes)
    throw ConfigError(name() + ": " + std::to_string(size) +
                      " bytes; expected a safetensors file, which begins with 8 bytes of length");
  unsigned char text[kLengthBytes];
  file_->read(0, std::as_writable_bytes(std::span(text)));
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | text[i];
  if (length > kMostHeader || length > static_cast<std::uint64_t>(size - kLengthBytes)) {
    throw ConfigError(name() + ": a header of " + std::to_string(length) +
                      " bytes; expected at most " +
                      std::to_string(std::min<std::uint64_t>(
                          kMostHeader, static_cast<std::uint64_t>(size - kLengthBytes))) +
                      ": the file is cut off, damaged or no safetensors file");
  }
  std::string header(length, '\0');
  file_->read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  read_entries(header, data_begin);
  std::sort(
      tensors_.begin(), tensors_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::pair(a.file_offset, a.meta.bytes()) < std::pair(b.file_offset, b.meta.bytes());
      });
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
  check_cover(data_begin);
}

void SafetensorsReader::read_entries(const std::string& header, std::int64_t data_begin) {
  const json parsed = parse_json(header, name() + ", header");
  for (const auto& [key, item] : parsed.items()) {
    const std::string where = name() + ", tensor '" + terminal_line(key) + "'";
    if (!item.is_object()) throw ConfigError(where + ": expected an object");
    if (key == "__metadata__") {
      for (const auto& [field, text] : item.items()) {
        if (!text.is_string()) throw ConfigError(where + ": expected texts");
        metadata_[field] = text.get<std::string>();
      }
      continue;
    }
    const auto dtype = item.find("dtype"), shape = item.find("shape"),
               offsets = item.find("data_offsets");
    if (dtype == item.end() || shape == item.end() || offsets == item.end() ||
        !dtype->is_string() || !shape->is_array() || !offsets->is_array() || offsets->size() != 2)
      throw ConfigError(where + ": expected dtype, shape and data_offsets");
    SafetensorsEntry entry{.name = key};
    const std::optional<DType> known = dtype_of(dtype->get<std::string>());
    if (!known)
      throw ConfigError(where + ": dtype '" + terminal_line(dtype->get<std::string>()) +
                        "' is not supported");
    entry.meta.dtype = *known;
    for (const json& extent : *shape) entry.meta.shape.push_back(whole_number(extent, where));
    check_shape(entry.meta, where);
    const std::int64_t begin = whole_number((*offsets)[0], where),
                       end = whole_number((*offsets)[1], where);
    if (end - begin != entry.meta.bytes())
      throw ConfigError(where + ": " + std::to_string(end - begin) + " bytes; expected " +
                        std::to_string(entry.meta.bytes()) + " for its shape");
    entry.file_offset = data_begin + begin;
    tensors_.push_back(std::move(entry));
  }
}

/// Tensors, sorted by place, cover the data once and without gaps.
void SafetensorsReader::check_cover(std::int64_t data_begin) const {
  std::int64_t at = data_begin;
  for (const SafetensorsEntry& entry : tensors_) {
    if (entry.file_offset != at)
      throw ConfigError(name() + ", tensor '" + terminal_line(entry.name) + "': begins at byte " +
                        std::to_string(entry.file_offset) + " of the file; expected " +
                        std::to_string(at) + ", where the one before ends");
    at += entry.meta.bytes();
  }
  if (at != file_->size())
    throw ConfigError(name() + ": " + std::to_string(file_->size()) + " bytes; expected " +
                      std::to_string(at) + " for its tensors: the file is cut off or damaged");
}

const SafetensorsEntry* SafetensorsReader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsReader::read_bytes(const SafetensorsEntry& tensor, std::int64_t first_byte,
                                   std::span<std::byte> into) const {
  TRELLIS_CHECK(
      first_byte >= 0 && static_cast<std::int64_t>(into.size()) <= tensor.meta.bytes() - first_byte,
      "a range of bytes outside the tensor");
  if (!into.empty()) file_->read(tensor.file_offset + first_byte, into);
}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<WritableFile> file,
                                     std::vector<std::pair<std::string, TensorMeta>> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(file)), order_(tensors.size()) {
  for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    const std::int64_t wide = element_bytes(tensors[a].second.dtype),
                       wide_b = element_bytes(tensors[b].second.dtype);
    return wide != wide_b ? wide > wide_b : tensors[a].first < tensors[b].first;
  });
  std::string header = metadata.empty() ? "{" : "{\"__metadata__\":" + json(metadata).dump() + ",";
  std::set<std::string> names;
  for (const std::size_t i : order_) {
    const auto& [name, meta] = tensors[i];
    check_shape(meta, "tensor '" + name + "'");
    const char* type = type_of(meta.dtype);
    if (type == nullptr)
      throw Error(ExitCode::kConfig, "tensor '" + terminal_line(name) + "': safetensors has no " +
                                         trellis::checkpoint::name(meta.dtype));
    if (name == "__metadata__" || !names.insert(name).second)
      throw Error(ExitCode::kConfig,
                  "tensor '" + terminal_line(name) + "' occurs twice, or has a reserved name");
    header += json(name).dump() + ":{\"dtype\":\"" + type +
              "\",\"shape\":" + json(meta.shape).dump() + ",\"data_offsets\":[" +
              std::to_string(missing_) + "," + std::to_string(missing_ + meta.bytes()) + "]},";
    missing_ += meta.bytes();
  }
  if (header.ends_with(',')) header.pop_back();
  header += '}';
  header.resize((header.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::string length;
  for (int i = 0; i < kLengthBytes; ++i) length += static_cast<char>(header.size() >> (8 * i));
  header.insert(0, length);
  file_->write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  TRELLIS_CHECK(static_cast<std::int64_t>(bytes.size()) <= missing_, "more bytes than were said");
  file_->write(bytes);
  missing_ -= static_cast<std::int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  TRELLIS_CHECK(missing_ == 0, "bytes of tensors are missing");
  file_->close();
}

SafetensorsIndex read_safetensors_index(Storage& storage, const std::string& path) {
  const std::string where = join_path(storage.address(), path);
  const json parsed = parse_json(storage.read_text(path), where);
  SafetensorsIndex index;
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object())
    throw ConfigError(where + ": expected an object weight_map");
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || file.get_ref<const std::string&>().empty())
      throw ConfigError(where + ": weight_map['" + terminal_line(tensor) +
                        "']: expected the name of a file");
    index.weight_map[tensor] = file.get<std::string>();
    check_relative_path(index.weight_map[tensor],
                        where + ": weight_map['" + terminal_line(tensor) + "']");
  }
  if (const auto metadata = parsed.find("metadata");
      metadata != parsed.end() && metadata->is_object() && metadata->contains("total_size")) {
    const json& size = (*metadata)["total_size"];
    if (!size.is_number()) throw ConfigError(where + ": metadata.total_size: expected a number");
    index.total_size = size.is_number_unsigned() ? whole_number(size, where) : 0;
  }
  return index;
}

void write_safetensors_index(Storage& storage, const std::string& path,
                             const SafetensorsIndex& index) {
  const json content = {{"metadata", {{"total_size", index.total_size}}},
                        {"weight_map", index.weight_map}};
  storage.write_text(path, content.dump(2) + "\n");
}

}  // namespace trellis::checkpoint
