#include "trainer/files/checkpoint/conversion/verify.h"

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/files/checkpoint/conversion/converted_source.h"
#include "trainer/files/checkpoint/formats/hugging_face/hugging_face_source.h"

namespace trellis::checkpoint {
namespace {

using hugging_face::ExportPlan;
using hugging_face::MapPiece;

/// The weights of a source in the types and shapes of an export.
std::vector<ConvertedSource::Tensor> exported(const ExportPlan& plan) {
  std::vector<ConvertedSource::Tensor> tensors(plan.map.native.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = {{.key = plan.map.native[i].name, .shape = plan.map.native[i].shape},
                  plan.from[i]};
  for (const MapPiece& piece : plan.map.pieces)
    tensors[piece.native].as.dtype = plan.dtypes[piece.hub];
  return tensors;
}

/// The weights of a source in the types of another one.
std::vector<ConvertedSource::Tensor> in_types_of(const TensorSource& source,
                                                 const TensorSource& other) {
  std::map<std::string, DType> dtypes;
  for (const TensorEntry& entry : other.tensors()) dtypes[entry.key] = entry.dtype;
  std::vector<ConvertedSource::Tensor> tensors;
  for (const TensorEntry& entry : source.tensors()) {
    const auto found = dtypes.find(entry.key);
    tensors.push_back({entry, entry});
    if (found != dtypes.end()) tensors.back().as.dtype = found->second;
  }
  return tensors;
}

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
  return compare(ConvertedSource(source, exported(plan)), hugging_face::HuggingFaceSource(folder),
                 {.every_bit = true}, progress);
}

Comparison verify_import(const TensorSource& source, const TensorSource& written,
                         const Progress& progress) {
  return compare(ConvertedSource(source, in_types_of(source, written)), written,
                 {.every_bit = true, .weights_only = true}, progress);
}

}  // namespace trellis::checkpoint
