#include "trainer/checkpoint/engine/saver.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/output_error.h"
#include "trainer/checkpoint/engine/zero1_dcp.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/sharding/validate.h"

namespace trellis::checkpoint::native {
namespace {

/// Files of a process in one save. Up to this number each file is flushed to the disk alone; with
/// more it is faster to flush the whole disk once.
constexpr std::ptrdiff_t kFewFiles = 256;

/// A separate copy in host memory: training goes on and changes the original.
at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
}

}  // namespace

Saver::Saver(std::shared_ptr<Storage> storage, int world_size, SaveOptions options,
             runtime::ProcessLink* link, std::string name)
    : storage_(std::move(storage)),
      options_(options),
      link_(link),
      name_(std::move(name)),
      jobs_(static_cast<std::size_t>(world_size)),
      shards_(jobs_.size()),
      written_(jobs_.size()) {}

Saver::~Saver() = default;

std::string Saver::text_name(const char* what, int process) const {
  return name_ + " " + std::to_string(saves_) + "/" + what + "/" + std::to_string(process);
}

void Saver::save(runtime::RankContext& rank, std::vector<FileJob> jobs,
                 const std::vector<ShardedTensor>& shards, const std::function<SaveHead()>& head) {
  const at::NoGradGuard no_grad;
  const auto self = static_cast<std::size_t>(rank.rank());
  const bool leads = rank.leads_process();
  if (leads) {
    wait();
    if (!options_.constant_structure) plan_.reset();
    gate_.reset();
    if (options_.most_writers > 0) gate_.emplace(options_.most_writers);
  }
  rank.host_barrier(kStorageTimeout);
  jobs_[self] = std::move(jobs);
  if (!plan_) shards_[self] = shards;
  if (rank.rank() == 0) begin(head());
  rank.host_barrier(kStorageTimeout);
  if (leads) {
    ++saves_;
    head_.tag = from_first(rank, "tag", head_.tag);
    if (!plan_) make_plan(rank);
    durability_ = own_files() <= kFewFiles ? Durability::kAtClose : Durability::kAtSync;
  }
  rank.host_barrier(kStorageTimeout);
  std::erase_if(jobs_[self],
                [&](const FileJob& job) { return plan_->rank_of(job.path) != rank.rank(); });
  if (leads && options_.async) {
    queue_.emplace(rank.process_ranks().size(), options_.buffer_bytes);
    start_thread();
  }
  rank.host_barrier(kStorageTimeout);
  if (options_.async) {
    copy(self);
  } else {
    written_[self] = write_within_gate(jobs_[self]);
    jobs_[self].clear();
  }
  rank.host_barrier(kStorageTimeout);
  if (leads && !options_.async) finish();
  rank.host_barrier(kStorageTimeout);
}

void Saver::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Saver::begin(const SaveHead& head) {
  head_ = head;
  begin_error_.clear();
  try {
    storage_->write_text(unfinished_marker(head_.tag), "1");
    storage_->write_text(join_path(head_.tag, kBeginFile), "1");
  } catch (const OutputError& error) {
    begin_error_ = error.what();
  }
}

std::string Saver::from_first(runtime::RankContext& rank, const char* what, std::string said) {
  if (link_ == nullptr) return said;
  if (!is_first()) return rank.take_text(text_name(what, link_->process()));
  for (int other = 1; other < link_->processes(); ++other)
    link_->leave_text(text_name(what, other), said);
  return said;
}

SaveOffer Saver::own_offer() {
  SaveOffer offer;
  for (auto& shards : shards_) {
    offer.shards.insert(offer.shards.end(), std::make_move_iterator(shards.begin()),
                        std::make_move_iterator(shards.end()));
    shards.clear();
  }
  for (const auto& jobs : jobs_) {
    for (const FileJob& job : jobs)
      offer.files[job.path] = {job.path, job.bytes(), job.holders, false};
  }
  return offer;
}

void Saver::make_plan(runtime::RankContext& rank) {
  SaveOffer offer = own_offer();
  if (!is_first()) link_->leave_text(text_name("offer", link_->process()), offer.to_text());
  for (int other = 1; is_first() && link_ != nullptr && other < link_->processes(); ++other) {
    SaveOffer theirs = SaveOffer::from_text(rank.take_text(text_name("offer", other)));
    offer.files.merge(theirs.files);
    std::ranges::move(theirs.shards, std::back_inserter(offer.shards));
  }
  if (is_first()) validate_sharding(offer.shards);
  offer.shards.clear();
  if (link_ != nullptr) offer = SaveOffer::from_text(from_first(rank, "offers", offer.to_text()));
  std::vector<Transfer> list;
  for (auto& [path, transfer] : offer.files) {
    if (!options_.parallel) transfer.holders.resize(1);
    list.push_back(std::move(transfer));
  }
  plan_ = distribute(std::move(list));
}

