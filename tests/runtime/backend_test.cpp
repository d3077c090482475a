// The calls of DDP, FSDP and torch.distributed's Python to a backend beyond its collectives.
#include <torch/csrc/distributed/c10d/Functional.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

c10::intrusive_ptr<c10d::Backend> backend_of(const Group& group) {
  return group->getBackend(c10::kCPU);
}

at::Tensor filled(std::int64_t n, int value) { return at::full({n}, value, at::kFloat); }

TEST(Work, FutureHoldsTheResultAndRunsCallbacksOnTheRanksThread) {
  run_ranks(world(4), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(4));
    Tensors tensors{filled(3, context.rank())};
    auto work = group->allreduce(tensors);
    auto mean = work->getFuture()->then(
        [thread = std::this_thread::get_id()](c10::ivalue::Future& future) {
          EXPECT_EQ(std::this_thread::get_id(), thread);
          return c10::IValue(future.value().toTensorVector()[0] / 4);
        },
        c10::TensorType::get());
    EXPECT_TRUE(at::equal(mean->value().toTensor(), at::full({3}, 1.5)));
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    EXPECT_EQ(work->getSequencenumber(), 0);
    EXPECT_EQ(backend_of(group)->getSequenceNumberForGroup(), 1);
  });
}

TEST(Work, AReceiveKnowsItsSource) {
  run_ranks(world(3), [](RankContext& context) {
    if (context.rank() == 0) return;
    auto group = context.new_group("pp", {2, 1});
    Tensors tensors{filled(2, context.rank())};
    if (context.rank() == 1) {
      group->send(tensors, 0, 5)->wait();
    } else {
      auto work = group->recv(tensors, 1, 5);
      work->wait();
      EXPECT_EQ(work->sourceRank(), 1) << "the global rank";
      EXPECT_TRUE(at::equal(tensors[0], filled(2, 1)));
    }
  });
}

TEST(Coalescing, StartsEverythingAndWaitsOnce) {
  run_ranks(world(4), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(4));
    auto backend = backend_of(group);
    ASSERT_TRUE(backend->supportsCoalescing());
    const int next = (context.rank() + 1) % 4;
    const int previous = (context.rank() + 3) % 4;
    Tensors received{filled(2, -1)};
    Tensors sent{filled(2, context.rank())};
    Tensors summed{filled(5, context.rank())};
    backend->startCoalescing();
    backend->recv(received, previous, 0);  // before the send: a wait here would never end
    c10d::AllreduceOptions synchronous;
    synchronous.asyncOp = false;
    backend->allreduce(summed, synchronous);
    backend->send(sent, next, 0);
    auto work = backend->endCoalescing();
    work->wait();
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    EXPECT_TRUE(at::equal(received[0], filled(2, previous)));
    EXPECT_TRUE(at::equal(summed[0], filled(5, 6)));
    EXPECT_EQ(work->result().size(), 3);
  });
}

TEST(Coalescing, MustNest) {
  run_ranks(world(1), [](RankContext& context) {
    auto backend = backend_of(context.new_group("dp", {0}));
    EXPECT_THAT([&] { backend->endCoalescing(); },
                ThrowsMessage<c10::Error>(HasSubstr("without startCoalescing")));
    backend->startCoalescing();
    EXPECT_THAT([&] { backend->startCoalescing(); },
                ThrowsMessage<c10::Error>(HasSubstr("the one before has not ended")));
    EXPECT_TRUE(backend->endCoalescing()->wait());
  });
}

