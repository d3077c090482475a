#include "trainer/files/checkpoint/adapters/peft_folder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/files/checkpoint/adapters/adapter_weights.h"
#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::adapters {
namespace {

using nlohmann::json;

constexpr const char* kPrefix = "base_model.model.";

/// A tensor of adapter_model.safetensors.
struct Piece {
  std::string name;
  TensorEntry from;
  Box box;
  bool transposed = false;
  [[nodiscard]] TensorMeta meta() const {
    Shape shape = box.shape;
    if (transposed) std::swap(shape[0], shape[1]);
    return {.dtype = from.dtype, .shape = shape};
  }
};

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

void add_pieces(const AdapterSlice& slice, std::vector<Piece>& pieces) {
  const std::string path = kPrefix + slice.module;
  const Box rows{{slice.first_row, 0}, {slice.rows, slice.rank()}};
  if (slice.embedding) {
    pieces.push_back({path + ".lora_embedding_A", slice.a, whole(slice.a.shape), true});
    pieces.push_back({path + ".lora_embedding_B", slice.b, rows});
  } else {
    pieces.push_back({path + ".lora_A.weight", slice.a, whole(slice.a.shape)});
    pieces.push_back({path + ".lora_B.weight", slice.b, rows});
  }
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string owner_of(const std::string& key) { return key.substr(0, key.rfind('.')); }

/// Names that end the paths of adapted modules; whole paths where another module has such an end.
json target_modules(const TensorSource& source, const std::vector<AdapterSlice>& slices) {
  std::set<std::string> adapted, ends;
  for (const AdapterSlice& slice : slices) {
    adapted.insert(slice.module);
    ends.insert(last_name(slice.module));
  }
  for (const TensorEntry& entry : source.tensors()) {
    const std::string module = owner_of(entry.key);
    if (!parse_state_key(entry.key).state.empty() || is_adapter_key(entry.key)) continue;
    if (ends.contains(last_name(module)) && !adapted.contains(module)) return adapted;
  }
  return ends;
}

/// Whole paths: PEFT takes every module whose path ends in the letters of a name.
json modules_to_save(const TensorSource& source, const trainer::LoraSection& lora) {
  std::set<std::string> modules;
  for (const TensorEntry& entry : source.tensors()) {
    if (parse_state_key(entry.key).state.empty() && lora.saves_module(owner_of(entry.key)))
      modules.insert(owner_of(entry.key));
  }
  return modules.empty() ? json() : json(modules);
}

json config_of(const TensorSource& source, const trainer::LoraSection& lora,
               const std::vector<AdapterSlice>& slices, const std::string& base_model) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base_model},
          {"inference_mode", true},
          {"fan_in_fan_out", false},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", lora.dropout},
          {"use_rslora", lora.use_rslora},
          {"bias", lora.bias},
          {"init_lora_weights", lora.gaussian ? json("gaussian") : json(true)},
          {"target_modules", target_modules(source, slices)},
          {"modules_to_save", modules_to_save(source, lora)}};
}

using Metadata = std::map<std::string, std::string>;

void write_weights(const TensorSource& source, const std::vector<Piece>& pieces, const Place& out,
                   const Metadata& metadata) {
  std::vector<std::pair<std::string, TensorMeta>> contents;
  for (const Piece& piece : pieces) contents.emplace_back(piece.name, piece.meta());
  SafetensorsWriter file(out.storage->create(join_path(out.path, kAdapterWeightsFile)), contents,
                         metadata);
  for (const std::size_t i : file.data_order()) {
    const Piece& piece = pieces[i];
    const auto width = static_cast<std::size_t>(element_bytes(piece.from.dtype));
    std::vector<std::byte> bytes(static_cast<std::size_t>(piece.box.elements()) * width);
    source.read(piece.from, piece.box, bytes);
    if (piece.transposed) {
      const auto rows = static_cast<std::size_t>(piece.box.shape[0]),
                 columns = static_cast<std::size_t>(piece.box.shape[1]);
      std::vector<std::byte> other(bytes.size());
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t column = 0; column < columns; ++column)
          std::copy_n(&bytes[(row * columns + column) * width], width,
                      &other[(column * rows + row) * width]);
      }
      bytes = std::move(other);
    }
    file.write(bytes);
  }
  file.finish();
}

}  // namespace

PeftFolder write_peft_folder(const TensorSource& source, const trainer::LoraSection& lora,
                             const PeftOptions& options, const Place& out) {
  const std::vector<AdapterSlice> slices = adapters_of(source);
  if (slices.empty()) throw ConfigError(source.address() + ": it holds no adapters");
  std::vector<Piece> pieces;
  for (const AdapterSlice& slice : slices) {
    if (slice.rank() != lora.rank)
      throw ConfigError(source.address() + ": " + slice.a.key + " is of rank " +
                        std::to_string(slice.rank()) + ", and peft.lora_rank says " +
                        std::to_string(lora.rank) + ": name the configuration of its training");
    add_pieces(slice, pieces);
  }
  for (const TensorEntry& entry : source.tensors()) {
    if (parse_state_key(entry.key).state.empty() && !is_adapter_key(entry.key) &&
        lora.saves_module(owner_of(entry.key)))
      pieces.push_back({kPrefix + entry.key, entry, whole(entry.shape)});
  }
  for (const char* file : {trainer::kAdapterConfigFile, kAdapterWeightsFile}) {
    if (!options.replaces && out.has(file))
      throw ConfigError(out.address() + ": expected an empty folder, found one with " + file +
                        "; remove it, or choose another one");
  }
  out.storage->make_directories(out.path);
  const json config = config_of(source, lora, slices, options.base_model);
  Metadata metadata{{"format", "pt"}};
  if (options.config_in_file) metadata.emplace("lora_config", config.dump());
  write_weights(source, pieces, out, metadata);
  out.storage->write_text(join_path(out.path, trainer::kAdapterConfigFile), config.dump(2) + "\n");
  PeftFolder folder{static_cast<std::int64_t>(slices.size())};
  for (const Piece& piece : pieces) {
    folder.parameters += piece.box.elements();
    folder.bytes += piece.box.elements() * element_bytes(piece.from.dtype);
  }
  return folder;
}

}  // namespace trellis::checkpoint::adapters
