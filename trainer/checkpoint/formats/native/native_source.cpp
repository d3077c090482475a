#include "trainer/checkpoint/formats/native/native_source.h"

#include <mutex>
#include <utility>

#include "base/error.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/stored_tensor.h"
#include "trainer/checkpoint/plan/boxes.h"

namespace trellis::checkpoint::native {
namespace {

/// Open at the same time: with xser there is a file per tensor.
constexpr std::size_t kMostOpen = 64;

}  // namespace

/// Opened and checked at their first use. A file is hashed by one thread while others wait for it.
class NativeSource::Files {
 public:
  Files(const Place& place, const Manifest& manifest, std::set<std::string> classes)
      : place_(place), manifest_(manifest), classes_(std::move(classes)) {}

  std::shared_ptr<const TorchFileReader> open(const std::string& path) {
    const std::shared_ptr<Slot> slot = slot_of(path);
    const std::scoped_lock lock(slot->mutex);
    if (slot->reader) return slot->reader;
    const auto file = place_.storage->open(join_path(place_.path, path));
    if (!slot->checked && !manifest_.files.empty()) check(path, *file);
    slot->checked = true;
    slot->reader = std::make_shared<const TorchFileReader>(file, classes_);
    return slot->reader;
  }

 private:
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<const TorchFileReader> reader;
    bool checked = false;
  };

  std::shared_ptr<Slot> slot_of(const std::string& path) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Slot>& slot = slots_[path];
    if (!slot) slot = std::make_shared<Slot>();
    if (order_.empty() || order_.back() != path) {
      order_.push_back(path);
      if (order_.size() > kMostOpen) close(order_.front()), order_.erase(order_.begin());
    }
    return slot;
  }
  /// Whoever reads the file at the moment keeps it open.
  void close(const std::string& path) {
    Slot& slot = *slots_.at(path);
    if (!slot.mutex.try_lock()) return;
    slot.reader = nullptr;
    slot.mutex.unlock();
  }
  void check(const std::string& path, const ReadableFile& file) const {
    const auto known = manifest_.files.find(path);
    if (known == manifest_.files.end())
      throw ConfigError(file.name() + ": is not in " + kManifestFile +
                        "; the checkpoint is damaged, use another one");
    const StoredFile &expected = known->second, got = hash_file(file);
    if (got == expected) return;
    throw ConfigError(file.name() + ": its content is not what was saved: expected " +
                      std::to_string(expected.bytes) + " bytes with XXH3-128 " + expected.xxh3_128 +
                      ", got " + std::to_string(got.bytes) + " with " + got.xxh3_128 +
                      "; use another checkpoint");
  }

  const Place& place_;
  const Manifest& manifest_;
  std::set<std::string> classes_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_;
  std::vector<std::string> order_;  ///< of the last openings
};

NativeSource::NativeSource(Place place)
    : place_(std::move(place)),
      address_(place_.address()),
      format_("trellis"),
      manifest_(read_manifest(*place_.storage, place_.path)),
      files_(std::make_unique<Files>(place_, manifest_, std::set<std::string>{})) {
  make_index();
}

NativeSource::NativeSource(Place place, Manifest manifest, const char* format,
                           std::set<std::string> classes)
    : place_(std::move(place)),
      address_(place_.address()),
      format_(format),
      manifest_(std::move(manifest)),
      files_(std::make_unique<Files>(place_, manifest_, std::move(classes))) {
  make_index();
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

NativeSource::~NativeSource() = default;

Value NativeSource::user_content() const { return files_->open(kUserContentFile)->root(); }

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
    const auto reader = files_->open(stored.file);
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
