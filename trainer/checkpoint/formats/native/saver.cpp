#include "trainer/checkpoint/formats/native/saver.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/sharding/validate.h"

namespace trellis::checkpoint::native {
namespace {

/// A separate copy in host memory: training goes on and changes the original.
at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
}

}  // namespace

Saver::Saver(std::shared_ptr<Storage> storage, int world_size, bool async)
    : storage_(std::move(storage)),
      async_(async),
      jobs_(static_cast<std::size_t>(world_size)),
      shards_(jobs_.size()),
      written_(jobs_.size()) {}

Saver::~Saver() = default;

void Saver::save(runtime::RankContext& rank, std::vector<FileJob> jobs,
                 const std::vector<ShardedTensor>& shards, const std::function<SaveHead()>& head) {
  const at::NoGradGuard no_grad;
  const auto self = static_cast<std::size_t>(rank.rank());
  if (rank.rank() == 0) wait();
  rank.host_barrier(kStorageTimeout);
  jobs_[self] = std::move(jobs);
  if (!plan_) shards_[self] = shards;
  if (rank.rank() == 0) begin(head());
  rank.host_barrier(kStorageTimeout);
  if (rank.rank() == 0 && !plan_) make_plan();
  rank.host_barrier(kStorageTimeout);
  std::erase_if(jobs_[self],
                [&](const FileJob& job) { return plan_->rank_of(job.path) != rank.rank(); });
  if (async_) {
    for (FileJob& job : jobs_[self])
      std::transform(job.tensors.begin(), job.tensors.end(), job.tensors.begin(), host_copy);
  } else {
    written_[self] = write(jobs_[self]);
    jobs_[self].clear();
  }
  rank.host_barrier(kStorageTimeout);
  if (rank.rank() == 0) async_ ? start_thread() : finish();
  rank.host_barrier(kStorageTimeout);
}

void Saver::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Saver::begin(const SaveHead& head) {
  head_ = head;
  storage_->write_text(unfinished_marker(head_.tag), "1");
  storage_->write_text(join_path(head_.tag, kBeginFile), "1");
}

void Saver::make_plan() {
  std::vector<ShardedTensor> all;
  for (auto& shards : shards_) {
    all.insert(all.end(), std::make_move_iterator(shards.begin()),
               std::make_move_iterator(shards.end()));
    shards.clear();
  }
  validate_sharding(all);
  std::map<std::string, Transfer> transfers;
  for (const auto& jobs : jobs_) {
    for (const FileJob& job : jobs)
      transfers[job.path] = {job.path, job.bytes(), job.holders, false};
  }
  std::vector<Transfer> list;
  for (auto& [path, transfer] : transfers) list.push_back(std::move(transfer));
  plan_ = distribute(std::move(list));
}

Saver::Written Saver::write(const std::vector<FileJob>& jobs) const {
  Written written;
  for (const FileJob& job : jobs) {
    written.files[job.path] = write_job(*storage_, head_.tag, job);
    written.tensors.insert(written.tensors.end(), job.stored.begin(), job.stored.end());
  }
  return written;
}

/// The marks of completeness come after everything else.
void Saver::finish() {
  Manifest& manifest = head_.manifest;
  for (Written& written : written_) {
    manifest.files.merge(written.files);
    manifest.tensors.insert(manifest.tensors.end(), written.tensors.begin(), written.tensors.end());
    written = {};
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.id() < b.id(); });
  const std::string content = join_path(head_.tag, kUserContentFile);
  manifest.files[kUserContentFile] = write_value(*storage_, content, head_.user_content);
  storage_->write_text(join_path(head_.tag, kManifestFile), manifest.to_json());
  storage_->write_text(join_path(head_.tag, kDoneFile), "1");
  storage_->remove_file(unfinished_marker(head_.tag));
  if (head_.complete) head_.complete();
}

void Saver::start_thread() {
  thread_ = std::jthread([this] {
    try {
      for (std::size_t rank = 0; rank < jobs_.size(); ++rank) {
        written_[rank] = write(jobs_[rank]);
        jobs_[rank].clear();
      }
      finish();
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

}  // namespace trellis::checkpoint::native
