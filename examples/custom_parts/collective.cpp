// A custom collective: the sum of all ranks' tensors by pieces that go around a ring, next to the
// all-reduce that is there. docs/guides/extend.md explains it.
#include <atomic>
#include <cstdio>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runtime/ranks/world.h"

constexpr int kRanks = 4;
constexpr std::int64_t kElements = 1000;

/// Sends `out` to the next member and returns what the one before has sent.
at::Tensor shift(c10d::ProcessGroup& group, const at::Tensor& out, int tag) {
  const int size = group.getSize(), self = group.getRank();
  std::vector<at::Tensor> sent{out.contiguous()}, received{at::empty_like(sent[0])};
  const auto sending = group.send(sent, (self + 1) % size, tag);
  group.recv(received, (self + size - 1) % size, tag)->wait();
  sending->wait();
  return received[0];
}

/// A reduce-scatter and an all-gather of `size` pieces; each member moves 2 · (size − 1) / size of
/// the tensor. REQUIRES: dimension 0 is a multiple of the group's size.
at::Tensor ring_all_reduce(c10d::ProcessGroup& group, const at::Tensor& mine) {
  const int size = group.getSize(), self = group.getRank();
  std::vector<at::Tensor> pieces = mine.clone().chunk(size);
  const auto piece = [&](int number) -> at::Tensor& {
    return pieces[static_cast<std::size_t>((number + 2 * size) % size)];
  };
  for (int hop = 0; hop < size - 1; ++hop)
    piece(self - hop - 1) += shift(group, piece(self - hop), hop);
  for (int hop = 0; hop < size - 1; ++hop)
    piece(self - hop) = shift(group, piece(self + 1 - hop), size + hop);
  return at::cat(pieces);
}

int main() {
  std::atomic<int> equal = 0;
  trellis::runtime::run_ranks({.world_size = kRanks}, [&](trellis::runtime::RankContext& rank) {
    std::vector<int> members(kRanks);
    std::iota(members.begin(), members.end(), 0);
    const auto group = rank.new_group("world", members);
    const at::Tensor mine = at::arange(kElements, at::kDouble) * (rank.rank() + 1);
    const at::Tensor sum = ring_all_reduce(*group, mine);
    std::vector<at::Tensor> expected{mine.clone()};
    group->allreduce(expected)->wait();
    equal += at::equal(sum, expected[0]) ? 1 : 0;
    if (rank.rank() == 0) std::printf("sum of element 3: %g\n", sum[3].item<double>());
  });
  std::printf("%d of %d ranks have the sum of all-reduce\n", equal.load(), kRanks);
  return equal == kRanks ? 0 : 1;
}
