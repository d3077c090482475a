#include "device/aten/state/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include "device/aten/state/rank_state.h"

namespace trellis::device {
namespace {

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  NeuronGenerator(c10::DeviceIndex index, at::Generator cpu)
      : c10::GeneratorImpl({c10::kPrivateUse1, index},
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(std::move(cpu)) {}

  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { cpu_.set_offset(offset); }
  std::uint64_t get_offset() const override { return cpu_.get_offset(); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    cpu_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }

  at::Generator& cpu() { return cpu_; }

 private:
  NeuronGenerator* clone_impl() const override {
    return new NeuronGenerator(device().index(), cpu_.clone());
  }

  at::Generator cpu_;
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<NeuronGenerator>(index, at::detail::createCPUGenerator());
}

at::Generator cpu_generator(const at::Generator& given, c10::Device device) {
  const at::Generator& generator = given.defined() ? given : rank_state(device.index()).generator();
  TORCH_CHECK(generator.device() == device, "Expected a '", device,
              "' generator device but found '", generator.device(), "'");
  return static_cast<NeuronGenerator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

}  // namespace trellis::device
