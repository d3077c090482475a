#include "trainer/files/checkpoint/conversion/native_writer.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "trainer/files/checkpoint/conversion/new_folder.h"
#include "trainer/files/checkpoint/conversion/tensor_fill.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/hashing_file.h"

namespace trellis::checkpoint {

std::int64_t PlannedFile::bytes() const {
  std::int64_t total = 0;
  for (const PlannedTensor& tensor : tensors) total += tensor.meta.bytes();
  return total;
}

NativeWriter::NativeWriter(TensorSource& source, Place place)
    : source_(source), place_(std::move(place)), index_(index_of(source)) {
  check_new_folder(place_, native::kDoneFile);
  source_.check_in_background();
}

std::vector<std::string> NativeWriter::problems(const PlannedFile& file) const {
  const TensorFill fill(source_, index_);
  std::set<std::string> found;
  for (const PlannedTensor& tensor : file.tensors) {
    for (const ShardedPart& part : tensor.parts) {
      if (std::string problem = fill.problem(part, tensor.meta.dtype); !problem.empty())
        found.insert(std::move(problem));
    }
  }
  return {found.begin(), found.end()};
}

void NativeWriter::begin() {
  begin_new_folder(place_);
  place_.storage->write_text(join_path(place_.path, native::kBeginFile), "1");
}

void NativeWriter::write(const PlannedFile& file) {
  auto result = std::make_shared<native::HashingFile::Result>();
  TorchFileWriter writer(std::make_unique<native::HashingFile>(
      place_.storage->create(join_path(place_.path, file.path)), result));
  for (const PlannedTensor& tensor : file.tensors) {
    writer.add_tensor(tensor.meta);
    fill(tensor, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
  }
  writer.finish(file.root);
  const std::scoped_lock lock(mutex_);
  manifest_.files[file.path] = result->stored();
  manifest_.tensors.insert(manifest_.tensors.end(), file.stored.begin(), file.stored.end());
}

void NativeWriter::fill(const PlannedTensor& tensor, const WriteBytes& write) const {
  if (!tensor.content.empty()) return write(tensor.content);
  TensorFill(source_, index_).write(tensor.meta, tensor.parts, write);
}

void NativeWriter::add(std::map<std::string, native::StoredFile> files,
                       std::vector<native::StoredTensor> tensors) {
  manifest_.files.merge(files);
  std::ranges::move(tensors, std::back_inserter(manifest_.tensors));
}

void NativeWriter::finish(std::optional<native::Manifest> head, const Value& user_content) {
  source_.finish_checks();
  write({native::kUserContentFile, user_content, {}, {}});
  if (head) {
    head->files = std::move(manifest_.files);
    head->tensors = std::move(manifest_.tensors);
    std::ranges::sort(head->tensors, {}, &native::StoredTensor::id);
    place_.storage->write_text(join_path(place_.path, native::kManifestFile), head->to_json());
  }
  place_.storage->write_text(join_path(place_.path, native::kDoneFile), "1");
  end_new_folder(place_);
}

}  // namespace trellis::checkpoint
