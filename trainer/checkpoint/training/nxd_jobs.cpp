#include "trainer/checkpoint/training/nxd_jobs.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "trainer/checkpoint/layout/nxd_form.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::checkpoint {
namespace {

using native::FileJob;

/// Parameters of NxD's groups, by their places in the model. Two lists of groups, of dense weights
/// and of experts, where NxD has an optimizer for each.
struct Groups {
  std::vector<std::vector<std::int64_t>> ids;
  bool are_split = false;
  [[nodiscard]] std::size_t first_of_experts() const { return ids.size() / 2; }
};

Groups groups_of(const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer,
                 bool are_split) {
  const auto of_optimizer = optimizer.param_groups();
  std::map<std::string, std::size_t> group_of;
  for (std::size_t i = 0; i < of_optimizer.size(); ++i) {
    for (const std::string& name : of_optimizer[i].names) group_of.emplace(name, i);
  }
  std::map<std::int64_t, const LiveTensor*> trained;
  for (const LiveTensor* weight : native::trained_weights(live, optimizer))
    trained.emplace(weight->id, weight);
  Groups groups{std::vector<std::vector<std::int64_t>>(of_optimizer.size() * (are_split ? 2 : 1)),
                are_split};
  for (const auto& [id, weight] : trained) {
    const std::size_t first = are_split && weight->of_experts ? groups.first_of_experts() : 0;
    groups.ids[first + group_of.at(weight->parameter)].push_back(id);
  }
  return groups;
}

/// Numbers through the groups.
void renumber(const Groups& groups, LiveState& live) {
  std::map<std::int64_t, std::int64_t> numbers;
  for (const auto& ids : groups.ids) {
    for (const std::int64_t id : ids) numbers.emplace(id, std::ssize(numbers));
  }
  for (std::vector<LiveTensor>* tensors : {&live.model, &live.optimizer}) {
    for (LiveTensor& tensor : *tensors) {
      const auto found = numbers.find(tensor.id);
      tensor.id = found == numbers.end() ? -1 : found->second;
    }
  }
}

/// torch.optim.AdamW needs these to go on.
void add_options(const trainer::OptimSection& optim, Value& group) {
  if (!optim.name.starts_with("adamw")) return;
  group.set("betas",
            Value::tuple({Value(optim.beta1.value_or(0.9)), Value(optim.beta2.value_or(0.999))}));
  group.set("eps", Value(optim.eps.value_or(1e-8)));
  for (const char* off : {"amsgrad", "maximize", "capturable", "differentiable"})
    group.set(off, Value(false));
  for (const char* none : {"foreach", "fused"}) group.set(none, Value());
}

/// `saved`: native groups with the same numbers, which do not separate experts.
Value param_groups(const Groups& groups, const Value& saved, const trainer::OptimSection& optim) {
  Value::List list;
  std::int64_t number = 0;
  for (std::size_t i = 0; i < groups.ids.size(); ++i) {
    if (groups.are_split && i == groups.first_of_experts()) number = 0;
    Value group = saved.items()[i % saved.items().size()];
    Value::List params;
    for (std::size_t j = 0; j < groups.ids[i].size(); ++j) params.emplace_back(number++);
    group.set("params", Value::list(std::move(params)));
    group.erase("param_names");
    add_options(optim, group);
    list.push_back(std::move(group));
  }
  return Value::list(std::move(list));
}

Value optimizer_dict(Value root, const Groups& groups, bool zero1,
                     const trainer::OptimSection& optim) {
  root.set("param_groups", param_groups(groups, root.at("param_groups"), optim));
  if (!zero1) {
    root.set("state", root.at(native::kBaseState));
    root.erase(native::kBaseState);
    root.erase("shape_info");
  }
  if (!groups.are_split) return root;
  std::int64_t dense = 0;
  for (std::size_t i = 0; i < groups.first_of_experts(); ++i) dense += std::ssize(groups.ids[i]);
  root.set("ep_param_id_offset", Value(1));  // of `state`, which is empty
  root.set("ep_param_group_offset", Value(static_cast<std::int64_t>(groups.first_of_experts())));
  // NxD counts an optimizer without parameters as one of one.
  for (const char* key : {"ep_base_state_offset", "ep_shape_info_offset"})
    root.set(key, Value(std::max<std::int64_t>(dense, 1)));
  return root;
}

void check_states(const LiveState& live, const trainer::ParameterList& parameters) {
  for (const LiveTensor& state : live.optimizer) {
    const bool is_stacked = parameters[static_cast<std::size_t>(state.id)].experts.is_stacked();
    if (is_stacked && state.span.extent != trainer::StateExtent::kElements)
      throw ConfigError("model.optim.name: " + state.state + " of " + state.parameter +
                        " has no form in NxD, whose experts have three dimensions: expected states "
                        "in the shape of the weights; write --weights-only");
  }
}

}  // namespace

trainer::RunConfig nxd_config(trainer::RunConfig config) {
  auto& strategy = config.distributed_strategy;
  if (strategy.context_parallel_size > 1)
    throw ConfigError(
        "distributed_strategy.context_parallel_size: expected 1 for files of NxD, whose names have "
        "no rank of it, got " +
        std::to_string(strategy.context_parallel_size) +
        "; add distributed_strategy.context_parallel_size=1");
  strategy.fsdp = false;
  strategy.data_parallel_replicate_size = 1;
  config.model.dist_ckpt = {};
  config.exp_manager.checkpoints.zero1_dcp = false;
  config.exp_manager.checkpoints.masters_replace_weights = false;
  return config;
}

std::vector<FileJob> nxd_jobs(const trainer::RunConfig& config, const native::RankContent& rank,
                              const SaveArguments& arguments) {
  native::FileOptions options = file_options(config);
  options.steps_by_parameter = true;
  const RankPlace& place = rank.place.place;
  LiveState live = in_nxd_form(rank.live, rank.parameters, place);
  std::vector<FileJob> jobs = native::model_jobs(live, rank.place, options);
  if (arguments.weights_only || config.exp_manager.checkpoints.save_weights_only) return jobs;
  check_states(live, rank.parameters);
  const Groups groups =
      groups_of(live, rank.optimizer, /*are_split=*/place.zero1 && place.ep_size > 1);
  renumber(groups, live);
  const double lr = arguments.lr > 0 ? arguments.lr : config.model.optim.lr;
  for (FileJob& job : native::optimizer_jobs(live, rank.optimizer, lr, rank.place, options)) {
    if (job.root.find("param_groups") != nullptr)
      job.root = optimizer_dict(std::move(job.root), groups, place.zero1, config.model.optim);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace trellis::checkpoint
