#include "trainer/modules/moe/token_shuffle.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/modules/moe/dispatch.h"

namespace trellis::trainer {

TokenShuffle::TokenShuffle(const ModuleContext& context, const std::string& path)
    : path_(path),
      group_(context.parallel->get_token_shuffle_group()),
      device_(context.device),
      shape_only_(context.shape_only),
      seed_(context.seed),
      position_(context.position) {}

/// On the host: a permutation is data.
TokenShuffle::Order TokenShuffle::order(std::int64_t tokens) const {
  if (group_.size == 1) return {};
  if (tokens % group_.size != 0) {
    throw ConfigError(c10::str("distributed_strategy.token_shuffle_group_size: ", path_, ": ",
                               tokens, " tokens of a micro-batch are not divisible by ",
                               group_.size));
  }
  at::Tensor forward = at::empty({tokens}, at::kLong), inverse = at::empty({tokens}, at::kLong);
  if (!shape_only_) {
    const std::uint64_t seed = stream_seed(seed_, c10::str(path_, ".shuffle step ", position_->step,
                                                           " micro-batch ", position_->microbatch));
    forward = at::randperm(tokens, at::detail::createCPUGenerator(seed), at::kLong);
    inverse.index_copy_(0, forward, at::arange(tokens, at::kLong));
  }
  return {forward.to(device_), inverse.to(device_)};
}

at::Tensor TokenShuffle::shuffle(const at::Tensor& tokens, const Order& order) const {
  if (group_.size == 1) return tokens;
  return exchange_rows(select_rows(tokens, order.forward, order.inverse), group_);
}

at::Tensor TokenShuffle::put_back(const at::Tensor& tokens, const Order& order) const {
  if (group_.size == 1) return tokens;
  return select_rows(exchange_rows(tokens, group_), order.inverse, order.forward);
}

}  // namespace trellis::trainer
