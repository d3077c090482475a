#include "trainer/files/checkpoint/formats/hugging_face/hub_folder.h"

#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/record_checks.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/plan/boxes.h"

namespace trellis::checkpoint::hugging_face {
namespace {

struct WeightFile {
  const char* name;
  bool is_index;
};
/// In the order in which transformers looks for them.
constexpr std::array<WeightFile, 4> kWeightFiles{{{kSafetensorsFile, false},
                                                  {kSafetensorsIndexFile, true},
                                                  {"pytorch_model.bin", false},
                                                  {"pytorch_model.bin.index.json", true}}};

std::string content_of(const Place& place) {
  std::string text;
  for (const Entry& entry : place.storage->list(place.path, /*recursive=*/false)) {
    if (text.size() > 400) return text + ", …";
    text += (text.empty() ? "" : ", ") + terminal_line(entry.path);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

bool is_hub_folder(const Place& place) {
  if (!place.has(kConfigFile)) return false;
  for (const WeightFile& file : kWeightFiles) {
    if (place.has(file.name)) return true;
  }
  return false;
}

HubFolder::HubFolder(Place place)
    : place_(native::with_checksums(std::move(place))), address_(place_.address()) {
  for (const WeightFile& file : kWeightFiles) {
    if (!place_.has(file.name)) continue;
    file.is_index ? open_index(file.name) : open_file(file.name);
    return;
  }
  throw ConfigError(address_ +
                    ": expected model.safetensors or pytorch_model.bin, or an index of either "
                    "(.index.json), found " +
                    content_of(place_) + "; correct the path");
}

std::string HubFolder::address_of(const std::string& file) const {
  return join_path(address_, file);
}

void HubFolder::open_index(const std::string& path) {
  weight_map_ = read_safetensors_index(*place_.storage, join_path(place_.path, path)).weight_map;
  std::map<std::string, std::string> files;  // and a tensor that is to be in it
  for (const auto& [tensor, file] : weight_map_) files.emplace(file, tensor);
  Problems problems;
  for (const auto& [file, tensor] : files) {
    if (place_.has(file)) {
      open_file(file);
    } else {
      problems.add(address_of(file), "there is no such file; expected one with " +
                                         terminal_line(tensor) + ", as " + path +
                                         " says: download the missing file");
    }
  }
  for (const auto& [tensor, file] : weight_map_) {
    if (place_.has(file) && !tensors_.contains(tensor))
      problems.add(address_of(file),
                   "has no tensor " + terminal_line(tensor) + ", which " + path + " says it holds");
  }
  problems.throw_if_any();
}

void HubFolder::open_file(const std::string& file) {
  file.ends_with(".safetensors") ? open_safetensors(file) : open_torch(file);
}

void HubFolder::open_safetensors(const std::string& file) {
  safetensors_.push_back(
      std::make_unique<SafetensorsReader>(place_.storage->open(join_path(place_.path, file))));
  const std::vector<SafetensorsEntry>& entries = safetensors_.back()->tensors();
  for (std::size_t i = 0; i < entries.size(); ++i)
    add(entries[i].name, {entries[i].meta, file, /*is_torch=*/false, safetensors_.size() - 1,
                          static_cast<std::int64_t>(i)});
}

void HubFolder::open_torch(const std::string& file) {
  torch_files_.push_back(
      std::make_unique<TorchFileReader>(place_.storage->open(join_path(place_.path, file))));
  const TorchFileReader& reader = *torch_files_.back();
  if (!reader.root().is_dict())
    throw ConfigError(reader.name() + ": expected a dict of tensors, got " +
                      reader.root().text(200));
  for (const auto& [key, value] : reader.root().as_dict()) {
    if (!key.is_string() || !value.is_tensor()) continue;
    const std::int64_t number = value.as_tensor();
    add(key.as_string(), {reader.tensors().at(static_cast<std::size_t>(number)).meta, file,
                          /*is_torch=*/true, torch_files_.size() - 1, number});
  }
}

void HubFolder::add(const std::string& name, Tensor tensor) {
  const auto expected = weight_map_.find(name);
  if (expected != weight_map_.end() && expected->second != tensor.file) return;
  const auto [found, is_new] = tensors_.emplace(name, tensor);
  if (!is_new)
    throw ConfigError(address_of(tensor.file) + ": tensor " + terminal_line(name) + " is also in " +
                      found->second.file + "; expected it in one file");
}

void HubFolder::read(const Tensor& tensor, const Box& box, std::span<std::byte> into) const {
  const BoxCopy copy{tensor.meta.shape, box.offset, box.shape, Shape(box.shape.size(), 0),
                     box.shape};
  const std::int64_t width = element_bytes(tensor.meta.dtype);
  if (tensor.is_torch) {
    const TorchFileReader& reader = *torch_files_[tensor.reader];
    return read_box(
        copy, width,
        [&](std::int64_t first, std::span<std::byte> bytes) {
          reader.read_bytes(tensor.place, first, bytes);
        },
        into);
  }
  if (!is_read_.exchange(true) && !place_.has(native::kChecksumsFile))
    say_damage_is_unseen(address_, "files of safetensors have no checksums");
  const SafetensorsReader& reader = *safetensors_[tensor.reader];
  const SafetensorsEntry& entry = reader.tensors()[static_cast<std::size_t>(tensor.place)];
  read_box(
      copy, width,
      [&](std::int64_t first, std::span<std::byte> bytes) {
        reader.read_bytes(entry, first, bytes);
      },
      into);
}

}  // namespace trellis::checkpoint::hugging_face
