#include "trainer/checkpoint/training/write_native.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trainer/checkpoint/conversion/layout/layout_jobs.h"
#include "trainer/checkpoint/conversion/native_writer.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/native_source.h"
#include "trainer/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/checkpoint/training/run_checkpoints.h"
#include "trainer/checkpoint/training/user_content.h"

namespace trellis::checkpoint {
namespace {

using trainer::RunConfig;

PlannedTensor planned(const at::Tensor& tensor, std::vector<ShardedPart> parts) {
  PlannedTensor plan{{.dtype = dtype_of(tensor.scalar_type()), .shape = tensor.sizes().vec()},
                     std::move(parts),
                     {}};
  if (tensor.is_meta()) return plan;
  const at::Tensor host = tensor.contiguous();
  const auto* bytes = static_cast<const std::byte*>(host.const_data_ptr());
  plan.content.assign(bytes, bytes + host.nbytes());
  return plan;
}

PlannedFile planned(const native::FileJob& job) {
  PlannedFile file{job.path, job.root, {}, job.stored};
  for (std::size_t i = 0; i < job.tensors.size(); ++i)
    file.tensors.push_back(planned(job.tensors[i], job.parts[i]));
  return file;
}

/// Calls `visit(rank)` for each rank, on some threads; the first error is thrown.
void for_each_rank(int ranks, int threads, const std::function<void(int)>& visit) {
  std::atomic<int> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (int rank = next++; rank < ranks; rank = next++) {
      try {
        visit(rank);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!error) error = std::current_exception();
        next = ranks;
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int i = 1; i < std::min(threads, ranks); ++i) workers.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

struct Head {
  native::Manifest manifest;
  Value content;
  LayoutNumbers numbers;
};

/// What a training that saved the source has in addition to tensors.
void take_content(const native::NativeSource& training, const RunConfig& config, Head& head) {
  head.content = training.user_content();
  try {
    Value parameters = head.content.at("hyper_parameters");
    parameters.set("cfg", Value(config.resolved_yaml));
    head.content.set("hyper_parameters", std::move(parameters));
    head.numbers.optimizer_steps = head.content.at("optimizer_steps").as_int();
    if (const Value* schedulers = head.content.find("lr_schedulers");
        schedulers != nullptr && !schedulers->items().empty()) {
      const Value::List& rates = schedulers->items().front().at("_last_lr").items();
      if (!rates.empty()) head.numbers.lr = rates.front().as_double();
    }
  } catch (const ConfigError& error) {
    throw ConfigError(training.address() + "/" + native::kUserContentFile + ": " + error.what());
  }
}

Head head_of(const TensorSource& source, const Place& place, const RunConfig& config) {
  Head head;
  head.manifest.sequence = CheckpointFolder(place.storage).next_sequence();
  head.manifest.layout = layout_of(config);
  const auto* files = dynamic_cast<const native::NativeSource*>(&source);
  head.manifest.step = head.numbers.optimizer_steps = source.point().step;
  head.manifest.consumed_samples = consumed_samples_of(source, config);
  if (files != nullptr) head.manifest.metric = files->manifest().metric;
  if (files != nullptr && files->is_ours()) {
    take_content(*files, config, head);
  } else {
    head.content = user_content_of(config, {head.manifest.step, head.manifest.consumed_samples, 0});
  }
  return head;
}

}  // namespace

std::int64_t write_native(TensorSource& source, const Place& place, const RunConfig& config,
                          const NativeOptions& options, const Progress& progress) {
  NativeWriter writer(source, place);
  Head head = head_of(source, place, config);
  const auto files_of = [&](int rank) {
    std::vector<PlannedFile> files;
    for (const native::FileJob& job : layout_jobs(config, rank, options.files, head.numbers,
                                                  {.weights_only = options.weights_only}))
      files.push_back(planned(job));
    return files;
  };
  std::mutex mutex;
  std::int64_t bytes = 0;
  std::set<std::string> problems;
  for_each_rank(config.world_size(), options.threads, [&](int rank) {
    for (const PlannedFile& file : files_of(rank)) {
      std::vector<std::string> found = writer.problems(file);
      const std::scoped_lock lock(mutex);
      bytes += file.bytes();
      problems.insert(found.begin(), found.end());
    }
  });
  Problems all;
  for (const std::string& problem : problems) all.add(source.address(), problem);
  all.throw_if_any();
  writer.begin();
  ByteProgress done(bytes, progress);
  for_each_rank(config.world_size(), options.threads, [&](int rank) {
    for (const PlannedFile& file : files_of(rank)) {
      writer.write(file);
      done.add(static_cast<std::size_t>(file.bytes()));
    }
  });
  writer.finish(std::move(head.manifest), head.content);
  return bytes;
}

}  // namespace trellis::checkpoint
