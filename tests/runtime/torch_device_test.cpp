// Collectives on a device whose memory the host cannot touch (sealed_device.cpp), by way of the
// provider torch_device: each equals the CPU's ranks, with bytes through the host and with Gloo.
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "runtime/groups/device_plugin.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

constexpr int kRanks = 4;

std::string library(const std::string& name) {
  return std::string(TRELLIS_BUILD_DIR) + "/lib/lib" + name + ".so";
}

WorldOptions sealed_world(const std::string& backend) {
  const DevicePlugin& plugin = DevicePlugin::load(library("trellis_torch_device"));
  const std::string options =
      R"({"schema": "trellis.torch_device_options/1", "device": "sealed", "library": ")" +
      library("sealed_device") + R"(", "backend": ")" + backend +
      R"(", "world_size": 4, "first_rank": 0, "first_local_rank": 0, "seed": 1})";
  plugin.check(plugin.api().configure(options.c_str()));
  WorldOptions options_of_world = world(kRanks);
  options_of_world.device_type = "sealed";
  options_of_world.plugin = &plugin;
  options_of_world.backend = backend;
  return options_of_world;
}

/// One after the other, all that the trainer uses; whole numbers, whose sums are exact in any
/// order.
Tensors collectives(RankContext& context) {
  const auto on_device = [&](std::uint64_t seed, at::IntArrayRef sizes) {
    return numbers(context.rank(), sizes, at::kInt, seed).to(at::kFloat).to(context.device());
  };
  const auto empty = [&](std::int64_t n) {
    return at::zeros({n}, at::TensorOptions(at::kFloat).device(context.device()));
  };
  auto group = context.new_group("dp", all_ranks(kRanks));
  Tensors results;
  Tensors summed{on_device(1, {3, 5})};
  group->allreduce(summed)->wait();
  Tensors first{on_device(2, {7})};
  group->broadcast(first)->wait();
  at::Tensor full = empty(4 * kRanks), shard = on_device(3, {4});
  group->all_gather_single(full, shard)->wait();
  at::Tensor all = on_device(4, {4 * kRanks}), part = empty(4);
  group->reduce_scatter_single(part, all)->wait();
  Tensors fulls{empty(2 * kRanks), empty(kRanks)}, shards{on_device(5, {2}), on_device(6, {1})};
  group->all_gather_single_coalesced(fulls, shards)->wait();
  Tensors wholes{on_device(7, {2 * kRanks}), on_device(8, {kRanks})}, parts{empty(2), empty(1)};
  group->reduce_scatter_single_coalesced(parts, wholes)->wait();
  // Rank r gives r + 1 elements to each, and gets i + 1 from rank i.
  std::vector<std::int64_t> sent(kRanks, context.rank() + 1), received{1, 2, 3, 4};
  at::Tensor out = empty(10), in = on_device(9, {kRanks * (context.rank() + 1)});
  group->all_to_all_single(out, in, received, sent)->wait();
  Tensors message{on_device(10, {6})}, came{empty(6)};
  auto sending = group->send(message, (context.rank() + 1) % kRanks, 3);
  group->recv(came, (context.rank() + kRanks - 1) % kRanks, 3)->wait();
  sending->wait();
  group->barrier()->wait();
  for (const Tensors& each :
       {summed, first, Tensors{full, part}, fulls, parts, Tensors{out}, came}) {
    for (const at::Tensor& tensor : each) {
      EXPECT_EQ(tensor.device(), context.device());
      results.push_back(tensor.cpu());
    }
  }
  return results;
}

std::vector<Tensors> of_all_ranks(const WorldOptions& options) {
  std::vector<Tensors> results(kRanks);
  run_ranks(options, [&](RankContext& context) {
    results[static_cast<std::size_t>(context.rank())] = collectives(context);
  });
  return results;
}

void expect_equal(const std::vector<Tensors>& expected, const std::vector<Tensors>& got) {
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(got[rank].size(), expected[rank].size());
    for (std::size_t i = 0; i < expected[rank].size(); ++i)
      EXPECT_TRUE(at::equal(got[rank][i], expected[rank][i]))
          << "rank " << rank << ", result " << i;
  }
}

TEST(TorchDevice, CollectivesEqualTheCpus) {
  const std::vector<Tensors> expected = of_all_ranks(world(kRanks));
  ASSERT_GT(expected[0][0].abs().sum().item<double>(), 0);
  for (const std::string backend : {"", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_equal(expected, of_all_ranks(sealed_world(backend)));
  }
}

/// The peers of a rank that fails lose their connections to it.
TEST(TorchDevice, TheCauseIsReportedAndNotALostConnection) {
  const auto run = [] {
    run_ranks(sealed_world("gloo"), [](RankContext& context) {
      auto group = context.new_group("dp", all_ranks(kRanks));
      if (context.rank() == 3) throw Error(ExitCode::kDoesNotFit, "rank 3 does not fit");
      Tensors summed{at::ones({1}, context.device())};
      group->allreduce(summed)->wait();
    });
  };
  EXPECT_THAT(run, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("rank 3 does not fit")));
}

TEST(TorchDevice, RanksShareTheDevicesOfTheHost) {
  run_ranks(sealed_world(""), [](RankContext& context) {
    EXPECT_EQ(context.device(), c10::Device(c10::kPrivateUse1, context.rank() % 2));
    EXPECT_EQ(at::empty({1}, context.device()).device(), context.device());
  });
}

TEST(TorchDevice, AnOperationThatTheStagedGroupDoesNotHaveIsNamed) {
  run_ranks(sealed_world(""), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(kRanks));
    Tensors inputs{at::ones({1}, context.device())};
    std::vector<Tensors> outputs{{}};
    EXPECT_THAT([&] { group->gather(outputs, inputs)->wait(); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("gather")));
  });
}

}  // namespace
}  // namespace trellis::runtime::testing
