// The process group on tensors of the emulated device itself.
#include <torch/csrc/distributed/c10d/Functional.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/groups/device_plugin.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

WorldOptions neuron_world(int ranks) {
  static const DevicePlugin& plugin = []() -> const DevicePlugin& {
    const auto& library =
        DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
    library.check(library.api().configure(
        R"({"schema":"trellis.device_options/1","instance":"trn2.48xlarge","world_size":8})"));
    return library;
  }();
  WorldOptions options = world(ranks);
  options.plugin = &plugin;
  options.device_type = "neuron";
  return options;
}

at::Tensor filled(const RankContext& context, at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions(context.device()).dtype(at::kFloat));
}

TEST(NeuronDevice, EightRanksReduceOnTheirDevices) {
  run_ranks(neuron_world(8), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(8));
    Tensors tensors{filled(context, {4, 6}, context.rank()).t(), filled(context, {0, 3}, 0)};
    group->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].device(), context.device());
    EXPECT_TRUE(at::equal(tensors[0].cpu(), at::full({6, 4}, 28.0F)));
    EXPECT_EQ(tensors[1].numel(), 0);
  });
}

TEST(NeuronDevice, ARankPastASignedByteHasItsPlaceInTheProcessAsIndex) {
  const trellis_device_plugin_t& plugin = neuron_world(1).plugin->api();
  const auto configure = [&](const std::string& options) {
    int code = 0;
    const std::string whole = R"({"schema":"trellis.device_options/1","instance":"trn2.48xlarge",)";
    return plugin.configure((whole + options + "}").c_str()) == 0 ? "" : plugin.last_error(&code);
  };
  ASSERT_EQ(configure(R"("nodes":4,"world_size":200,"first_rank":100,"process_ranks":100)"),
            std::string());
  {
    ASSERT_EQ(plugin.bind_rank(150), 0);
    const at::Tensor here = at::ones({2}, at::TensorOptions(c10::kPrivateUse1));
    EXPECT_EQ(here.device().index(), 50);
    int code = 0;
    EXPECT_NE(plugin.bind_rank(99), 0);
    EXPECT_THAT(plugin.last_error(&code), HasSubstr("configured for 100 ranks from 100 on"));
    ASSERT_EQ(plugin.bind_rank(-1), 0);
  }
  EXPECT_THAT(configure(R"("nodes":4,"world_size":200)"), HasSubstr("start more processes"));
  EXPECT_THAT(configure(R"("world_size":8,"first_rank":4,"process_ranks":8)"),
              HasSubstr("expected ranks of a world of 8, got 8 from 4 on"));
  ASSERT_EQ(configure(R"("world_size":8)"), std::string());
}

TEST(NeuronDevice, ATensorOfAnotherRanksDeviceIsRefusedBeforeAnybodyWaits) {
  run_ranks(neuron_world(2), [](RankContext& context) {
    auto group = context.new_group("dp", {0, 1});
    if (context.rank() == 1) return;
    Tensors foreign{at::ones({2}, at::TensorOptions(c10::Device(c10::kPrivateUse1, 1)))};
    EXPECT_THAT(
        [&] { group->allreduce(foreign); },
        ThrowsMessage<c10::Error>(HasSubstr(
            "all-reduce: rank 0 expected tensors on the CPU or on device index 0, got neuron:1")));
    at::Tensor whole = at::empty({4});
    at::Tensor shard = filled(context, {2}, 1);
    EXPECT_THAT([&] { group->getBackend(c10::kCPU)->_allgather_base(whole, shard); },
                ThrowsMessage<c10::Error>(HasSubstr(
                    "all-gather: expected all tensors on one device, got neuron:0 and cpu")));
  });
}

TEST(NeuronDevice, FunctionalCollectivesFindTheirGroupByName) {
  c10d::set_thread_isolation_mode(true);
  run_ranks(neuron_world(4), [](RankContext& context) {
    const auto wait = c10::Dispatcher::singleton()
                          .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                          .typed<at::Tensor(const at::Tensor&)>();
    const std::string name = "tp";
    const Group group = context.new_group("tp", all_ranks(4));  // the registry does not own it
    c10d::register_process_group(name, group);
    const at::Tensor sum =
        wait.call(c10d::all_reduce(filled(context, {3}, context.rank()), "sum", name));
    EXPECT_EQ(sum.device(), context.device());
    EXPECT_TRUE(at::equal(sum.cpu(), at::full({3}, 6.0F)));
    const at::Tensor gathered =
        wait.call(c10d::all_gather_into_tensor(filled(context, {1}, context.rank()), 4, name));
    EXPECT_TRUE(at::equal(gathered.cpu(), at::arange(4, at::kFloat)));
    c10d::unregister_process_group(name);
  });
  c10d::set_thread_isolation_mode(false);
}

}  // namespace
}  // namespace trellis::runtime::testing
