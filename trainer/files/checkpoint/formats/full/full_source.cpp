#include "trainer/files/checkpoint/formats/full/full_source.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/plan/boxes.h"

namespace trellis::checkpoint::full {
namespace {

const Value& state_dict_of(const Value& root) {
  for (const char* key : {"model", "state_dict"}) {
    const Value* below = root.find(Value(key));
    if (below != nullptr && below->is_dict()) return *below;
  }
  return root;
}

const Value& state_dict_at(const Value& root, const std::string& key, const std::string& file) {
  if (key.empty()) return root;
  const Value* below = root.is_dict() ? root.find(Value(key)) : nullptr;
  if (below == nullptr || !below->is_dict())
    throw ConfigError(file + ": has no state dict '" + key + "'; name another model_key");
  return *below;
}

constexpr const char* kStep = "step";
constexpr const char* kSamples = "consumed_samples";

SavedPoint point_of(const TorchFileReader& file) {
  if (file.note().empty()) return {};
  try {
    const auto note = nlohmann::json::parse(file.note());
    return {note.at(kStep).get<std::int64_t>(), note.at(kSamples).get<std::int64_t>()};
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(file.name() + ": where its training was: " + terminal_line(error.what()) +
                      "; the file is damaged");
  }
}

}  // namespace

std::string note_of(const SavedPoint& point) {
  if (point.step == 0) return "";
  return nlohmann::json({{kStep, point.step}, {kSamples, point.consumed_samples}}).dump();
}

std::string file_at(const Place& place) {
  if (place.has(kFileName)) return join_path(place.path, kFileName);
  const bool is_file = place.path.ends_with(".pt") && place.storage->exists(place.path) &&
                       !place.has("done") && !place.has("checkpoint");
  return is_file ? place.path : "";
}

FullSource::FullSource(const Place& place) : FullSource(place, nullptr) {}

FullSource::FullSource(const Place& place, const std::string& key) : FullSource(place, &key) {}

FullSource::FullSource(const Place& place, const std::string* key)
    : reader_(std::make_unique<TorchFileReader>(
          native::with_checksums(place).storage->open(file_at(place)))),
      point_(point_of(*reader_)) {
  const Value& values = key == nullptr ? state_dict_of(reader_->root())
                                       : state_dict_at(reader_->root(), *key, address());
  if (!values.is_dict())
    throw ConfigError(address() + ": expected a dict of tensors, got " + reader_->root().text(80));
  for (const auto& [name, value] : values.as_dict()) {
    if (name.is_string() && value.is_tensor()) numbers_[name.as_string()] = value.as_tensor();
  }
  if (numbers_.empty())
    throw ConfigError(address() + ": expected a dict of tensors, found none in " + values.text(80));
  for (const auto& [name, number] : numbers_) {
    const TensorMeta& meta = reader_->tensors().at(static_cast<std::size_t>(number)).meta;
    tensors_.push_back({name, meta.dtype, meta.shape});
  }
}

void FullSource::read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const {
  const std::int64_t number = numbers_.at(tensor.key);
  read_box(
      {tensor.shape, box.offset, box.shape, Shape(box.shape.size(), 0), box.shape},
      element_bytes(tensor.dtype),
      [&](std::int64_t first_byte, std::span<std::byte> bytes) {
        reader_->read_bytes(number, first_byte, bytes);
      },
      into);
}

}  // namespace trellis::checkpoint::full
