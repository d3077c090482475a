#include "trainer/checkpoint/state/merged_weights.h"

#include <map>
#include <string>
#include <string_view>

#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>

namespace trellis::checkpoint {
namespace {

constexpr std::string_view kA = ".lora_A.", kB = ".lora_B.";

/// True for the adapter of an embedding. Its A and B have the shapes [tokens, r] and [h, r], a
/// linear layer's [r, in] and [out, r].
bool is_embedding(const std::string& layer, const at::Tensor& b, const at::Tensor& a,
                  const at::Tensor& weight) {
  if (layer.ends_with("embed_tokens")) return true;
  const bool as_linear = a.size(0) == b.size(1) && weight.size(0) == b.size(0);
  return !as_linear && a.size(1) == b.size(1) && weight.size(0) == a.size(0);
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().cpu().to(at::kDouble); }

}  // namespace

std::vector<LiveTensor> merged_weights(const std::vector<LiveTensor>& model, double scale) {
  std::map<std::string, const LiveTensor*> by_name;
  for (const LiveTensor& tensor : model) by_name.emplace(tensor.parameter, &tensor);
  std::map<std::string, at::Tensor> added;
  for (const auto& [name, b] : by_name) {
    const std::size_t at = name.find(kB);
    if (at == std::string::npos) continue;
    const std::string layer = name.substr(0, at);
    const auto a = by_name.find(layer + std::string(kA) + "weight");
    const auto weight = by_name.find(layer + "." + name.substr(at + kB.size()));
    TORCH_INTERNAL_ASSERT(a != by_name.end() && weight != by_name.end(), name);
    const at::Tensor left = on_host(b->values), right = on_host(a->second->values);
    at::Tensor product = is_embedding(layer, left, right, weight->second->values)
                             ? at::matmul(right, left.t())
                             : at::matmul(left, right);
    TORCH_INTERNAL_ASSERT(product.sizes() == weight->second->values.sizes(), name);
    added.emplace(weight->first, std::move(product));
  }
  std::vector<LiveTensor> merged;
  for (const LiveTensor& tensor : model) {
    if (tensor.parameter.find(kA) != std::string::npos ||
        tensor.parameter.find(kB) != std::string::npos)
      continue;
    merged.push_back(tensor);
    const auto found = added.find(tensor.parameter);
    if (found == added.end()) continue;
    merged.back().values =
        on_host(tensor.values).add(found->second, scale).to(tensor.values.scalar_type());
  }
  return merged;
}

}  // namespace trellis::checkpoint
