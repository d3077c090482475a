#include "trainer/files/checkpoint/formats/hugging_face/hub_writer.h"

#include <algorithm>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/convert.h"
#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/formats/hugging_face/box_copy.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_folder.h"

namespace trellis::checkpoint::hugging_face {
namespace {

constexpr const char* kUnfinished = "export-unfinished";
constexpr std::int64_t kSlabBytes = std::int64_t{32} << 20;
constexpr std::int64_t kConvertedElements = std::int64_t{1} << 20;

using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Makes hub tensors from a source and writes them, part after part.
class TensorWriter {
 public:
  TensorWriter(const TensorSource& source, const ExportPlan& plan) : source_(source), plan_(plan) {
    pieces_of_.resize(plan.map.hub.size());
    for (const MapPiece& piece : plan.map.pieces) pieces_of_[piece.hub].push_back(&piece);
  }

  void write(std::size_t tensor, SafetensorsWriter& file) {
    const Shape& shape = plan_.map.hub[tensor].shape;
    const std::vector<const MapPiece*>& pieces = pieces_of_[tensor];
    const DType from = plan_.from[pieces.front()->native].dtype;
    const std::int64_t rows = shape.empty() ? 1 : shape[0];
    const std::int64_t row = elements_of(shape) / std::max<std::int64_t>(1, rows);
    // A part of the rows of a transposed tensor would be read from all rows of its source.
    const bool whole = pieces.front()->transposed;
    const std::int64_t step =
        whole ? rows
              : std::clamp<std::int64_t>(
                    kSlabBytes / std::max<std::int64_t>(1, row * element_bytes(from)), 1, rows);
    for (std::int64_t first = 0; first < rows; first += step) {
      Box slab{Shape(shape.size(), 0), shape};
      slab.offset[0] = first;
      slab.shape[0] = std::min(step, rows - first);
      fill(slab, pieces, element_bytes(from));
      put(from, plan_.dtypes[tensor], file);
    }
  }

 private:
  void fill(const Box& slab, const std::vector<const MapPiece*>& pieces, std::int64_t width) {
    slab_.resize(static_cast<std::size_t>(slab.elements() * width));
    for (const MapPiece* piece : pieces) {
      const auto [hub, native] = part_in_hub(*piece, slab);
      if (hub.elements() == 0) continue;
      const TensorEntry& from = plan_.from[piece->native];
      if (!piece->transposed && hub == slab) return source_.read(from, native, slab_);
      part_.resize(static_cast<std::size_t>(native.elements() * width));
      source_.read(from, native, part_);
      Box target = hub;
      for (std::size_t axis = 0; axis < target.offset.size(); ++axis)
        target.offset[axis] -= slab.offset[axis];
      copy_box({part_, native.shape}, {Shape(native.shape.size(), 0), native.shape},
               {slab_, slab.shape}, target, width, piece->transposed);
    }
  }

  void put(DType from, DType to, SafetensorsWriter& file) {
    if (from == to) return file.write(slab_);
    const auto width = static_cast<std::size_t>(element_bytes(from)),
               wide = static_cast<std::size_t>(element_bytes(to));
    const std::size_t elements = slab_.size() / width;
    std::vector<std::byte> converted;
    for (std::size_t first = 0; first < elements; first += kConvertedElements) {
      const std::size_t count = std::min<std::size_t>(kConvertedElements, elements - first);
      converted.resize(count * wide);
      convert_elements(from, std::span(slab_).subspan(first * width, count * width), to, converted);
      file.write(converted);
    }
  }

