#include "trainer/files/checkpoint/containers/dcp_metadata.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/pickle.h"

namespace trellis::checkpoint {
namespace {

const std::string kModule = "torch.distributed.checkpoint.metadata.";
constexpr const char* kStorageInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";
constexpr const char* kVersion = "1.0.0";

/// Classes that torch 2.1 to 2.13 and megatron-core write into `.metadata`.
std::set<std::string> metadata_classes() {
  std::set<std::string> classes = {
      kStorageInfo,
      "torch.distributed.checkpoint.filesystem._StoragePrefix",
      // Python 3.11.0 to 3.11.3 pickle a member of an enumeration as getattr(class, name). The call
      // stays data: parse_dcp_metadata reads no such member.
      "builtins.getattr",
      "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
      "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan",
      "pathlib._local.PosixPath",
      // Megatron-core keeps the plans of all ranks in the file.
      "torch.distributed.checkpoint.planner.BytesIOWriteData",
      "torch.distributed.checkpoint.planner.SavePlan",
      "torch.distributed.checkpoint.planner.TensorWriteData",
      "torch.distributed.checkpoint.planner.WriteItem",
      "torch.distributed.checkpoint.planner.WriteItemType",
  };
  for (const char* name :
       {"Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"})
    classes.insert(kModule + name);
  return classes;
}

std::vector<std::int64_t> sizes_of(const Value& value) {
  std::vector<std::int64_t> sizes = value.as_ints();
  for (const std::int64_t size : sizes) {
    if (size < 0) throw ConfigError("a size of " + std::to_string(size));
  }
  return sizes;
}

/// Places by name and offsets of the chunk; objects have no offsets.
using Places = std::map<std::tuple<std::string, bool, std::vector<std::int64_t>>, DcpPlace>;

Places places_of(const Value& storage_data, const std::string& where) {
  Places places;
  if (storage_data.is_none()) return places;
  for (const auto& [index, info] : storage_data.as_dict()) {
    const std::string& name = index.at("fqn").as_string();
    const std::string shown = where + ": '" + terminal_line(name) + "'";
    if (info.class_name() != kStorageInfo)
      throw ConfigError(shown + ": a place of class " + terminal_line(info.class_name()) +
                        "; expected " + kStorageInfo);
    if (const Value* transforms = info.find("transform_descriptors");
        transforms != nullptr && !transforms->is_none() && !transforms->items().empty())
      throw ConfigError(shown + ": its data are transformed (" + transforms->text(80) +
                        "), which is not supported; save without extensions");
    DcpPlace place{.file = info.at("relative_path").as_string(),
                   .offset = info.at("offset").as_int(),
                   .length = info.at("length").as_int()};
    check_relative_path(place.file, shown);
    if (place.file.empty() || place.offset < 0 || place.length < 0)
      throw ConfigError(shown + ": lies at " + std::to_string(place.offset) + ", " +
                        std::to_string(place.length) + " bytes of '" + terminal_line(place.file) +
                        "'");
    const Value* offset = index.find("offset");
    const bool chunk = offset != nullptr && !offset->is_none();
    places[{name, chunk, chunk ? offset->as_ints() : std::vector<std::int64_t>{}}] =
        std::move(place);
  }
  return places;
}

DcpTensor tensor_of(const std::string& name, const Value& data, const Places& places) {
  DcpTensor tensor;
  const Value& properties = data.at("properties");
  if (properties.is(Value::Kind::kObject) && properties.as_object().state.is(Value::Kind::kTuple)) {
    const Value::List& state = properties.as_object().state.items();
    if (state.size() != 5) throw ConfigError("properties of " + std::to_string(state.size()));
    tensor.meta.dtype = state[0].as_dtype();
    tensor.meta.requires_grad = state[2].as_bool();
  } else {
    tensor.meta.dtype = properties.at("dtype").as_dtype();
    tensor.meta.requires_grad = properties.at("requires_grad").as_bool();
  }
  tensor.meta.shape = sizes_of(data.at("size"));
  check_shape(tensor.meta, "its shape");
  for (const Value& part : data.at("chunks").items()) {
    DcpChunk chunk{.offsets = sizes_of(part.at("offsets")), .sizes = sizes_of(part.at("sizes"))};
    const auto place = places.find({name, true, chunk.offsets});
    if (place == places.end())
      throw ConfigError("no place of its chunk at " + part.at("offsets").text(80));
    chunk.place = place->second;
    tensor.chunks.push_back(std::move(chunk));
  }
  return tensor;
}

void check_bounds(const DcpTensor& tensor) {
  for (const DcpChunk& chunk : tensor.chunks) {
    const std::size_t rank = tensor.meta.shape.size();
    bool inside = chunk.offsets.size() == rank && chunk.sizes.size() == rank;
    for (std::size_t i = 0; inside && i < rank; ++i)
      inside = chunk.offsets[i] <= tensor.meta.shape[i] &&
               chunk.sizes[i] <= tensor.meta.shape[i] - chunk.offsets[i];
    if (!inside)
      throw ConfigError("its chunk at " + Value::size(chunk.offsets).text(80) + " of size " +
                        Value::size(chunk.sizes).text(80) + " leaves the tensor of shape " +
                        Value::size(tensor.meta.shape).text(80));
  }
}

bool overlap(const DcpChunk& a, const DcpChunk& b) {
  for (std::size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.offsets[i] >= b.offsets[i] + b.sizes[i] || b.offsets[i] >= a.offsets[i] + a.sizes[i])
      return false;
  }
  return true;
}

void check_cover(const DcpTensor& tensor) {
  check_bounds(tensor);
  std::int64_t covered = 0;
  std::vector<const DcpChunk*> chunks;
  for (const DcpChunk& chunk : tensor.chunks) {
    const std::int64_t elements = TensorMeta{.shape = chunk.sizes}.numel();
    covered += elements;
    if (elements > 0) chunks.push_back(&chunk);
  }
  if (covered != tensor.meta.numel())
    throw ConfigError("its chunks hold " + std::to_string(covered) + " elements; expected " +
                      std::to_string(tensor.meta.numel()));
  std::sort(chunks.begin(), chunks.end(),
            [](const DcpChunk* a, const DcpChunk* b) { return a->offsets < b->offsets; });
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (std::size_t j = i + 1; j < chunks.size(); ++j) {
      const DcpChunk &a = *chunks[i], &b = *chunks[j];
      if (!a.sizes.empty() && b.offsets[0] >= a.offsets[0] + a.sizes[0]) break;
      if (overlap(a, b))
        throw ConfigError("its chunks at " + Value::size(a.offsets).text(80) + " and " +
                          Value::size(b.offsets).text(80) + " overlap");
    }
  }
}

