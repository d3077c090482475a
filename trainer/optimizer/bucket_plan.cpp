#include "trainer/optimizer/bucket_plan.h"

#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kMegabyte = 1'000'000;

std::optional<std::int64_t> bytes_from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  std::int64_t megabytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), megabytes);
  if (error != std::errc() || end != text.data() + text.size() || megabytes <= 0) {
    throw ConfigError(std::string(variable) + ": expected a number of megabytes above 0, got `" +
                      value + "`; correct or unset the variable");
  }
  return megabytes * kMegabyte;
}

}  // namespace

BucketCaps bucket_caps(const RunConfig& config) {
  BucketCaps caps;
  // Without a global down-cast bf16 weights meet fp32 masters in one bucket: NxD halves it.
  if (config.precision.type == "autocast" && config.precision.weights_bf16 &&
      config.precision.master_weights)
    caps.reduce_scatter /= 2;
  if (config.bucket_size_collectives_mb > 0)
    caps.all_reduce = config.bucket_size_collectives_mb * kMegabyte;
  if (const auto bytes = bytes_from_environment("ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB"))
    caps.reduce_scatter = *bytes;
  if (const auto bytes = bytes_from_environment("ALLREDUCE_BUCKET_CAP_MB"))
    caps.all_reduce = *bytes;
  return caps;
}

BucketKind kind_of(const Parameter& parameter) {
  return {
      parameter.tensor.scalar_type(),      parameter.weight_decay, parameter.tensor_model_parallel,
      parameter.sequence_parallel_enabled, parameter.tied,         parameter.shared,
      parameter.experts.is_stacked(),      parameter.group,        parameter.unit};
}

std::vector<std::vector<Parameter*>> plan_buckets(ParameterList& parameters,
                                                  at::ScalarType grad_dtype, std::int64_t cap_bytes,
                                                  int shards, int expert_shards) {
  struct Open {
    std::size_t bucket;
    std::int64_t bytes;
  };
  std::map<BucketKind, Open> open;
  std::vector<std::vector<Parameter*>> buckets;
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    if (!parameter->tensor.requires_grad()) continue;
    const at::Tensor& tensor = parameter->tensor;
    const at::ScalarType dtype = c10::promoteTypes(grad_dtype, tensor.scalar_type());
    const int ranks = parameter->experts.is_stacked() && expert_shards > 0 ? expert_shards : shards;
    const std::int64_t padded =
        rows_per_shard(tensor, ranks) * ranks * (tensor.numel() / tensor.size(0));
    const std::int64_t bytes = padded * static_cast<std::int64_t>(c10::elementSize(dtype));
    auto found = open.find(kind_of(*parameter));
    if (found == open.end() || found->second.bytes + bytes > cap_bytes) {
      found = open.insert_or_assign(kind_of(*parameter), Open{buckets.size(), 0}).first;
      buckets.emplace_back();
    }
    found->second.bytes += bytes;
    buckets[found->second.bucket].push_back(&*parameter);
  }
  return buckets;
}

}  // namespace trellis::trainer
