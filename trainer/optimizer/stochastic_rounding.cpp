#include "trainer/optimizer/stochastic_rounding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "base/content_hash.h"
#include "trainer/optimizer/tensor_sums.h"

namespace trellis::trainer {
namespace {

std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

void xor_with_shifted(at::Tensor& x, int bits) {
  // A right shift of a signed number brings copies of its sign: they are masked away.
  x.bitwise_xor_(
      at::bitwise_right_shift(x, bits).bitwise_and_((std::int64_t{1} << (32 - bits)) - 1));
}

/// The same on a tensor, in place. The factors are the same bits as signed numbers; products wrap.
void mix(at::Tensor& x) {
  xor_with_shifted(x, 16);
  x.mul_(std::int64_t{0x7feb352d});
  xor_with_shifted(x, 15);
  x.mul_(static_cast<std::int64_t>(static_cast<std::int32_t>(0x846ca68bU)));
  xor_with_shifted(x, 16);
}

at::Tensor hashes_of(const at::Tensor& numbers, std::uint32_t salt, at::Device device) {
  at::Tensor hashes = at::empty({numbers.numel()}, at::kInt);
  const std::int64_t* in = numbers.const_data_ptr<std::int64_t>();
  std::int32_t* out = hashes.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i)
    out[i] = static_cast<std::int32_t>(mixed(static_cast<std::uint32_t>(in[i]) + salt));
  return hashes.to(device);
}

/// The global number of each row (dimension 0) and of each column (all other dimensions) that this
/// rank holds.
struct GlobalNumbers {
  at::Tensor rows, columns;
};

GlobalNumbers global_numbers(const Parameter& parameter, const ParallelGroup& tensor) {
  std::vector<std::int64_t> shape = parameter.tensor.sizes().vec();
  const Partition& partition = parameter.partition;
  if (partition.is_sharded())
    shape[static_cast<std::size_t>(partition.dim)] = unsharded_size(partition);
  const std::int64_t whole_rows = shape[0];
  at::Tensor rows = at::arange(whole_rows, at::kLong);
  std::int64_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  shape.erase(shape.begin());
  at::Tensor columns = at::arange(count, at::kLong).view(shape);
  if (partition.dim == 0) rows = shard_of(rows, partition, tensor.rank, tensor.size);
  if (parameter.experts.is_stacked())
    rows = rows + parameter.experts.first * (whole_rows / parameter.experts.count);
  if (partition.dim > 0)
    columns = shard_of(columns, {partition.dim - 1, partition.blocks}, tensor.rank, tensor.size);
  return {rows.contiguous(), columns.reshape(-1).contiguous()};
}

std::int32_t key_of(std::int64_t seed, std::int64_t step, const std::string& parameter,
                    const std::string& stream) {
  ContentHasher hasher;
  hasher.value(seed);
  hasher.value(step);
  hasher.text(parameter);
  hasher.text(stream);
  return static_cast<std::int32_t>(hasher.finish().low);
}

}  // namespace

StochasticRounding::StochasticRounding(const ShardLayout& layout, std::int64_t seed,
                                       at::Device device)
    : seed_(seed) {
  for (const ShardSlot& slot : layout.slots) {
    const GlobalNumbers numbers = global_numbers(*slot.parameter, layout.tensor);
    rows_.push_back(
        hashes_of(numbers.rows.narrow(0, slot.first_row, slot.rows), 0x9e3779b9U, device));
    columns_.push_back(hashes_of(numbers.columns, 0, device));
  }
}

at::Tensor StochasticRounding::round(const ShardLayout& layout, const at::Tensor& shard,
                                     std::int64_t step, const std::string& stream) const {
  TORCH_INTERNAL_ASSERT(shard.scalar_type() == at::kFloat);
  std::vector<std::int32_t> keys;
  for (const ShardSlot& slot : layout.slots)
    keys.push_back(key_of(seed_, step, slot.parameter->name, stream));
  const at::Tensor device_keys = at::tensor(keys, at::kInt).to(shard.device());
  at::Tensor noisy = shard.view(at::kInt).clone();
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    at::Tensor rows = rows_[i].bitwise_xor(device_keys.select(0, static_cast<std::int64_t>(i)));
    mix(rows);
    at::Tensor bits = at::bitwise_xor(rows.unsqueeze(1), columns_[i].unsqueeze(0));
    mix(bits);
    rows_of(noisy, layout.slots[i]).add_(bits.bitwise_and_(0xffff));
  }
  // A bf16 is the upper half of an fp32: what is left after the carry is exact.
  return noisy.bitwise_and_(-65536).view(at::kFloat).to(at::kBFloat16);
}

}  // namespace trellis::trainer