Value instance(const std::string& name, Value::List keys_and_values) {
  Value attributes = Value::dict();
  for (std::size_t i = 0; i + 1 < keys_and_values.size(); i += 2)
    attributes.set(keys_and_values[i], keys_and_values[i + 1]);
  return Value::instance(name, std::move(attributes));
}

Value index_of(const std::string& name, const std::vector<std::int64_t>* offsets, int index) {
  return instance(kModule + "MetadataIndex",
                  {"fqn", name, "index", index < 0 ? Value() : Value(index), "offset",
                   offsets == nullptr ? Value() : Value::size(*offsets)});
}
Value info_of(const DcpPlace& place) {
  return instance(kStorageInfo,
                  {"relative_path", place.file, "offset", place.offset, "length", place.length});
}

Value storage_metadata(const DcpTensor& tensor) {
  const Value layout = Value::object({.form = ValueObject::Form::kCall,
                                      .class_name = "torch.serialization._get_layout",
                                      .arguments = {"torch.strided"}});
  const Value format = Value::object({.form = ValueObject::Form::kCall,
                                      .class_name = kModule + "_MEM_FORMAT_ENCODING",
                                      .arguments = {0}});
  const Value properties = Value::instance(
      kModule + "TensorProperties", Value::tuple({Value::dtype(tensor.meta.dtype), layout,
                                                  tensor.meta.requires_grad, format, false}));
  Value chunks = Value::list();
  for (const DcpChunk& chunk : tensor.chunks)
    chunks.append(instance(kModule + "ChunkStorageMetadata", {"offsets", Value::size(chunk.offsets),
                                                              "sizes", Value::size(chunk.sizes)}));
  return instance(kModule + "TensorStorageMetadata",
                  {"properties", properties, "size", Value::size(tensor.meta.shape), "chunks",
                   std::move(chunks)});
}

}  // namespace

DcpMetadata parse_dcp_metadata(std::span<const std::byte> pickle, const std::string& where) {
  PickleOptions options;
  options.where = where;
  options.classes = metadata_classes();
  const Value root = read_pickle(pickle, options);
  std::string part = where;
  try {
    DcpMetadata metadata;
    const Places places = places_of(root.at("storage_data"), where);
    for (const auto& [key, data] : root.at("state_dict_metadata").as_dict()) {
      const std::string& name = key.as_string();
      part = where + ": '" + terminal_line(name) + "'";
      if (data.class_name() == kModule + "BytesStorageMetadata") {
        const auto place = places.find({name, false, {}});
        if (place == places.end()) throw ConfigError("no place of this object");
        metadata.objects[name] = place->second;
      } else {
        check_bounds(metadata.tensors[name] = tensor_of(name, data, places));
      }
    }
    if (const Value* planner = root.find("planner_data")) metadata.planner_data = *planner;
    if (const Value* mcore = root.find("mcore_data")) metadata.mcore_data = *mcore;
    return metadata;
  } catch (const ConfigError& error) {
    if (std::string(error.what()).starts_with(where)) throw;
    throw ConfigError(part + ": " + error.what());
  }
}

std::string pickle_dcp_metadata(const DcpMetadata& metadata) {
  Value names = Value::dict(), places = Value::dict();
  for (const auto& [name, tensor] : metadata.tensors) {
    names.set(name, storage_metadata(tensor));
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const DcpChunk& chunk = tensor.chunks[i];
      places.set(index_of(name, &chunk.offsets, static_cast<int>(i)), info_of(chunk.place));
    }
  }
  for (const auto& [name, place] : metadata.objects) {
    names.set(name, instance(kModule + "BytesStorageMetadata", {}));
    places.set(index_of(name, nullptr, -1), info_of(place));
  }
  const Value storage_meta =
      instance(kModule + "StorageMeta",
               {"checkpoint_id", {}, "save_id", {}, "load_id", {}, "modules", Value::list()});
  Value::List fields = {"state_dict_metadata",
                        names,
                        "planner_data",
                        metadata.planner_data,
                        "storage_data",
                        places,
                        "storage_meta",
                        storage_meta,
                        "version",
                        kVersion};
  if (!metadata.mcore_data.is_none()) {
    fields.emplace_back("mcore_data");
    fields.push_back(metadata.mcore_data);
  }
  return write_pickle(instance(kModule + "Metadata", std::move(fields)));
}

void check_dcp_cover(const DcpMetadata& metadata, const std::string& where) {
  for (const auto& [name, tensor] : metadata.tensors) {
    try {
      check_shape(tensor.meta, "its shape");
      check_cover(tensor);
    } catch (const ConfigError& error) {
      throw ConfigError(where + ": '" + terminal_line(name) + "': " + error.what());
    }
  }
}

}  // namespace trellis::checkpoint
