#include "trainer/files/checkpoint/formats/native/manifest.h"

#include <algorithm>
#include <cstddef>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint::native {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "trellis.checkpoint/1";

json json_of(const StoredPart& part) {
  return {part.key, part.global_shape, part.global_offset, part.local.offset, part.local.shape};
}

json json_of(const StoredTensor& tensor) {
  json path = json::array(), parts = json::array();
  for (const PathKey& key : tensor.path)
    std::visit([&](const auto& value) { path.push_back(value); }, key);
  for (const StoredPart& part : tensor.parts) parts.push_back(json_of(part));
  json row{{"file", tensor.file},
           {"path", path},
           {"dtype", name(tensor.dtype)},
           {"shape", tensor.shape},
           {"parts", parts}};
  if (tensor.entry_length > 0) row["entry"] = {tensor.entry_offset, tensor.entry_length};
  return row;
}

[[noreturn]] void refuse(const std::string& where, const std::string& text) {
  throw ConfigError(where + ": " + text + "; the checkpoint is damaged, load another one");
}

bool lies_in(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) return false;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (box.offset[axis] < 0 || box.shape[axis] < 0 || box.shape[axis] > shape[axis] ||
        box.offset[axis] > shape[axis] - box.shape[axis])
      return false;
  }
  return true;
}

/// Hash of the content's text; equal content always has the same text.
std::string hash_of(const std::string& content) {
  ContentHasher hasher;
  hasher.bytes(content.data(), content.size());
  return hasher.finish().to_string();
}

StoredPart part_from(const json& row, const StoredTensor& tensor, const std::string& where) {
  StoredPart part{row.at(0).get<std::string>(),
                  row.at(1).get<Shape>(),
                  row.at(2).get<Shape>(),
                  {row.at(3).get<Shape>(), row.at(4).get<Shape>()}};
  check_shape({.dtype = tensor.dtype, .shape = part.global_shape}, where);
  if (!lies_in(part.local, tensor.shape) ||
      !lies_in({part.global_offset, part.local.shape}, part.global_shape))
    refuse(where, "a part of " + tensor.id() + " leaves its tensor");
  return part;
}

StoredTensor tensor_from(const json& row, const std::string& where) {
  StoredTensor tensor;
  tensor.file = row.at("file").get<std::string>();
  check_relative_path(tensor.file, where);
  for (const json& key : row.at("path")) {
    if (key.is_string()) {
      tensor.path.emplace_back(key.get<std::string>());
    } else {
      tensor.path.emplace_back(key.get<std::int64_t>());
    }
  }
  const std::optional<DType> dtype = dtype_named(row.at("dtype").get<std::string>());
  if (!dtype) refuse(where, "no dtype is called " + row.at("dtype").get<std::string>());
  tensor.dtype = *dtype;
  tensor.shape = row.at("shape").get<Shape>();
  check_shape({.dtype = tensor.dtype, .shape = tensor.shape}, where);
  if (const auto entry = row.find("entry"); entry != row.end()) {
    tensor.entry_offset = entry->at(0).get<std::int64_t>();
    tensor.entry_length = entry->at(1).get<std::int64_t>();
    if (tensor.entry_offset < 0 || tensor.entry_length <= 0)
      refuse(where, "an entry of " + tensor.file + " lies outside it");
  }
  for (const json& part : row.at("parts")) tensor.parts.push_back(part_from(part, tensor, where));
  return tensor;
}

Manifest manifest_from(const json& document, const std::string& where) {
  if (document.at("schema") != kSchema)
    refuse(where,
           std::string("expected schema ") + kSchema + ", got " + document.at("schema").dump());
  Manifest manifest;
  manifest.step = document.at("step").get<std::int64_t>();
  manifest.consumed_samples = document.at("consumed_samples").get<std::int64_t>();
  manifest.sequence = document.at("sequence").get<std::int64_t>();
  if (const json& metric = document.at("metric"); !metric.is_null())
    manifest.metric = metric.get<double>();
  manifest.run = document.value("run", "");
  manifest.tag = document.value("tag", "");
  manifest.layout = document.at("layout").get<std::map<std::string, std::int64_t>>();
  for (const auto& [file, row] : document.at("files").items()) {
    check_relative_path(file, where);
    manifest.files[file] = {row.at("bytes").get<std::int64_t>(),
                            row.at("xxh3_128").get<std::string>()};
  }
  for (const json& row : document.at("tensors")) {
    manifest.tensors.push_back(tensor_from(row, where));
    if (!manifest.files.contains(manifest.tensors.back().file))
      refuse(where, manifest.tensors.back().file + " is in no list of files");
  }
  return manifest;
}

}  // namespace

