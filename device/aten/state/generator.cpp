#include "device/aten/state/generator.h"

#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

#include "device/aten/state/number_stream.h"

namespace trellis::device {
namespace {

/// Distributed tensors read its two numbers and change the second.
struct State {
  std::uint64_t seed, offset;
};

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  NeuronGenerator(c10::DeviceIndex index, const NumberStream& numbers)
      : c10::GeneratorImpl({c10::kPrivateUse1, index},
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        numbers_(numbers) {}

  void set_current_seed(std::uint64_t seed) override { numbers_.begin(seed); }
  void set_offset(std::uint64_t offset) override { numbers_.go_to(numbers_.seed(), offset); }
  std::uint64_t get_offset() const override { return numbers_.offset(); }
  std::uint64_t current_seed() const override { return numbers_.seed(); }
  std::uint64_t seed() override {
    const std::uint64_t seed = c10::detail::getNonDeterministicRandom();
    numbers_.begin(seed);
    return seed;
  }

  void set_state(const c10::TensorImpl& given) override {
    at::detail::check_rng_state(given);
    if (given.numel() != sizeof(State)) return numbers_.take(given);
    State state;
    std::memcpy(&state, given.data(), sizeof state);
    numbers_.go_to(state.seed, state.offset);
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const State state{numbers_.seed(), numbers_.offset()};
    const at::TensorBase tensor = at::detail::empty_cpu({sizeof state}, at::kByte);
    std::memcpy(tensor.mutable_data_ptr(), &state, sizeof state);
    return tensor.getIntrusivePtr();
  }

  at::Generator& to_draw_from() { return numbers_.to_draw_from(); }

 private:
  NeuronGenerator* clone_impl() const override {
    return new NeuronGenerator(device().index(), numbers_);
  }

  mutable NumberStream numbers_;  // where it is, is found when it is asked
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<NeuronGenerator>(index, NumberStream(at::detail::createCPUGenerator()));
}

at::Generator drawing_generator(const at::Generator& generator) {
  return static_cast<NeuronGenerator*>(generator.unsafeGetGeneratorImpl())->to_draw_from();
}

}  // namespace trellis::device
