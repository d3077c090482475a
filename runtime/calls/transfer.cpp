#include "runtime/calls/transfer.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

namespace trellis::runtime {

void write_back(const Side& side) {
  if (side.write_back.empty()) return;
  at::AutoDispatchBelowADInplaceOrView plain_copy;
  for (const auto& [tensor, copy] : side.write_back) tensor.copy_(copy);
}

bool Exchange::move_parts() {
  const std::int64_t part_length = (length + parts - 1) / parts;
  std::int64_t done_here = 0;
  for (std::int64_t part = next_part++; part < parts; part = next_part++) {
    move_bytes(*movement, buffers, part * part_length, std::min(length, (part + 1) * part_length),
               call.dtype, call.reduction);
    ++done_here;
  }
  return done_here > 0 && parts_done.fetch_add(done_here) + done_here == parts;
}

void Exchange::release() {
  sides.clear();
  sides.shrink_to_fit();
  buffers.clear();
  movement.reset();
}

void Message::release() {
  if (posted) posted = Side{};
  content = {};
}

}  // namespace trellis::runtime
