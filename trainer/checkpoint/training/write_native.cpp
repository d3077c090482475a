#include "trainer/checkpoint/training/write_native.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/process/parallel_for.h"
#include "trainer/checkpoint/engine/zero1_dcp.h"
#include "trainer/checkpoint/layout/layout_jobs.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/checkpoint/training/nxd_jobs.h"
#include "trainer/checkpoint/training/run_checkpoints.h"
#include "trainer/checkpoint/training/save_options.h"
#include "trainer/checkpoint/training/torch_dist.h"
#include "trainer/checkpoint/training/user_content.h"
#include "trainer/files/checkpoint/conversion/model_check.h"
#include "trainer/files/checkpoint/conversion/native_writer.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/formats/nxd/stacked_experts.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

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

struct Head {
  native::Manifest manifest;
  Value content;
  std::int64_t optimizer_steps = 0;
  double lr = 0;
};

/// Takes over the state that the source's training saved in addition to tensors.
void take_content(const native::NativeSource& training, const RunConfig& config, Head& head) {
  head.content = training.user_content();
  try {
    Value parameters = head.content.at("hyper_parameters");
    parameters.set("cfg", Value(config.resolved_yaml));
    head.content.set("hyper_parameters", std::move(parameters));
    head.optimizer_steps = head.content.at("optimizer_steps").as_int();
    if (const Value* schedulers = head.content.find("lr_schedulers");
        schedulers != nullptr && !schedulers->items().empty()) {
      const Value::List& rates = schedulers->items().front().at("_last_lr").items();
      if (!rates.empty()) head.lr = rates.front().as_double();
    }
  } catch (const ConfigError& error) {
    throw ConfigError(training.address() + "/" + native::kUserContentFile + ": " + error.what());
  }
}

/// A training that went on would begin at step 1 with moments of a later one.
void say_if_step_is_unknown(const TensorSource& source) {
  const bool has_states = std::ranges::any_of(source.tensors(), [](const TensorEntry& entry) {
    return !parse_state_key(entry.key).state.empty();
  });
  if (source.point().step == 0 && has_states)
    log_warning(source.address() +
                ": does not say after which step it was saved: no training goes on from the "
                "result (--init-from takes its weights)");
}

Head head_of(const TensorSource& source, const Place& place, const RunConfig& config) {
  Head head;
  head.manifest.sequence = CheckpointFolder(place.storage).next_sequence();
  head.manifest.layout = layout_of(config);
  head.manifest.run = native::kConversionRun;
  head.manifest.tag = place.path;
  const auto* files = dynamic_cast<const native::NativeSource*>(&source);
  head.manifest.step = head.optimizer_steps = source.point().step;
  head.manifest.consumed_samples = consumed_samples_of(source, config);
  if (files != nullptr) head.manifest.metric = files->manifest().metric;
  if (files != nullptr && files->is_ours()) {
    take_content(*files, config, head);
  } else {
    head.content = user_content_of(config, {head.manifest.step, head.manifest.consumed_samples, 0});
  }
  return head;
}

/// The work of a write on its threads.
class RankWriter {
 public:
  RankWriter(NativeWriter& writer, const Place& place, const RunConfig& config, const Head& head,
             const NativeOptions& options)
      : writer_(writer), place_(place), config_(config), head_(head), options_(options) {}

