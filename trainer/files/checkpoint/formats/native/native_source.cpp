#include "trainer/files/checkpoint/formats/native/native_source.h"

#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/stored_tensor.h"
#include "trainer/files/checkpoint/plan/boxes.h"

namespace trellis::checkpoint::native {
NativeSource::NativeSource(Place place)
    : NativeSource(place, read_manifest(*place.storage, place.path), "trellis", {}) {}

NativeSource::NativeSource(Place place, Manifest manifest, const char* format,
                           std::set<std::string> classes)
    : place_(std::move(place)),
      address_(place_.address()),
      format_(format),
      manifest_(std::move(manifest)),
      files_(
          [this](const std::string& path, bool again) {
            auto file = place_.storage->open(join_path(place_.path, path));
            if (!again && is_ours()) checks_ ? checks_->add(path) : check_content(path);
            return file;
          },
          std::move(classes),
          is_ours() ? RecordChecks::Rule::kNone : RecordChecks::Rule::kEachRecord) {
  make_index();
}

void NativeSource::check_content(const std::string& path) const {
  const auto file = place_.storage->open(join_path(place_.path, path));
  const auto known = manifest_.files.find(path);
  if (known == manifest_.files.end())
    throw ConfigError(file->name() + ": is not in " + kManifestFile +
                      "; the checkpoint is damaged, use another one");
  const StoredFile &expected = known->second, got = hash_file(*file);
  if (got == expected) return;
  throw ConfigError(file->name() + ": its content is not what was saved: expected " +
                    std::to_string(expected.bytes) + " bytes with XXH3-128 " + expected.xxh3_128 +
                    ", got " + std::to_string(got.bytes) + " with " + got.xxh3_128 +
                    "; use another checkpoint");
}

void NativeSource::check_in_background() {
  if (!checks_)
    checks_ = std::make_unique<BackgroundChecks>(
        [this](const std::string& path) { check_content(path); });
}

void NativeSource::finish_checks() {
  if (checks_) checks_->finish();
}

void NativeSource::make_index() {
  std::map<std::string, TensorEntry> entries;
  Problems problems;
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const StoredTensor& stored = manifest_.tensors[i];
    for (const StoredPart& part : stored.parts) {
      index_[part.key].push_back({i, part.global_shape, part.global_offset, part.local});
      const TensorEntry entry{part.key, stored.dtype, part.global_shape};
      const TensorEntry& known = entries.emplace(part.key, entry).first->second;
      if (known != entry)
        problems.add(address_ + "/" + kManifestFile,
                     part.key + " is " + name(known.dtype) + " " + text_of(known.shape) +
                         " in one file, and " + name(entry.dtype) + " " + text_of(entry.shape) +
                         " in " + stored.file + "; the checkpoint is damaged, use another one");
    }
  }
  problems.throw_if_any();
  for (auto& [key, entry] : entries) tensors_.push_back(std::move(entry));
}

Value NativeSource::user_content() const {
  if (checks_) check_content(kUserContentFile);
  return files_.get(kUserContentFile)->root();
}

void NativeSource::read(const TensorEntry& tensor, const Box& box,
                        std::span<std::byte> into) const {
  // The index knows which parts hold it, and that none is missing.
  const ShardedPart wanted{{.key = tensor.key,
                            .dtype = tensor.dtype,
                            .local_shape = box.shape,
                            .global_shape = tensor.shape,
                            .global_offset = box.offset},
                           {Shape(box.shape.size(), 0), box.shape}};
  for (const CopyStep& copy : plan_reads(wanted, tensor.key, index_).copies) {
    const StoredTensor& stored = manifest_.tensors[copy.tensor];
    const auto reader = files_.get(stored);
    const std::int64_t number = tensor_number(*reader, stored, address_);
    read_box(
        {stored.shape, copy.from.offset, box.shape, copy.into, copy.from.shape},
        element_bytes(stored.dtype),
        [&](std::int64_t first_byte, std::span<std::byte> bytes) {
          reader->read_bytes(number, first_byte, bytes);
        },
        into);
  }
}

}  // namespace trellis::checkpoint::native
