#include "trainer/verify/seeded_bugs.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "trainer/verify/tampered_group.h"

namespace trellis::trainer {
namespace {

/// Which group of a rank a mistake is about.
enum class Axis { kTensor, kPipeline, kData, kKvShared, kExpert, kContext, kCopies };

RunChanges wrong_group(Axis axis, const Tampering& tampering) {
  RunChanges changes;
  changes.groups = [axis, tampering](const ParallelState& state) {
    const auto group_of = [&](Axis which, const ParallelGroup& group) {
      return which == axis ? tampered(group, tampering) : group;
    };
    // Without context parallelism those that hold the same weights are the data-parallel ranks.
    const ParallelState with_context =
        state.get_context_model_parallel_size() == 1
            ? state
            : state.with_context_groups(
                  group_of(Axis::kContext, state.get_context_model_parallel_group()),
                  group_of(Axis::kData, state.get_zero1_sharding_group()));
    return with_context
        .with_dense_groups(group_of(Axis::kTensor, state.get_tensor_model_parallel_group()),
                           group_of(Axis::kPipeline, state.get_pipeline_model_parallel_group()),
                           group_of(Axis::kData, state.get_data_parallel_group()))
        .with_expert_groups(group_of(Axis::kExpert, state.get_expert_model_parallel_group()),
                            group_of(Axis::kData, state.get_expert_data_parallel_group()))
        .with_fsdp_groups(group_of(Axis::kData, state.get_fsdp_sharding_group()),
                          group_of(Axis::kData, state.get_fsdp_sharding_group(true)),
                          group_of(Axis::kCopies, state.get_fsdp_replica_group()))
        .with_kv_shared_group(group_of(Axis::kKvShared, state.get_kv_shared_group()),
                              state.kv_replica_order());
  };
  return changes;
}

/// The labels that count in a step are divided by the ranks of its contexts: each knows its own.
RunChanges local_count_of_labels() {
  RunChanges changes;
  changes.groups = [](const ParallelState& state) {
    const double part = 1.0 / state.get_context_model_parallel_size();
    const auto factor = [part](const at::Tensor& sums) { return sums.numel() == 2 ? part : 1.0; };
    return state.with_context_groups(
        state.get_context_model_parallel_group(),
        tampered(state.get_zero1_sharding_group(), {.scales_sum = factor}));
  };
  return changes;
}

RunChanges wrong_parameters(std::function<void(Parameter&, const ParallelState&)> change) {
  RunChanges changes;
  changes.parameters = [change = std::move(change)](ParameterList& parameters,
                                                    const ParallelState& state) {
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : parameters) change(parameter, state);
  };
  return changes;
}

RunChanges wrong_config(std::function<void(RunConfig&)> change) {
  RunChanges changes;
  changes.config = std::move(change);
  return changes;
}

/// Returns the wrong data of a data-parallel rank from its right data and rank 0's.
using Misreading = std::function<std::vector<MicroBatch>(std::vector<MicroBatch> own,
                                                         std::vector<MicroBatch> of_rank_0)>;

class MisreadData final : public DataModule {
 public:
  MisreadData(std::shared_ptr<const DataModule> data, Misreading misread)
      : data_(std::move(data)), misread_(std::move(misread)) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    return misread_(data_->micro_batches(step, dp_rank), data_->micro_batches(step, 0));
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return data_->num_tokens(); }
  [[nodiscard]] std::string description() const override {
    return data_->description() + ", misread";
  }

 private:
  std::shared_ptr<const DataModule> data_;
  Misreading misread_;
};

RunChanges wrong_data(Misreading misread) {
  RunChanges changes;
  changes.data = [misread = std::move(misread)](std::shared_ptr<const DataModule> data) {
    return std::make_shared<MisreadData>(std::move(data), misread);
  };
  return changes;
}

std::vector<MicroBatch> samples_of_rank_0(std::vector<MicroBatch> /*own*/,
                                          std::vector<MicroBatch> of_rank_0) {
  return of_rank_0;
}

