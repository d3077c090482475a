#include "trainer/files/checkpoint/conversion/nxd_content.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/formats/megatron/as_llama.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_training.h"
#include "trainer/files/checkpoint/formats/nxd/stacked_experts.h"

namespace trellis::checkpoint {
namespace {

using native::PathKey;
using native::StoredTensor;
using nxd::NxdFolder;

/// Deeper dicts are none of a state.
constexpr int kMostDepth = 16;

/// Collects the tensors of one rank's file.
class FileTensors {
 public:
  FileTensors(const Place& place, std::string path, native::Manifest& manifest)
      : place_(place),
        path_(std::move(path)),
        reader_(place.storage->open(join_path(place.path, path_)), nxd::known_classes()),
        manifest_(manifest) {}
  void collect() { walk(reader_.root(), {}, ""); }

 private:
  void walk(const Value& value, const std::vector<PathKey>& path, const std::string& name) {
    if (path.size() > kMostDepth) return;
    const auto below = [&](const PathKey& key, const std::string& text, const Value& child) {
      std::vector<PathKey> longer = path;
      longer.push_back(key);
      walk(child, longer, name.empty() ? text : name + "/" + text);
    };
    if (value.is_tensor()) {
      add({path_, path}, reader_.tensors().at(static_cast<std::size_t>(value.as_tensor())).meta,
          name);
    } else if (value.is_dict()) {
      for (const auto& [key, child] : value.as_dict()) {
        if (key.is_string()) below(key.as_string(), key.as_string(), child);
        if (key.is(Value::Kind::kInt)) below(key.as_int(), key.text(), child);
      }
    } else if (value.is(Value::Kind::kList)) {
      for (std::size_t i = 0; i < value.items().size(); ++i)
        below(static_cast<std::int64_t>(i), std::to_string(i), value.items()[i]);
    } else if (const Value* number = value.find("tid"); number != nullptr) {
      const std::string file = native::xser_tensor_file(path_, number->as_int());
      // NxD leaves files of weights out that have masters.
      if (!place_.has(file)) return;
      const TorchFileReader tensor(place_.storage->open(join_path(place_.path, file)));
      add({file, {}}, tensor.tensors().at(static_cast<std::size_t>(tensor.root().as_tensor())).meta,
          name);
    }
  }
  void add(StoredTensor stored, const TensorMeta& meta, const std::string& name) {
    stored.dtype = meta.dtype;
    stored.shape = meta.shape;
    const Shape origin(meta.shape.size(), 0);
    stored.parts.push_back({path_ + ":" + name, meta.shape, origin, {origin, meta.shape}});
    manifest_.tensors.push_back(std::move(stored));
  }

  const Place& place_;
  std::string path_;
  TorchFileReader reader_;
  native::Manifest& manifest_;
};

}  // namespace

std::unique_ptr<TensorSource> nxd_source(const Place& place, NxdContent content) {
  const char* format = "nxd";
  for (const auto kind : {NxdFolder::Kind::kLegacy, NxdFolder::Kind::kNnm}) {
    if (content.format == nxd::name(kind)) format = nxd::name(kind);
  }
  std::unique_ptr<TensorSource> source = std::make_unique<native::NativeSource>(
      place, std::move(content.manifest), format, nxd::known_classes());
  if (content.has_stacked_experts) source = nxd::experts_in_rows(std::move(source));
  if (!content.is_renamed) return source;
  return megatron::as_llama(std::move(source), content.attention);
}

NxdContent read_rank_files(const Place& place) {
  const NxdFolder folder = *nxd::find_nxd_folder(place);
  NxdContent content{.format = nxd::name(folder.kind)};
  native::Manifest& manifest = content.manifest;
  const SavedPoint point = nxd::read_training(place, folder).point;
  manifest.step = point.step;
  manifest.consumed_samples = point.consumed_samples;
  manifest.layout = nxd::layout_of(folder);
  for (const std::string& file : folder.files(place)) FileTensors(place, file, manifest).collect();
  std::ranges::sort(manifest.tensors, {}, &StoredTensor::id);
  return content;
}

std::unique_ptr<TensorSource> open_for_reading(const std::string& address) {
  const Place place = native::with_checksums(open_place(address));
  return nxd::is_nxd_folder(place) ? nxd_source(place, read_rank_files(place))
                                   : open_checkpoint(address);
}

}  // namespace trellis::checkpoint