/// That this process's ranks write.
std::ptrdiff_t Saver::own_files() const {
  std::ptrdiff_t files = 0;
  for (std::size_t rank = 0; rank < jobs_.size(); ++rank)
    files += std::ranges::count_if(jobs_[rank], [&](const FileJob& job) {
      return plan_->rank_of(job.path) == static_cast<int>(rank);
    });
  return files;
}

Written Saver::write(const std::vector<FileJob>& jobs) const {
  Written written;
  try {
    for (const FileJob& job : jobs) {
      if (!job.dcp_folder.empty()) {
        write_chunks_of(job, written);
        continue;
      }
      if (job.is_dcp()) {
        write_states(*storage_, head_.tag, job, values_of(job), durability_, written);
        continue;
      }
      written.files[job.path] = write_job(*storage_, head_.tag, job, durability_);
      written.tensors.insert(written.tensors.end(), job.stored.begin(), job.stored.end());
    }
  } catch (const OutputError& error) {
    written.error = error.what();
  }
  return written;
}

void Saver::write_chunks_of(const FileJob& job, Written& written) const {
  if (!written.chunk_error.empty()) return;
  try {
    write_chunks(*storage_, head_.tag, job, values_of(job), written);
  } catch (const OutputError& error) {
    written.chunk_error = error.what();
  }
}

Written Saver::write_within_gate(const std::vector<FileJob>& jobs) {
  const GatePass pass(gate_);
  return write(jobs);
}

/// Takes the results of this process's ranks; the files survive a power cut.
Written Saver::take_written() {
  Written all;
  all.error = begin_error_;
  for (Written& written : written_) all.add(std::exchange(written, {}));
  try {
    if (durability_ == Durability::kAtSync && all.error.empty()) storage_->sync();
  } catch (const OutputError& error) {
    all.error = error.what();
  }
  return all;
}

void Saver::report_written() {
  Written own = take_written();
  if (!own.error.empty())
    own.error = "process " + std::to_string(link_->process()) + ": " + own.error;
  link_->leave_text(text_name("written", link_->process()), own.to_text());
}

void Saver::finish() {
  if (!is_first()) return report_written();
  Written all = take_written();
  for (int other = 1; link_ != nullptr && other < link_->processes(); ++other) {
    const std::optional<std::string> text = link_->take_text(text_name("written", other));
    if (!text) return;  // the run has failed: the checkpoint stays incomplete
    all.add(Written::from_text(*text));
  }
  try {
    if (!all.error.empty()) throw OutputError(all.error);
    if (head_.chunks) head_.chunks(all);
    write_marks(std::move(all));
  } catch (const OutputError& error) {
    head_.failed(error.what());
    return;
  }
  if (head_.complete) head_.complete();
}

/// The marks of completeness come after everything else.
void Saver::write_marks(Written all) {
  if (!all.objects.empty()) write_states_metadata(*storage_, head_.tag, all);
  Manifest& manifest = head_.manifest;
  manifest.tag = head_.tag;
  manifest.files = std::move(all.files);
  manifest.tensors = std::move(all.tensors);
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.id() < b.id(); });
  const auto add = [&](const char* file, const std::optional<Value>& value) {
    if (value) manifest.files[file] = write_value(*storage_, join_path(head_.tag, file), *value);
  };
  add(kSchedulerFile, head_.scheduler);
  add(kUserContentFile, head_.user_content);
  storage_->write_text(join_path(head_.tag, kManifestFile), manifest.to_json());
  storage_->write_text(join_path(head_.tag, kDoneFile), "1");
  storage_->remove_file(unfinished_marker(head_.tag));
}

/// Training goes on when all of this rank's tensors are in host memory, or on the disk.
void Saver::copy(std::size_t rank) {
  bool is_whole = false;
  const std::unique_ptr<bool, std::function<void(bool*)>> end(
      &is_whole, [this](const bool* copied_all) { queue_->end_rank(*copied_all); });
  for (FileJob& job : jobs_[rank]) {
    const std::int64_t bytes = job.bytes();
    queue_->reserve(bytes);
    std::ranges::transform(job.tensors, job.tensors.begin(), host_copy);
    queue_->push({rank, std::move(job), bytes});
  }
  jobs_[rank].clear();
  is_whole = true;
}

void Saver::write_copies() {
  while (std::optional<CopyQueue::Item> item = queue_->pop()) {
    Written& written = written_[item->rank];
    if (written.error.empty()) {
      std::vector<FileJob> one;
      one.push_back(std::move(item->job));
      written.add(write(one));
    }
    item->job = {};
    queue_->release(item->bytes);
  }
}

void Saver::start_thread() {
  thread_ = std::jthread([this] {
    try {
      write_copies();
      // A rank that failed has its own error, and the checkpoint stays incomplete.
      if (queue_->is_whole()) finish();
    } catch (const std::exception& error) {
      error_ = std::current_exception();
      queue_->abandon();
      if (is_first()) return;
      written_.assign(written_.size(), {});
      written_.front().error = error.what();
      report_written();
    }
  });
}

}  // namespace trellis::checkpoint::native
