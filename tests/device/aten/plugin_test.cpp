#include "device/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

/// The plugin as a program meets it: loaded at run time into a process that links LibTorch and
/// nothing of the device.
namespace {

const trellis_device_plugin_t& plugin() {
  static const trellis_device_plugin_t* const api = [] {
    void* const library =
        dlopen(TRELLIS_BUILD_DIR "/lib/libtrellis_neuron.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get =
        reinterpret_cast<trellis_device_plugin_fn>(dlsym(library, "trellis_device_plugin"));
    if (get == nullptr) throw std::runtime_error(dlerror());
    return get(TRELLIS_PLUGIN_ABI_VERSION, TORCH_VERSION);
  }();
  return *api;
}

std::string last_error(int* code = nullptr) { return plugin().last_error(code); }

c10::Device neuron(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

void configure(int world_size, bool shape_only) {
  const std::string options = c10::str(
      R"({"schema": "trellis.device_options/1", "instance": "trn1.32xlarge", )"
      R"("nodes": 1, "world_size": )",
      world_size, R"(, "shape_only": )", shape_only ? "true" : "false", R"(, "record": true})");
  ASSERT_EQ(plugin().configure(options.c_str()), 0) << last_error();
}

TEST(Plugin, DescribesItself) {
  EXPECT_EQ(plugin().abi_version, static_cast<std::uint32_t>(TRELLIS_PLUGIN_ABI_VERSION));
  EXPECT_EQ(plugin().struct_size, sizeof(trellis_device_plugin_t));
  EXPECT_STREQ(plugin().device_type, "neuron");
  EXPECT_STREQ(plugin().torch_version, TORCH_VERSION);
}

TEST(Plugin, OptionsAreRead) {
  const auto rejected = [](const char* options, const char* why) {
    EXPECT_NE(plugin().configure(options), 0) << options;
    int code = 0;
    EXPECT_NE(last_error(&code).find(why), std::string::npos) << last_error();
    EXPECT_EQ(code, 2);
  };
  rejected("nonsense", "not JSON");
  rejected("{}", "trellis.device_options/1");
  rejected(R"({"schema": "trellis.device_options/1", "world_sise": 2})", "world_sise");
  rejected(R"({"schema": "trellis.device_options/1", "world_size": "two"})", "world_size");
  rejected(R"({"schema": "trellis.device_options/1", "world_size": 128})",
           "start more processes (torchrun), or fewer ranks");
  rejected(R"({"schema": "trellis.device_options/1", "instance": "trn9.huge"})", "trn9.huge");
}

TEST(Plugin, AProgramThatConfiguresNothingGetsTheDefaultMachine) {
  setenv("TRELLIS_INSTANCE", "trn1.2xlarge", 1);
  EXPECT_EQ(plugin().bind_rank(0), 0) << last_error();
  EXPECT_EQ(at::ones({2}, at::TensorOptions(neuron(1))).sum().item<float>(), 2.0F);
  EXPECT_NE(plugin().bind_rank(2), 0);
  EXPECT_NE(last_error().find("2 ranks"), std::string::npos) << last_error();
}

TEST(Plugin, StepsEndOnThreadsThatOwnARank) {
  configure(2, false);
  EXPECT_NE(plugin().end_step(0), 0);
  EXPECT_NE(last_error().find("bind_rank"), std::string::npos) << last_error();
  const at::Tensor a =
      at::ones({2}, at::TensorOptions(neuron(1)));  // the first thread to use a rank owns it
  EXPECT_EQ(plugin().end_step(0), 0) << last_error();
  std::thread([] { EXPECT_NE(plugin().end_step(0), 0); }).join();
}

TEST(Plugin, IsConfiguredAgainWhenNoTensorIsAlive) {
  configure(2, false);
  at::Tensor a = at::ones({1000}, at::TensorOptions(neuron(1)));
  EXPECT_NE(plugin().configure(R"({"schema": "trellis.device_options/1", "world_size": 1})"), 0);
  EXPECT_NE(last_error().find("neuron:1 holds 4096 B"), std::string::npos) << last_error();
  EXPECT_EQ(a.sum().item<float>(), 1000.0F);
  a.reset();
  configure(1, true);
  EXPECT_THROW(at::ones({2}, at::TensorOptions(neuron(1))), c10::Error);
  configure(2, false);
  EXPECT_EQ(at::ones({2}, at::TensorOptions(neuron(1))).sum().item<float>(), 2.0F);
}

TEST(Plugin, ARankIsFreeForOthersWhenItsThreadEnds) {
  configure(1, false);
  std::thread([] { at::ones({2}, at::TensorOptions(neuron(0))); }).join();
  at::ones({2}, at::TensorOptions(neuron(0)));
  EXPECT_EQ(plugin().end_step(0), 0) << last_error();
  ASSERT_EQ(plugin().bind_rank(-1), 0) << last_error();
  EXPECT_NE(plugin().end_step(0), 0) << "given up";
}

TEST(Plugin, TwoRanksTrainCommunicateAndReport) {
  configure(2, false);
  const auto body = [](int rank) {
    ASSERT_EQ(plugin().bind_rank(rank), 0) << last_error();
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const at::Tensor w = at::ones({64, 64}, at::TensorOptions(neuron(rank))).requires_grad_();
    ASSERT_EQ(plugin().set_category(&w, 0), 0) << last_error();
    at::mm(w, w).sum().backward();
    const at::Tensor grad = w.grad();
    const std::int32_t ranks[] = {0, 1};
    void* const tensors[] = {const_cast<at::Tensor*>(&grad)};
    const trellis_comm comm = {TRELLIS_ALL_REDUCE,
                               "dp",
                               ranks,
                               2,
                               0,
                               grad.numel(),
                               static_cast<std::int32_t>(grad.scalar_type()),
                               tensors,
                               1,
                               tensors,
                               1};
    const std::int64_t handle = plugin().comm_start(&comm);
    ASSERT_GE(handle, 0) << last_error();
    ASSERT_EQ(plugin().comm_wait(handle), 0) << last_error();
    EXPECT_FLOAT_EQ(grad.cpu().sum().item<float>(), 64.0F * 64 * 128);
    ASSERT_EQ(plugin().end_step(1), 0) << last_error();
  };
  std::thread first(body, 0), second(body, 1);
  first.join();
  second.join();
  const char* report = nullptr;
  ASSERT_EQ(plugin().simulate_step(1, &report), 0) << last_error();
  EXPECT_NE(std::string(report).find("trellis.step_report/1"), std::string::npos) << report;
  ASSERT_EQ(plugin().memory_report(&report), 0) << last_error();
  EXPECT_NE(std::string(report).find("trellis.memory/1"), std::string::npos) << report;
  ASSERT_EQ(plugin().portability_report(&report), 0) << last_error();
  EXPECT_NE(std::string(report).find("trellis.portability/1"), std::string::npos) << report;
  const std::string trace = ::testing::TempDir() + "trellis_plugin_trace";
  EXPECT_EQ(plugin().write_trace(trace.c_str(), "text"), 0) << last_error();
}

TEST(Plugin, OutOfMemoryKeepsItsExitCodeInTheText) {
  configure(1, true);
  ASSERT_EQ(plugin().bind_rank(0), 0) << last_error();
  try {
    at::empty({std::int64_t{1} << 40}, at::TensorOptions(neuron(0)));
    FAIL() << "1 TiB must not fit";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos) << error.what();
  }
}

}  // namespace
