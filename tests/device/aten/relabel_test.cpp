#include <thread>

#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/COW.h>
#include <gmock/gmock.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>

#include "base/error.h"
#include "device/aten/state/storage.h"
#include "tests/device/aten/neuron_fixture.h"

/// Identity, memory and errors: what a tensor on the device is, beyond its values.
namespace trellis::device::testing {
namespace {

using at::Tensor;

class RelabelTest : public NeuronTest {
 protected:
  static at::TensorOptions on(int device) {
    return at::TensorOptions(at::kFloat).device(neuron(device));
  }
  template <typename Body>
  static std::string error_of(Body body) {
    try {
      body();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(RelabelTest, InPlaceAndOutReturnTheCallersTensor) {
  Tensor a = at::ones({2, 2}, on(0)), o = at::empty({0}, on(0));
  EXPECT_TRUE(a.add_(1).is_same(a));
  EXPECT_TRUE(at::mm_out(o, a, a).is_same(o));
  EXPECT_EQ(o.sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_EQ(o.storage().nbytes(), 16u);
}

TEST_F(RelabelTest, ViewsShareTheBuffer) {
  const Tensor a = at::zeros({4, 6}, on(0));
  const Tensor v = a.t().select(0, 1);
  EXPECT_TRUE(a.is_alias_of(v));
  EXPECT_EQ(storage_of(a).buffer(), storage_of(v).buffer());
  v.fill_(3);
  EXPECT_EQ(a.sum().item<float>(), 12);
  EXPECT_FALSE(a.is_alias_of(a.clone()));
}

TEST_F(RelabelTest, AliasesOfOneTensorFollowItsLayout) {
  Tensor a = at::arange(6, on(0)).to(at::kFloat);
  EXPECT_EQ(a.sum().item<float>(), 15);  // the alias that this made is offered again
  a.resize_({2, 3});
  EXPECT_TRUE(at::equal(a.t().sum(0).cpu(), at::tensor({3.f, 12.f})));
  EXPECT_TRUE(at::equal(at::cat({a, a}).cpu(), at::cat({a.cpu(), a.cpu()})))
      << "one tensor twice in a list";
  EXPECT_EQ(a.view(at::kInt).sum().item<std::int64_t>(),
            a.cpu().view(at::kInt).sum().item<std::int64_t>());
  a.set_(at::ones({2}, on(0)));
  EXPECT_EQ(a.sum().item<float>(), 2);
}

TEST_F(RelabelTest, SetOfAStorageKeepsStridesOfEqualSizesAndTheStorage) {
  const auto after_set = [](const at::TensorOptions& options) {
    Tensor stepped = at::zeros({5}, options).slice(0, 0, 5, 2);
    const Tensor source = at::ones({3}, options);
    stepped.set_(source.storage());
    return std::make_tuple(stepped.strides().vec(), stepped.storage_offset(),
                           source.storage().nbytes());
  };
  EXPECT_EQ(after_set(on(0)), after_set(at::kFloat));
}

TEST_F(RelabelTest, OperatorsOnListsCountVersions) {
  const Tensor saved = at::ones({3}, on(0)), weight = at::ones({3}, on(0)).requires_grad_();
  const Tensor product = (weight * saved).sum();
  const auto version = saved._version();
  at::_foreach_add_(at::TensorList(saved), 1);
  EXPECT_EQ(saved._version(), version + 1);
  EXPECT_THAT(error_of([&] { product.backward(); }),
              ::testing::HasSubstr("modified by an inplace operation"));
}

TEST_F(RelabelTest, LazyConjugatesAndNegativesSurviveCopiesAndKernels) {
  const Tensor host = at::complex(at::randn({3, 2}), at::randn({3, 2})), there = host.to(neuron(0));
  EXPECT_TRUE(at::equal(there.conj().cpu().resolve_conj(), host.conj().resolve_conj()));
  EXPECT_TRUE(at::equal(host.conj().to(neuron(0)).cpu(), host.conj().resolve_conj()));
  EXPECT_TRUE(
      at::equal(at::imag(there.conj()).cpu().resolve_neg(), at::imag(host.conj()).resolve_neg()));
  EXPECT_TRUE(at::equal(at::mm(there.conj(), there.t()).cpu(), at::mm(host.conj(), host.t())));
  EXPECT_EQ(there.conj()[1][1].item<c10::complex<float>>(),
            host.conj()[1][1].item<c10::complex<float>>());
}

TEST_F(RelabelTest, AKernelThatThrowsHasResizedItsOutput) {
  const Tensor a = at::ones({3, 3}, on(0));
  Tensor out = at::empty({0}, on(0).dtype(at::kLong));
  EXPECT_THROW(at::linalg_solve_triangular_out(out, a, a, true), c10::Error);
  Tensor on_cpu = at::empty({0}, at::kLong);
  EXPECT_THROW(at::linalg_solve_triangular_out(on_cpu, a.cpu(), a.cpu(), true), c10::Error);
  EXPECT_EQ(out.sizes(), on_cpu.sizes());
}

TEST_F(RelabelTest, AStorageThatLibTorchMadeWorksLikeOurs) {
  std::vector<float> bytes = {1, 2, 3, 4};
  const Tensor a = at::from_blob(bytes.data(), {4}, {1}, [](void*) {}, on(0), neuron(0));
  EXPECT_EQ((a + a).sum().item<float>(), 20);
  a.mul_(2);
  EXPECT_EQ(bytes[3], 8);
  EXPECT_EQ(a.cpu().sum().item<float>(), 20);
}

TEST_F(RelabelTest, DeterministicModeFillsFreshMemory) {
  struct Mode {
    Mode() { at::globalContext().setDeterministicAlgorithms(true, false); }
    ~Mode() { at::globalContext().setDeterministicAlgorithms(false, false); }
  };
  std::optional<Mode> mode(std::in_place);
  const Tensor fresh = at::empty({4}, on(0)),
               whole = at::empty_strided({2}, {2}, on(0).dtype(at::kInt));
  Tensor grown = at::zeros({1}, on(0));
  grown.resize_({5});
  mode.reset();
  EXPECT_TRUE(fresh.isnan().all().item<bool>());
  EXPECT_TRUE(whole.eq(std::numeric_limits<int>::max()).all().item<bool>());
  EXPECT_TRUE(grown.slice(0, 1).isnan().all().item<bool>());
  EXPECT_EQ(grown[0].item<float>(), 0);
}

TEST_F(RelabelTest, ResultsAreOrdinaryTensorsForAutograd) {
  Tensor a = at::ones({2}, on(0));
  const Tensor b = a * 2;
  EXPECT_FALSE(b.is_inference());
  b.requires_grad_();
  (b * b).sum().backward();
  EXPECT_EQ(b.grad().cpu().sum().item<float>(), 8);
}

TEST_F(RelabelTest, OverlapIsCheckedAsOnTheCpu) {
  const std::string cpu = error_of([] { at::ones({1}).expand({4}).add_(1); });
  EXPECT_EQ(error_of([] { at::ones({1}, on(0)).expand({4}).add_(1); }), cpu);
  const std::string partial = error_of([] {
    Tensor a = at::ones({4});
    Tensor to = a.slice(0, 0, 3);
    at::neg_out(to, a.slice(0, 1, 4));
  });
  EXPECT_EQ(error_of([] {
              Tensor a = at::ones({4}, on(0));
              Tensor to = a.slice(0, 0, 3);
              at::neg_out(to, a.slice(0, 1, 4));
            }),
            partial);
}

TEST_F(RelabelTest, DevicesDoNotMix) {
  const Tensor a = at::ones({3}, on(0)), host = at::ones({3}), other = at::ones({3}, on(1));
  const std::string mixed =
      "Expected all tensors to be on the same device, but found at least two devices, neuron:0 and "
      "cpu!";
  EXPECT_NE(error_of([&] { a.add(host); }).find(mixed), std::string::npos)
      << error_of([&] { a.add(host); });
  EXPECT_NE(error_of([&] { at::cat({a, host}); }).find(mixed), std::string::npos);
  EXPECT_NE(error_of([&] { a.mul(other); }).find("neuron:0 and neuron:1!"), std::string::npos);
  EXPECT_NE(error_of([&] {
              at::embedding(at::ones({3, 2}, on(0)), at::zeros({2}, at::kLong));
            }).find(mixed),
            std::string::npos);
  EXPECT_EQ(a.add(at::scalar_tensor(2)).cpu().sum().item<float>(), 9);
}

TEST_F(RelabelTest, LazyClonesStayLazyUntilTheyAreWritten) {
  for (const std::int64_t size : {0, 3}) {
    const Tensor a = at::ones({size}, on(0)), clone = at::_lazy_clone(a);
    const auto lazy = [&] { return c10::impl::cow::is_cow_data_ptr(clone.storage().data_ptr()); };
    EXPECT_EQ(clone.sub(1).numel(), size);
    EXPECT_TRUE(lazy()) << size;
    clone.fill_(2);
    EXPECT_FALSE(lazy()) << size;
    EXPECT_EQ(a.sum().item<float>(), static_cast<float>(size));
  }
}

TEST_F(RelabelTest, RunningStatisticsOfABatchNormAreWritten) {
  const Tensor mean = at::zeros({2}, on(0)), variance = at::ones({2}, on(0));
  const Tensor mine = at::_lazy_clone(mean);  // the schema does not say that it is written
  at::native_batch_norm(at::ones({3, 2}, on(0)), {}, {}, mine, variance, true, 0.5, 1e-5);
  EXPECT_EQ(mine.sum().item<float>(), 1);
  EXPECT_EQ(mean.sum().item<float>(), 0);
}

TEST_F(RelabelTest, TensorsThatAreZeroWithoutBytesTakePart) {
  const Tensor zero = at::_efficientzerotensor({3}, on(0)), a = at::ones({3}, on(0));
  EXPECT_EQ(at::dot(zero, a).item<float>(), 0);
  EXPECT_EQ(at::vdot(a, zero).item<float>(), 0);
  EXPECT_EQ(a.add(zero).sum().item<float>(), 3);
}

TEST_F(RelabelTest, IndicesMayLieOnTheCpu) {
  const Tensor a = at::zeros({3}, on(0)), index = at::ones({1}, at::kLong);
  EXPECT_EQ(a.index_fill(0, index, 5).cpu().sum().item<float>(), 5);
  EXPECT_EQ(a.index({index}).numel(), 1);
  const std::vector<Tensor> list = {at::ones({2}, on(0))};
  at::_foreach_addcdiv_(list, list, list, at::full({1}, 4.f));  // so do the scalars of a list
  EXPECT_EQ(list[0].sum().item<float>(), 10);
  const std::string wrong = "indices should be either on cpu or on the same device as the indexed ";
  EXPECT_EQ(error_of([&] { at::zeros({3}).index({index.to(neuron(0))}); }), wrong + "tensor (cpu)");
  EXPECT_EQ(error_of([&] { a.index({index.to(neuron(1))}); }), wrong + "tensor (neuron:0)");
}

TEST_F(RelabelTest, HalfPrecisionComplexNumbersWarnAsOnTheCpu) {
  struct Heard : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text = warning.msg(); }
    std::string text;
  } heard;
  const c10::WarningUtils::WarningHandlerGuard guard(&heard);
  const c10::WarningUtils::WarnAlways always(true);
  at::empty({1}, on(0).dtype(at::kComplexHalf));
  EXPECT_NE(heard.text.find("ComplexHalf support is experimental"), std::string::npos);
}

TEST_F(RelabelTest, ErrorsOfTheCpuKernelsPassUnchanged) {
  EXPECT_EQ(error_of([] { at::ones({2, 3}, on(0)).mm(at::ones({2, 3}, on(0))); }),
            error_of([] { at::ones({2, 3}).mm(at::ones({2, 3})); }));
  EXPECT_NE(error_of([] {
              at::ones({2}, at::TensorOptions(c10::Device(c10::kPrivateUse1, 99)));
            }).find("invalid device index 99"),
            std::string::npos);
}

TEST_F(RelabelTest, ModulesMoveToTheDevice) {
  torch::nn::Linear layer(3, 2);
  const Tensor before = layer->weight.detach().clone();
  layer->to(neuron(0));
  EXPECT_EQ(layer->weight.device(), neuron(0));
  expect_same_bits(before, layer->weight.detach(), "weight");
}

TEST_F(RelabelTest, GeneratorsDrawTheCpusNumbers) {
  const auto on_both = [](at::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    generator.set_current_seed(42);
    const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
    Tensor a = at::randn({5}, options);
    Tensor b = at::empty({7}, options).uniform_(-1, 1), c = at::empty({7}, options).bernoulli_(0.5);
    Tensor d = at::randperm(9, options.dtype(at::kLong)),
           e = at::randint(0, 100, {6}, options.dtype(at::kLong));
    auto [f, mask] = at::native_dropout(at::ones({64}, options), 0.3, true);
    return std::vector<Tensor>{
        a, b, c, d, e, f, mask, at::rand({3}, options), at::multinomial(at::ones({5}, options), 3)};
  };
  const auto expected = on_both(at::kCPU), got = on_both(neuron(0));
  for (std::size_t i = 0; i < expected.size(); ++i)
    expect_same_bits(expected[i], got[i], c10::str("draw ", i));
  EXPECT_NE(error_of([] {
              at::randn({2}, at::detail::createCPUGenerator(), on(0));
            }).find("generator device"),
            std::string::npos);
}

TEST_F(RelabelTest, AutocastLowersProducts) {
  const Tensor a = at::ones({2, 2}, on(0));
  at::autocast::set_autocast_dtype(c10::kPrivateUse1, at::kBFloat16);
  at::autocast::set_autocast_enabled(c10::kPrivateUse1, true);
  EXPECT_EQ(a.mm(a).scalar_type(), at::kBFloat16);
  EXPECT_EQ(a.to(at::kBFloat16).softmax(0).scalar_type(), at::kFloat);
  at::autocast::set_autocast_enabled(c10::kPrivateUse1, false);
  at::autocast::clear_cache();
  EXPECT_EQ(a.mm(a).scalar_type(), at::kFloat);
}

TEST_F(RelabelTest, StreamsEventsAndAcceleratorAnswers) {
  EXPECT_EQ(at::getAccelerator(), c10::kPrivateUse1);
  EXPECT_EQ(at::globalContext().getAcceleratorHooksInterface().deviceCount(), kShapeOnly + 1);
  c10::Event start(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT),
      end(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  const c10::Stream stream = c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getStream(neuron(0));
  start.record(stream);
  end.record(stream);
  EXPECT_TRUE(start.query() && end.query());
}

// ── memory ──

TEST_F(RelabelTest, MemoryIsChargedWhileATensorLives) {
  MemoryAccount& memory = recorder(0).memory();
  const std::int64_t before = memory.current();
  {
    const Tensor a = at::empty({1000}, on(0));
    EXPECT_EQ(memory.current() - before, size_class(4000));
    const Tensor view = a.slice(0, 1, 3);
    const Tensor b = a + 1;
    EXPECT_EQ(memory.current() - before, 2 * size_class(4000));
    Tensor c = at::empty({0}, on(0));
    at::add_out(c, a, b);
    EXPECT_EQ(memory.current() - before, 3 * size_class(4000));
    c.resize_({5000});
    EXPECT_EQ(memory.current() - before, 2 * size_class(4000) + size_class(20000));
  }
  EXPECT_EQ(memory.current(), before);
}

TEST_F(RelabelTest, TensorsMayDieOnAnotherThread) {
  MemoryAccount& memory = recorder(0).memory();
  const std::int64_t before = memory.current();
  Tensor a = at::empty({1000}, on(0));
  std::thread([moved = std::move(a)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(memory.current(), before);
  Tensor b;
  std::thread([&] { b = at::ones({1000}, on(0)); }).join();  // and be born there
  EXPECT_EQ(memory.current() - before, size_class(4000));
  b.reset();
  EXPECT_EQ(memory.current(), before);
}

}  // namespace
}  // namespace trellis::device::testing
