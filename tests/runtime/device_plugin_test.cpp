// Loading a plugin (errors say what was expected and got) and what it is notified of
// communications.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "device/plugin.h"
#include "runtime/groups/device_plugin.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string library(const std::string& name) {
  return std::string(TRELLIS_BUILD_DIR) + "/lib/lib" + name + ".so";
}

std::string load_error(const std::string& path) {
  const auto [text, code] = error_of([&] { DevicePlugin::load(path); });
  EXPECT_EQ(code, ExitCode::kConfig);
  EXPECT_THAT(text, HasSubstr("device plugin " + path + ": "));
  return text;
}

TEST(LoadPlugin, MissingFileSaysWhatToDo) {
  EXPECT_THAT(
      load_error("/nowhere/libtrellis_neuron.so"),
      AllOf(HasSubstr("does not exist"), HasSubstr("TRELLIS_DEVICE_PLUGIN, --device-plugin")));
}

TEST(LoadPlugin, FilesThatAreNoLibrariesAreRefused) {
  const std::string path = ::testing::TempDir() + "not_a_library.so";
  std::ofstream(path) << "text";
  EXPECT_THAT(load_error(path), HasSubstr("does not load: "));
}

TEST(LoadPlugin, EveryWayToBeWrongIsNamed) {
  EXPECT_THAT(load_error(library("no_plugin")),
              HasSubstr("expected an exported function trellis_device_plugin, got none"));
  EXPECT_THAT(load_error(library("fake_plugin_null")),
              HasSubstr("cannot serve this host (plugin ABI version " +
                        std::to_string(TRELLIS_PLUGIN_ABI_VERSION) + ", LibTorch 2.13.0"));
}

TEST(LoadPlugin, AbiVersionExpectedAndGot) {
  EXPECT_THAT(
      load_error(library("fake_plugin_abi")),
      HasSubstr("plugin ABI mismatch: expected version " +
                std::to_string(TRELLIS_PLUGIN_ABI_VERSION) + ", got 7: rebuild the plugin"));
}

TEST(LoadPlugin, RecordSizeExpectedAndGot) {
  EXPECT_THAT(load_error(library("fake_plugin_size")),
              HasSubstr("plugin record too small: expected " +
                        std::to_string(sizeof(trellis_device_plugin_t)) + " bytes, got 8"));
}

TEST(LoadPlugin, TorchVersionExpectedAndGot) {
  EXPECT_THAT(
      load_error(library("fake_plugin_torch")),
      AllOf(HasSubstr("LibTorch version mismatch: expected 2.13.0"), HasSubstr("got 2.9.1")));
}

TEST(LoadPlugin, DeviceTypeExpectedAndGot) {
  EXPECT_THAT(load_error(library("fake_plugin_device")),
              HasSubstr("device type mismatch: the plugin serves \"axon\", but the device "
                        "registered with LibTorch is \"neuron\""));
}

TEST(LoadPlugin, RequiredMembersExpectedAndGot) {
  EXPECT_THAT(load_error(library("fake_plugin_members")),
              HasSubstr("required member bind_rank is NULL"));
}

TEST(LoadPlugin, OneProviderPerProcess) {
  const DevicePlugin& plugin = DevicePlugin::load(library("fake_plugin"));
  EXPECT_EQ(&plugin, &DevicePlugin::load(library("fake_plugin")));
  EXPECT_STREQ(plugin.api().provider, "fake");
  EXPECT_THAT(load_error(library("fake_plugin_abi")),
              AllOf(HasSubstr("already holds a device provider"), HasSubstr("libfake_plugin.so")));
}

TEST(LoadPlugin, TheVariableChoosesTheDefault) {
  unsetenv("TRELLIS_DEVICE_PLUGIN");
  const std::string same_folder = std::string(TRELLIS_BUILD_DIR) + "/bin/libtrellis_neuron.so";
  const bool is_built = std::filesystem::exists(library("trellis_neuron"));
  EXPECT_EQ(DevicePlugin::default_path(), is_built ? library("trellis_neuron") : same_folder);
  setenv("TRELLIS_DEVICE_PLUGIN", "/some/where.so", 1);
  EXPECT_EQ(DevicePlugin::default_path(), "/some/where.so");
}