  const TensorSource& source_;
  const ExportPlan& plan_;
  std::vector<std::vector<const MapPiece*>> pieces_of_;
  std::vector<std::byte> slab_, part_;
};

std::vector<std::pair<std::string, TensorMeta>> contents_of(const ExportPlan& plan,
                                                            const ExportShard& shard) {
  std::vector<std::pair<std::string, TensorMeta>> contents;
  for (const std::size_t i : shard.tensors)
    contents.emplace_back(plan.map.hub[i].name,
                          TensorMeta{.dtype = plan.dtypes[i], .shape = plan.map.hub[i].shape});
  return contents;
}

/// True if an interrupted export wrote the file. Files appear complete or not at all.
bool is_written(const Place& out, const ExportPlan& plan, const ExportShard& shard) {
  if (!out.has(shard.file)) return false;
  const SafetensorsReader reader(out.storage->open(join_path(out.path, shard.file)));
  const auto contents = contents_of(plan, shard);
  return reader.tensors().size() == contents.size() &&
         std::ranges::all_of(contents, [&](const auto& expected) {
           const SafetensorsEntry* entry = reader.find(expected.first);
           return entry != nullptr && entry->meta == expected.second;
         });
}

/// Hash of the plan and of the source's address. An export with another hash is another export.
std::string identity_of(const TensorSource& source, const ExportPlan& plan) {
  const std::string text = source.address() + "\n" + plan.to_string();
  ContentHasher hasher;
  hasher.bytes(text.data(), text.size());
  return hasher.finish().to_string();
}

void begin(const Place& out, const std::string& identity) {
  const std::string marker = join_path(out.path, kUnfinished);
  if (out.storage->exists(marker)) {
    if (out.storage->read_text(marker, 100) == identity) return;
    throw ConfigError(join_path(out.address(), kUnfinished) +
                      ": another export was interrupted here; expected an empty folder or the same "
                      "export: remove the folder, or choose another one");
  }
  for (const char* file : {kConfigFile, kSafetensorsFile, kSafetensorsIndexFile}) {
    if (out.has(file))
      throw ConfigError(out.address() + ": expected an empty folder, found one with " + file +
                        "; remove it, or choose another one");
  }
  out.storage->write_text(marker, identity);
}

void write_index(const ExportPlan& plan, const Place& out) {
  nlohmann::json index{
      {"metadata", {{"total_parameters", plan.parameters}, {"total_size", plan.bytes}}},
      {"weight_map", nlohmann::json::object()}};
  for (const ExportShard& shard : plan.shards) {
    for (const std::size_t i : shard.tensors)
      index["weight_map"][plan.map.hub[i].name] = shard.file;
  }
  out.storage->write_text(join_path(out.path, kSafetensorsIndexFile), index.dump(2) + "\n");
}

constexpr const char* kTokenizerFiles[] = {"tokenizer.json",      "tokenizer_config.json",
                                           "tokenizer.model",     "special_tokens_map.json",
                                           "added_tokens.json",   "vocab.json",
                                           "merges.txt",          "vocab.txt",
                                           "chat_template.jinja", "chat_template.json"};

SideFiles files_named(const Place& folder, std::span<const char* const> names) {
  SideFiles files;
  for (const char* name : names) {
    if (folder.has(name)) files[name] = folder.storage->read_text(join_path(folder.path, name));
  }
  return files;
}

}  // namespace

void write_export(const TensorSource& source, const ExportPlan& plan, const SideFiles& side_files,
                  const Place& out, const Progress& progress) {
  begin(out, identity_of(source, plan));
  TensorWriter writer(source, plan);
  std::int64_t done = 0;
  const auto advance = [&](std::int64_t bytes) {
    done += bytes;
    if (progress) progress(done, plan.bytes);
  };
  for (const ExportShard& shard : plan.shards) {
    if (is_written(out, plan, shard)) {
      advance(shard.bytes);
      continue;
    }
    SafetensorsWriter file(out.storage->create(join_path(out.path, shard.file)),
                           contents_of(plan, shard), {{"format", "pt"}});
    for (const std::size_t place : file.data_order()) {
      const std::size_t tensor = shard.tensors[place];
      writer.write(tensor, file);
      advance(elements_of(plan.map.hub[tensor].shape) * element_bytes(plan.dtypes[tensor]));
    }
    file.finish();
  }
  for (const auto& [name, text] : side_files)
    out.storage->write_text(join_path(out.path, name), text);
  if (plan.shards.size() > 1) write_index(plan, out);
  out.storage->remove_file(join_path(out.path, kUnfinished));
}

std::map<std::string, std::string> files_of_index(const Place& folder) {
  if (!folder.has(kSafetensorsIndexFile)) return {};
  return read_safetensors_index(*folder.storage, join_path(folder.path, kSafetensorsIndexFile))
      .weight_map;
}

SideFiles tokenizer_files(const Place& folder) {
  SideFiles files = files_named(folder, kTokenizerFiles);
  if (files.empty())
    throw ConfigError(folder.address() +
                      ": expected a folder with a tokenizer's files, such as tokenizer.json or "
                      "tokenizer.model, found none; correct the path");
  return files;
}

SideFiles files_next_to_weights(const Place& folder) {
  SideFiles files = files_named(folder, kTokenizerFiles);
  constexpr const char* kConfigs[] = {kConfigFile, kGenerationConfigFile};
  files.merge(files_named(folder, kConfigs));
  return files;
}

}  // namespace trellis::checkpoint::hugging_face
