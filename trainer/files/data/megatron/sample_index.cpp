#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <limits>
#include <system_error>

#include "base/check.h"
#include "base/error.h"
#include "base/files/input_file.h"
#include "base/log.h"
#include "trainer/files/data/megatron/index_maps.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;

/// Held by the process that builds maps in a folder. A lock on the folder itself leaves no file
/// after; where the file system has no locks every process builds, which costs time and gives the
/// same files.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : descriptor_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ >= 0) (void)flock(descriptor_, LOCK_EX);
  }
  ~FolderLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

void write_maps(const IndexMaps& maps, const std::string& prefix) {
  write_npy(prefix + "_doc_idx.npy", std::span(maps.doc_idx));
  write_npy(prefix + "_sample_idx.npy", std::span(maps.sample_idx), 2);
  std::visit([&](const auto& order) { write_npy(prefix + "_shuffle_idx.npy", std::span(order)); },
             maps.shuffle_idx);
}

}  // namespace

std::string SampleIndex::misfit(const IndexedDataset& data, const IndexMapRequest& request) const {
  const EpochPlan plan = plan_epochs(data, request);
  const std::int64_t documents = plan.num_epochs * request.sequences.count();
  if (doc_idx_->size() != documents)
    return "doc_idx has " + std::to_string(doc_idx_->size()) + " entries, expected " +
           std::to_string(documents);
  if (sample_idx_->shape() != std::vector<std::int64_t>{plan.total_samples + 1, 2})
    return "sample_idx has another shape than these data give";
  if (shuffle_idx_->size() != plan.total_samples)
    return "shuffle_idx has " + std::to_string(shuffle_idx_->size()) + " entries, expected " +
           std::to_string(plan.total_samples);
  // The names do not show the split: entries of the same number can be others.
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < documents; ++i) {
    const std::int64_t sequence = (*doc_idx_)[i];
    if (sequence < request.sequences.first || sequence >= request.sequences.end)
      return "doc_idx names sequence " + std::to_string(sequence) + " of another part";
    sum += sequence;
  }
  const std::int64_t of_one_epoch =
      (request.sequences.first + request.sequences.end - 1) * request.sequences.count() / 2;
  return sum == plan.num_epochs * of_one_epoch
             ? ""
             : "doc_idx does not name every sequence equally often";
}

std::optional<SampleIndex> SampleIndex::load(const IndexedDataset& data,
                                             const IndexMapRequest& request,
                                             const std::string& prefix) {
  for (const char* part : {"_doc_idx.npy", "_sample_idx.npy", "_shuffle_idx.npy"}) {
    if (!why_no_input_file(prefix + part).empty()) return std::nullopt;
  }
  SampleIndex index;
  std::string problem;
  try {
    index.doc_idx_.emplace(prefix + "_doc_idx.npy");
    index.sample_idx_.emplace(prefix + "_sample_idx.npy");
    index.shuffle_idx_.emplace(prefix + "_shuffle_idx.npy");
    problem = index.misfit(data, request);
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  if (!problem.empty()) {
    log_warning("index maps " + prefix +
                "_*.npy do not fit the data and are made again: " + problem);
    return std::nullopt;
  }
  index.num_samples_ = index.shuffle_idx_->size();
  return index;
}

SampleIndex SampleIndex::open(const IndexedDataset& data, const IndexMapRequest& request,
                              const std::string& directory) {
  if (request.seed < 0 || request.seed > std::numeric_limits<std::uint32_t>::max()) {
    throw ConfigError(
        "seed: expected 0 … 4294967295, which is what NumPy's RandomState takes, got " +
        std::to_string(request.seed));
  }
  const std::string prefix = index_map_prefix(data, request, directory);
  std::error_code ignored;
  if (!directory.empty()) fs::create_directories(directory, ignored);
  const fs::path parent = fs::path(prefix).parent_path();
  const FolderLock lock(parent.empty() ? fs::path(".") : parent);
  if (auto loaded = load(data, request, prefix)) return std::move(*loaded);
  SampleIndex index;
  index.built_ = std::make_shared<const IndexMaps>(build_index_maps(data, request));
  index.num_samples_ = static_cast<std::int64_t>(index.built_->sample_idx.size()) / 2 - 1;
  try {
    write_maps(*index.built_, prefix);
  } catch (const ConfigError& error) {
    log_warning(std::string("index maps are not kept for the next start: ") + error.what() +
                "; set data.index_mapping_dir to a folder that can be written");
  }
  return index;
}

std::int64_t SampleIndex::document(std::int64_t position) const {
  return built_ ? built_->doc_idx.at(static_cast<std::size_t>(position)) : (*doc_idx_)[position];
}

std::pair<std::int64_t, std::int64_t> SampleIndex::border(std::int64_t sample) const {
  if (!built_) return {(*sample_idx_)[2 * sample], (*sample_idx_)[2 * sample + 1]};
  const auto at = static_cast<std::size_t>(2 * sample);
  return {built_->sample_idx.at(at), built_->sample_idx.at(at + 1)};
}

std::int64_t SampleIndex::shuffled(std::int64_t place) const {
  if (!built_) return (*shuffle_idx_)[place];
  return std::visit(
      [&](const auto& order) {
        return static_cast<std::int64_t>(order.at(static_cast<std::size_t>(place)));
      },
      built_->shuffle_idx);
}

}  // namespace trellis::trainer
