#include "trainer/checkpoint/conversion/verify_export.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "trainer/checkpoint/containers/convert.h"
#include "trainer/checkpoint/formats/hugging_face/hugging_face_source.h"

namespace trellis::checkpoint {
namespace {

using hugging_face::ExportPlan;
using hugging_face::MapPiece;

/// The weights of a source in the types and shapes of an export.
class ExportedSource final : public TensorSource {
 public:
  ExportedSource(const TensorSource& source, const ExportPlan& plan) : source_(source) {
    std::vector<DType> dtypes(plan.map.native.size());
    for (const MapPiece& piece : plan.map.pieces) dtypes[piece.native] = plan.dtypes[piece.hub];
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      const hugging_face::NamedTensor& native = plan.map.native[i];
      from_[native.name] = plan.from[i];
      entries_.push_back({native.name, dtypes[i], native.shape});
    }
    std::ranges::sort(entries_, {}, &TensorEntry::key);
  }
  [[nodiscard]] const std::string& address() const override { return source_.address(); }
  [[nodiscard]] const char* format() const override { return source_.format(); }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return entries_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override {
    const TensorEntry& from = from_.at(tensor.key);
    if (from.dtype == tensor.dtype) return source_.read(from, box, into);
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(box.elements() * element_bytes(from.dtype)));
    source_.read(from, box, bytes);
    convert_elements(from.dtype, bytes, tensor.dtype, into);
  }

 private:
  const TensorSource& source_;
  std::map<std::string, TensorEntry> from_;  ///< by key
  std::vector<TensorEntry> entries_;         ///< by key
};

void check_small_files(const hugging_face::SideFiles& files, const Place& folder) {
  Problems problems;
  for (const auto& [name, text] : files) {
    const std::string path = join_path(folder.path, name);
    if (!folder.has(name)) {
      problems.add(join_path(folder.address(), name), "is missing");
    } else if (folder.storage->read_text(path) != text) {
      problems.add(join_path(folder.address(), name), "is not what was written");
    }
  }
  problems.throw_if_any();
}

}  // namespace

Comparison verify_export(const TensorSource& source, const ExportPlan& plan,
                         const hugging_face::SideFiles& files, const Place& folder,
                         const Progress& progress) {
  check_small_files(files, folder);
  return compare(ExportedSource(source, plan), hugging_face::HuggingFaceSource(folder),
                 {.every_bit = true}, progress);
}

}  // namespace trellis::checkpoint