/// A world on the fake device.
class OnDevice : public ::testing::Test {
 protected:
  WorldOptions options(int ranks) const {
    WorldOptions result = world(ranks);
    result.device_type = "neuron";
    result.plugin = &plugin_;
    result.host_threads = 1;  // ranks run in a fixed order: the plugin's notes are comparable
    return result;
  }
  [[nodiscard]] std::string notes() const {
    const char* text = nullptr;
    plugin_.check(plugin_.api().memory_report(&text));
    return text;
  }
  /// A tensor of the rank's device over host memory of `storage`, which must outlive it.
  static at::Tensor on_device(const RankContext& context, at::Tensor& storage) {
    return at::for_blob(storage.data_ptr(), storage.sizes())
        .target_device(context.device())
        .options(storage.options().device(context.device()))
        .make_tensor();
  }

  const DevicePlugin& plugin_ = DevicePlugin::load(library("fake_plugin"));
};

TEST_F(OnDevice, RanksAreBoundAndDevicesSet) {
  run_ranks(options(3), [](RankContext& context) {
    EXPECT_EQ(context.device(),
              c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(context.rank())));
    EXPECT_EQ(c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getDevice(), context.device());
    at::Tensor storage = at::full({5}, context.rank() + 1.0f);
    Tensors tensors{on_device(context, storage)};
    auto group = context.new_group("tp", all_ranks(3));
    group->allreduce(tensors)->wait();
    EXPECT_TRUE(at::equal(storage, at::full({5}, 6.0f)));
  });
}

TEST_F(OnDevice, EveryCommunicationIsAnnouncedByItsGlobalRanksAndWaitedForOnce) {
  run_ranks(options(4), [](RankContext& context) {
    const bool odd = context.rank() % 2 == 1;
    auto group = context.new_group("dp", odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2});
    auto again = context.new_group("dp", odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2});
    if (odd) return;
    at::Tensor a = at::ones({6}, at::kBFloat16);
    at::Tensor b = at::ones({3}, at::kBFloat16);
    at::Tensor whole = on_device(context, a);
    at::Tensor shard = on_device(context, b);
    auto gather = group->all_gather_single(whole, shard);
    gather->wait();
    gather->wait();
    Tensors message{shard};
    if (context.rank() == 0) {
      group->send(message, 1, 0)->wait();
    } else {
      group->recv(message, 0, 0)->wait();
    }
    Tensors on_cpu{at::ones({2})};
    group->allreduce(on_cpu)->wait();  // not the device's business
    Tensors tensors{whole};
    again->allreduce(tensors)->wait();
  });
  const std::string all = notes();
  const auto count = [&](const std::string& what) {
    int n = 0;
    for (auto at = all.find(what); at != std::string::npos; at = all.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("rank 0 start kind 1 dp [0,2,] #0 elements 6 type 15 in 3, out 6, -> "), 1)
      << all;
  EXPECT_EQ(count("rank 2 start kind 1 dp [0,2,] #0 elements 6 type 15 in 3, out 6, -> "), 1);
  EXPECT_EQ(count("rank 0 start kind 5 dp [0,2,] #0 elements 3 type 15 in 3, out  -> "), 1);
  EXPECT_EQ(count("rank 2 start kind 5 dp [0,2,] #0 elements 3 type 15 in  out 3, -> "), 1);
  EXPECT_EQ(count("start kind 0 dp [0,2,] #4294967296 elements 6 type 15 in 6, out 6, -> "), 2)
      << "the second group counts in its own range";
  EXPECT_EQ(count("start"), 6);
  EXPECT_EQ(count("wait"), 6);
}

TEST_F(OnDevice, APluginsFailureKeepsItsTextAndCode) {
  setenv("FAKE_REFUSE_RANK", "1", 1);
  const auto [text, code] = error_of(
      [&] { run_ranks(options(2), [](RankContext& context) { context.host_barrier(); }); });
  EXPECT_EQ(text, "the fake device has no core for rank 1");
  EXPECT_EQ(code, ExitCode::kDoesNotFit);
}

TEST_F(OnDevice, AnotherDeviceTypeIsRefused) {
  WorldOptions wrong = options(1);
  wrong.device_type = "cuda";
  EXPECT_THAT(error_of([&] { run_ranks(wrong, [](RankContext&) {}); }).first,
              HasSubstr("device cuda: the loaded plugin serves \"neuron\""));
  EXPECT_THAT(error_of([&] { run_ranks(options(128), [](RankContext&) {}); }).first,
              HasSubstr("at most 127 ranks"));
}

}  // namespace
}  // namespace trellis::runtime::testing