  [[nodiscard]] std::vector<native::FileJob> jobs_of(int rank) const {
    const SaveArguments arguments{head_.manifest.step, head_.lr, options_.weights_only,
                                  plan_gather};
    return layout_jobs(config_, rank, head_.optimizer_steps,
                       [&](const native::RankContent& content) {
                         return options_.for_nxd ? nxd_jobs(config_, content, arguments)
                                                 : checkpoint_jobs(config_, content, arguments);
                       });
  }
  void check(int rank) {
    for (const native::FileJob& job : jobs_of(rank)) {
      std::set<std::string> asked;
      for (const std::vector<ShardedPart>& parts : job.parts) {
        for (const ShardedPart& part : parts) asked.insert(parse_state_key(part.tensor.key).weight);
      }
      std::vector<std::string> found = writer_.problems(planned(job));
      if (!job.problem.empty()) found.push_back(job.problem);
      const std::scoped_lock lock(mutex_);
      bytes_ += job.bytes();
      asked_.merge(asked);
      problems_.insert(found.begin(), found.end());
    }
  }
  [[nodiscard]] const std::set<std::string>& problems() const { return problems_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Weights that the layout has.
  [[nodiscard]] const std::set<std::string>& asked() const { return asked_; }
  void write(const native::FileJob& job) {
    const PlannedFile file = planned(job);
    if (!job.is_dcp()) return writer_.write(file);
    const native::WriteBox write = [&](DcpFileWriter& into, const native::ChunkJob& chunk) {
      for (std::size_t i = chunk.first; i < chunk.first + chunk.count; ++i)
        writer_.fill(file.tensors[i], [&](std::span<const std::byte> bytes) { into.write(bytes); });
    };
    native::Written written;
    if (job.dcp_folder.empty())
      native::write_states(*place_.storage, place_.path, job, write, Durability::kAtClose, written);
    else
      native::write_chunks(*place_.storage, place_.path, job, write, written);
    const std::scoped_lock lock(mutex_);
    written_.add(std::move(written));
  }
  /// Completes the folders of DCP, to which the files of all ranks belong.
  void finish() {
    if (!written_.objects.empty())
      native::write_states_metadata(*place_.storage, place_.path, written_);
    if (saves_torch_dist(config_))
      complete_torch_dist(config_, place_, {head_.manifest.step, head_.manifest.consumed_samples},
                          written_);
    writer_.add(std::move(written_.files), std::move(written_.tensors));
  }

 private:
  NativeWriter& writer_;
  const Place& place_;
  const RunConfig& config_;
  const Head& head_;
  const NativeOptions& options_;
  std::mutex mutex_;
  std::int64_t bytes_ = 0;
  std::set<std::string> problems_, asked_;
  native::Written written_;
};

/// Writes `tensors`, whose other properties are those of `source`.
std::int64_t write_files(TensorSource& source, TensorSource& tensors, const Place& place,
                         const RunConfig& config, const NativeOptions& options,
                         const Progress& progress) {
  NativeWriter writer(tensors, place);
  Head head = head_of(source, place, config);
  RankWriter ranks(writer, place, config, head, options);
  const auto world = static_cast<std::size_t>(config.world_size());
  const auto threads = static_cast<std::size_t>(std::max(1, options.threads));
  parallel_for(world, threads, [&](std::size_t rank) { ranks.check(static_cast<int>(rank)); });
  Problems all;
  for (const std::string& problem : ranks.problems()) all.add(source.address(), problem);
  all.throw_if_any();
  std::vector<std::string> stored;
  for (const TensorEntry& entry : source.tensors()) stored.push_back(entry.key);
  judge_unused_weights(unused_weights(stored, ranks.asked()), source.address(), config);
  if (!options.weights_only) say_if_step_is_unknown(source);
  writer.begin();
  ByteProgress done(ranks.bytes(), progress);
  parallel_for(world, threads, [&](std::size_t each) {
    const auto rank = static_cast<int>(each);
    for (const native::FileJob& job : ranks.jobs_of(rank)) {
      ranks.write(job);
      done.add(static_cast<std::size_t>(job.bytes()));
    }
  });
  ranks.finish();
  writer.finish(options.for_nxd ? std::nullopt : std::optional(std::move(head.manifest)),
                head.content);
  return ranks.bytes();
}

}  // namespace

std::int64_t write_native(TensorSource& source, const Place& place, const RunConfig& config,
                          const NativeOptions& options, const Progress& progress) {
  if (!options.for_nxd) return write_files(source, source, place, config, options, progress);
  const auto stacked =
      config.model.moe ? nxd::experts_stacked(source, config.model.moe->num_experts) : nullptr;
  return write_files(source, stacked ? *stacked : source, place, nxd_config(config), options,
                     progress);
}

}  // namespace trellis::checkpoint