TEST(Backend, TimeoutOfAGroupHoldsForItsCommunications) {
  const auto [text, code] = error_of([] {
    WorldOptions options = world(2);
    options.host_threads = 2;
    run_ranks(options, [](RankContext& context) {
      auto backend = backend_of(context.new_group("dp", {0, 1}));
      backend->setTimeout(std::chrono::milliseconds(50));
      EXPECT_EQ(backend->getBackendOptions()->timeout.count(), 50);
      if (context.rank() == 0) return backend->monitoredBarrier({}, true);
      while (!context.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(backend->getError(), c10d::ErrorType::REMOTE_ERROR);
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(text, AllOf(HasSubstr("waited 0.0"), HasSubstr("missing: rank 1")));
}

TEST(Backend, IsOfNoUseAfterShutdown) {
  run_ranks(world(1), [](RankContext& context) {
    auto backend = backend_of(context.new_group("dp", {0}));
    Tensors tensors{filled(2, 1)};
    backend->allreduce(tensors)->wait();
    EXPECT_EQ(backend->getError(), c10d::ErrorType::SUCCESS);
    backend->shutdown();
    EXPECT_THAT([&] { backend->allreduce(tensors); },
                ThrowsMessage<c10::Error>(
                    HasSubstr("all-reduce of rank 0 in dp [0] after the group was shut down")));
  });
}

TEST(Backend, IsOfNoUseAfterTheWorldEnded) {
  Group group;
  run_ranks(world(1), [&](RankContext& context) { group = context.new_group("dp", {0}); });
  Tensors tensors{filled(2, 1)};
  EXPECT_THAT(
      [&] { group->allreduce(tensors); },
      ThrowsMessage<c10::Error>(HasSubstr("a communication of rank 0 after the rank has ended")));
}

/// Each rank's own registry holds its group under a name that all ranks share.
class Functional : public ::testing::Test {
 protected:
  void SetUp() override { c10d::set_thread_isolation_mode(true); }
  void TearDown() override { c10d::set_thread_isolation_mode(false); }
  static void run(const std::function<void(int rank)>& body) {
    run_ranks(world(4), [&](RankContext& context) {
      const Group group = context.new_group("dp", all_ranks(4));  // the registry does not own it
      c10d::register_process_group("shared name", group);
      body(context.rank());
      c10d::unregister_process_group("shared name");
    });
  }
  static at::Tensor waited(const at::Tensor& tensor) {
    static const auto wait = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                                 .typed<at::Tensor(const at::Tensor&)>();
    return wait.call(tensor);
  }
};

TEST_F(Functional, CollectivesFindTheirGroupByName) {
  run([](int rank) {
    const std::string group = "shared name";
    EXPECT_TRUE(at::equal(waited(c10d::all_reduce(filled(3, rank), "sum", group)), filled(3, 6)));
    const at::Tensor gathered = waited(c10d::all_gather_into_tensor(filled(1, rank), 4, group));
    EXPECT_TRUE(at::equal(gathered, at::arange(4, at::kFloat)));
    EXPECT_TRUE(
        at::equal(waited(c10d::reduce_scatter_tensor(at::arange(4, at::kFloat), "avg", 4, group)),
                  filled(1, rank)));
    EXPECT_TRUE(at::equal(waited(c10d::broadcast(filled(2, rank), 2, group)), filled(2, 2)));
    const std::vector<c10::SymInt> even(4, 1);
    EXPECT_TRUE(at::equal(
        waited(c10d::all_to_all_single(at::arange(4, at::kFloat) + 10 * rank, even, even, group)),
        at::arange(4, at::kFloat) * 10 + rank));
  });
}

TEST_F(Functional, SeveralMayBeUnderWay) {
  run([](int rank) {
    Tensors results;
    for (int i = 0; i < 8; ++i)
      results.push_back(c10d::all_reduce(filled(3, rank + i), "max", std::string("shared name")));
    for (int i = 7; i >= 0; --i)
      EXPECT_TRUE(at::equal(waited(results[static_cast<std::size_t>(i)]), filled(3, 3 + i)));
  });
}

TEST_F(Functional, CoalescedForms) {
  run([](int rank) {
    const std::string group = "shared name";
    const auto gathered =
        c10d::all_gather_into_tensor_coalesced({filled(1, rank), filled(2, rank)}, 4, group);
    EXPECT_TRUE(at::equal(waited(gathered[0]), at::arange(4, at::kFloat)));
    EXPECT_TRUE(at::equal(waited(gathered[1]), at::arange(4, at::kFloat).repeat_interleave(2)));
    const auto summed = c10d::all_reduce_coalesced({filled(1, rank), filled(2, 1)}, "sum", group);
    EXPECT_TRUE(at::equal(waited(summed[0]), filled(1, 6)));
    EXPECT_TRUE(at::equal(waited(summed[1]), filled(2, 4)));
  });
}

}  // namespace
}  // namespace trellis::runtime::testing