/// A micro-batch's place in the global batch is part of the seed of its dropout.
std::vector<MicroBatch> places_of_rank_0(std::vector<MicroBatch> own,
                                         std::vector<MicroBatch> of_rank_0) {
  for (std::size_t i = 0; i < own.size(); ++i) own[i].places = of_rank_0[i].places;
  return own;
}

/// Sums over the vocabulary are per token, [.., 1]; activations are [s, b, h].
bool is_per_token(const at::Tensor& tensor) { return tensor.dim() >= 3 && tensor.size(-1) == 1; }
bool is_activation(const at::Tensor& tensor) { return tensor.dim() == 3 && tensor.size(-1) > 1; }
/// Sums of losses and of their weights are two numbers.
bool is_weight_sized(const at::Tensor& tensor) { return tensor.dim() >= 1 && tensor.numel() > 2; }

bool has_tensor(const Layout& layout, const RunConfig&) { return layout.tp > 1; }
bool has_pipeline(const Layout& layout, const RunConfig&) { return layout.pp > 1; }
bool has_data(const Layout& layout, const RunConfig&) { return layout.dp > 1; }
bool has_data_and_dropout(const Layout& layout, const RunConfig& config) {
  const ModelSection& model = config.model;
  return layout.dp > 1 &&
         (model.hidden_dropout > 0 || model.attention_dropout > 0 || model.ffn_dropout > 0);
}
bool has_sequence_parallel(const Layout& layout, const RunConfig&) {
  return layout.sequence_parallel;
}
bool has_zero1(const Layout& layout, const RunConfig&) { return layout.zero1 && layout.dp > 1; }
bool is_fully_sharded(const Layout& layout, const RunConfig&) { return layout.fsdp; }
bool has_copies(const Layout& layout, const RunConfig&) { return layout.fsdp_replicas > 1; }
bool has_replicas(const Layout& layout, const RunConfig&) { return layout.kv_replicator > 1; }
bool has_context(const Layout& layout, const RunConfig&) { return layout.cp > 1; }
bool has_experts_of_ranks(const Layout& layout, const RunConfig&) { return layout.ep > 1; }
bool has_auxiliary_loss(const Layout& layout, const RunConfig& config) {
  return layout.tp > 1 && config.model.moe && config.model.moe->output_router_logits;
}
bool has_capacity(const Layout& layout, const RunConfig& config) {
  return layout.ep > 1 && config.model.moe->capacity_factor.value_or(0) > 0;
}
bool has_tied_stages(const Layout& layout, const RunConfig& config) {
  return layout.pp > 1 && config.model.share_embeddings_and_output_weights;
}