std::string StoredTensor::id() const {
  std::string text = file + ":";
  for (std::size_t i = 0; i < path.size(); ++i) {
    text += i == 0 ? "" : "/";
    const auto* word = std::get_if<std::string>(&path[i]);
    text += word != nullptr ? *word : std::to_string(std::get<std::int64_t>(path[i]));
  }
  if (entry_length > 0) text += std::to_string(entry_offset);
  return text;
}

std::string Manifest::to_json() const {
  json document{{"schema", kSchema},
                {"step", step},
                {"consumed_samples", consumed_samples},
                {"sequence", sequence},
                {"metric", nullptr},
                {"layout", layout},
                {"files", json::object()},
                {"tensors", json::array()}};
  if (metric) document["metric"] = *metric;
  if (!run.empty()) document["run"] = run;
  if (!tag.empty()) document["tag"] = tag;
  for (const auto& [file, stored] : files)
    document["files"][file] = {{"bytes", stored.bytes}, {"xxh3_128", stored.xxh3_128}};
  for (const StoredTensor& tensor : tensors) document["tensors"].push_back(json_of(tensor));
  const std::string content = document.dump();
  return R"({"content":)" + content + R"(,"xxh3_128":")" + hash_of(content) + "\"}\n";
}

Manifest Manifest::from_json(const std::string& text, const std::string& where) {
  try {
    const json document = json::parse(text);
    const json& content = document.at("content");
    if (hash_of(content.dump()) != document.at("xxh3_128").get<std::string>())
      refuse(where, "its content is not what was saved");
    return manifest_from(content, where);
  } catch (const json::exception& error) {
    refuse(where, terminal_line(error.what()));
  }
}

std::string problem_of_mark(Storage& storage, const std::string& tag, const char* mark) {
  const std::string path = join_path(tag, mark);
  if (!storage.exists(path)) return "is missing";
  try {
    constexpr std::int64_t kMostBytes = 64;
    const std::string text = storage.read_text(path, kMostBytes);
    return text == "1" ? "" : "expected \"1\", got \"" + terminal_line(text) + "\"";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

Manifest read_manifest(Storage& storage, const std::string& tag) {
  const std::string where = join_path(storage.address(), tag);
  const auto has = [&](const char* file) { return storage.exists(join_path(tag, file)); };
  if (!has(kManifestFile) && !has(kBeginFile))
    throw ConfigError(where + ": expected a checkpoint's folder with a file `" +
                      std::string(kBeginFile) +
                      "`, found none; correct the path (`trellis checkpoint list` shows those of a "
                      "run)");
  if (!has(kDoneFile) || storage.exists(unfinished_marker(tag)))
    throw ConfigError(where +
                      ": the checkpoint is incomplete: its save was interrupted (no file `" +
                      std::string(kDoneFile) + "`); load an earlier one");
  for (const char* mark : {kBeginFile, kDoneFile}) {
    if (const std::string problem = problem_of_mark(storage, tag, mark); !problem.empty())
      refuse(join_path(where, mark), problem);
  }
  if (!has(kManifestFile))
    throw ConfigError(where + ": no " + std::string(kManifestFile) +
                      ": not written by this program; import it first");
  return Manifest::from_json(storage.read_text(join_path(tag, kManifestFile)),
                             where + "/" + kManifestFile);
}

StoredFile hash_file(const ReadableFile& file, std::span<const FileRange> ranges) {
  ContentHasher hasher;
  const auto read_to = [&](std::int64_t offset, std::int64_t end, std::byte* into) {
    read_pieces(file, offset, end, into, [&](std::span<const std::byte> piece) {
      hasher.bytes(piece.data(), piece.size());
    });
  };
  std::int64_t done = 0;
  for (const FileRange& range : ranges) {
    read_to(done, range.offset, nullptr);
    done = range.offset + static_cast<std::int64_t>(range.into.size());
    read_to(range.offset, done, range.into.data());
  }
  read_to(done, file.size(), nullptr);
  return {file.size(), hasher.finish().to_string()};
}

}  // namespace trellis::checkpoint::native