std::vector<SeededBug> make_bugs() {
  const auto mean_forgotten = [](const at::Tensor& tensor) {
    return is_weight_sized(tensor) ? 2.0 : 1.0;
  };
  return {
      {"loss-over-own-vocabulary",
       "cross entropy sums over a rank's part of the vocabulary only: the loss is off by about "
       "log(TP)",
       &has_tensor, wrong_group(Axis::kTensor, {.leaves_out_sum = &is_per_token})},
      {"activations-not-summed", "row-parallel layers leave out their all-reduce or reduce-scatter",
       &has_tensor, wrong_group(Axis::kTensor, {.leaves_out_sum = &is_activation})},
      {"vocabulary-rows-shifted",
       "each TP rank's rows of the embedding start one too late, as when the parts of the "
       "vocabulary are rounded wrongly",
       &has_tensor, wrong_parameters([](Parameter& parameter, const ParallelState& state) {
         const bool embedding =
             parameter.name.find("embed") != std::string::npos && parameter.partition.dim == 0;
         if (embedding && state.get_tensor_model_parallel_size() > 1)
           parameter.tensor.copy_(parameter.tensor.roll(1, 0));
       })},
      {"norm-gradients-not-summed",
       "gradients of norm weights stay those of a rank's part of the sequence",
       &has_sequence_parallel, wrong_parameters([](Parameter& parameter, const ParallelState&) {
         parameter.sequence_parallel_enabled = false;
       })},
      {"gradient-norm-counts-replicas",
       "weights that every TP rank holds whole count TP times in the gradient norm", &has_tensor,
       wrong_parameters([](Parameter& parameter, const ParallelState&) {
         parameter.tensor_model_parallel = true;
       })},
      {"kv-replicas-not-summed",
       "gradients of replicated key/value heads are not summed over their copies", &has_replicas,
       wrong_group(Axis::kKvShared, {.leaves_out_sum = &is_weight_sized})},
      {"tied-embedding-missed",
       "the gradients of tied embeddings are not summed over the pipeline stages", &has_tied_stages,
       wrong_group(Axis::kPipeline, {.leaves_out_sum = &is_weight_sized})},
      {"samples-overlap", "every data-parallel rank reads the same samples", &has_data,
       wrong_data(&samples_of_rank_0)},
      {"dropout-seed-shared",
       "data-parallel ranks draw their dropout from one seed, so that different samples get equal "
       "masks (the model needs dropout)",
       &has_data_and_dropout, wrong_data(&places_of_rank_0)},
      {"gradients-not-averaged",
       "gradients are scaled wrongly when they are summed over data-parallel ranks", &has_data,
       wrong_group(Axis::kData, {.scales_sum = mean_forgotten})},
      {"weights-not-gathered",
       "ZeRO-1 updates a rank's shard and leaves the other rows as they were", &has_zero1,
       wrong_group(Axis::kData, {.leaves_out_gather = true})},
      {"shard-updated-twice",
       "each update of a fully sharded weight is applied to its shard twice, as when two units "
       "hold it",
       &is_fully_sharded, wrong_config([](RunConfig& config) { config.model.optim.lr *= 2; })},
      {"copies-not-summed",
       "each copy of fully sharded weights is updated with the gradients of one part of the ranks",
       &has_copies, wrong_group(Axis::kCopies, {.leaves_out_sum = &is_weight_sized})},
      {"context-counts-own-labels",
       "a context-parallel rank divides by the labels of one part of the sequence: gradients "
       "are CP times too large",
       &has_context, local_count_of_labels()},
      {"blocks-arrive-late",
       "ring attention works on the block of keys and values before the one that it should have",
       &has_context, wrong_group(Axis::kContext, {.receives_late = true})},
      {"expert-gradients-scaled",
       "gradients of experts are averaged over the ranks that hold them, not over all whose tokens "
       "they saw: they are EP times too large",
       &has_experts_of_ranks,
       wrong_parameters([](Parameter& parameter, const ParallelState& state) {
         if (!parameter.experts.is_stacked()) return;
         const double factor = state.get_expert_model_parallel_size();
         parameter.tensor.register_hook([factor](const at::Tensor& grad) { return grad * factor; });
       })},
      {"auxiliary-loss-per-rank",
       "each TP rank adds the whole gradient of the routers' auxiliary loss, and they are summed",
       &has_auxiliary_loss, wrong_config([](RunConfig& config) {
         config.model.moe->router_aux_loss_coef *= config.tp();
       })},
      {"permutation-not-inverted",
       "the experts' results come back from the all-to-all in other rows than they left",
       &has_experts_of_ranks, wrong_group(Axis::kExpert, {.misplaces_returns = true})},
      {"capacity-after-exchange",
       "the capacity of an expert is counted with the tokens of all expert-parallel ranks, after "
       "the exchange, where each rank's own tokens decide",
       &has_capacity,
       wrong_config([](RunConfig& config) { *config.model.moe->capacity_factor *= config.ep(); })},
      {"activations-arrive-late",
       "a pipeline stage works on the message before the one that it should have", &has_pipeline,
       wrong_group(Axis::kPipeline, {.receives_late = true})},
  };
}

}  // namespace

const std::vector<SeededBug>& seeded_bugs() {
  static const auto* const bugs = new std::vector<SeededBug>(make_bugs());
  return *bugs;
}

const SeededBug& find_seeded_bug(std::string_view name) {
  std::string names;
  for (const SeededBug& bug : seeded_bugs()) {
    if (bug.name == name) return bug;
    names += (names.empty() ? "" : ", ") + bug.name;
  }
  throw ConfigError("--seed-bug " + std::string(name) + ": expected one of " + names);
}

}  // namespace trellis::trainer
