// Ranks as threads: identity, permits, failure, stop, determinism, autograd.
#include <atomic>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/custom_function.h>

#include "runtime/rendezvous/stop_request.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(World, EveryRankRunsOnceWithItsOwnSettings) {
  std::vector<std::atomic<int>> runs(6);
  run_ranks(world(6), [&](RankContext& context) {
    ++runs[static_cast<std::size_t>(context.rank())];
    EXPECT_EQ(context.world_size(), 6);
    EXPECT_EQ(context.device(), c10::Device(c10::kCPU));
    EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
    EXPECT_EQ(at::get_num_threads(), 1);
  });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

TEST(World, StackHoldsEightMebibytes) {
  run_ranks(world(2), [](RankContext&) {
    volatile char frame[7 * 1024 * 1024];
    frame[0] = 1;
    frame[sizeof frame - 1] = 2;
    EXPECT_EQ(frame[0] + frame[sizeof frame - 1], 3);
  });
}

TEST(World, NoMoreRanksRunThanHostThreads) {
  for (int permits : {1, 2, 3}) {
    WorldOptions options = world(8);
    options.host_threads = permits;
    std::atomic<int> running{0};
    std::atomic<int> most{0};
    run_ranks(options, [&](RankContext& context) {
      auto group = context.new_group("world", all_ranks(8));
      for (int i = 0; i < 5; ++i) {
        const int now = ++running;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {}
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --running;
        group->barrier()->wait();
      }
    });
    EXPECT_LE(most, permits);
    EXPECT_GE(most, 1);
  }
}

TEST(World, WrongOptionsAreTheUsersMistake) {
  WorldOptions none = world(1);
  none.world_size = 0;
  EXPECT_THROW(run_ranks(none, [](RankContext&) {}), ConfigError);
  WorldOptions device = world(1);
  device.device_type = "neuron";
  EXPECT_THAT(error_of([&] { run_ranks(device, [](RankContext&) {}); }).first,
              HasSubstr("no device plugin is loaded"));
}

TEST(World, HostThreadsDoNotChangeABit) {
  const auto run = [](int host_threads) {
    WorldOptions options = world(8);
    options.host_threads = host_threads;
    Results results(8);
    run_ranks(options, [&](RankContext& context) {
      auto all = context.new_group("dp", all_ranks(8));
      auto half = context.new_group(
          "tp", context.rank() < 4 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{4, 5, 6, 7});
      at::Tensor x = numbers(context.rank(), {100003}, at::kFloat);
      for (int i = 0; i < 4; ++i) {
        Tensors tensors{x};
        all->allreduce(tensors)->wait();
        x.mul_(0.3).add_(context.rank());
        half->allreduce(tensors)->wait();
        x.sin_();
      }
      results.put(context.rank(), x);
    });
    return results;
  };
  const Results one = run(1);
  for (int host_threads : {2, 8}) {
    const Results many = run(host_threads);
    for (int rank = 0; rank < 8; ++rank)
      EXPECT_TRUE(at::equal(one[rank], many[rank])) << "rank " << rank;
  }
}

TEST(World, BucketingDoesNotChangeABit) {
  run_ranks(world(5), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(5));
    const at::Tensor x = numbers(context.rank(), {1000}, at::kFloat);
    at::Tensor whole = x.clone();
    Tensors one{whole};
    group->allreduce(one)->wait();
    for (std::int64_t begin = 0; begin < 1000; begin += 37) {
      Tensors bucket{x.slice(0, begin, std::min<std::int64_t>(begin + 37, 1000)).clone()};
      group->allreduce(bucket)->wait();
      EXPECT_TRUE(at::equal(bucket[0], whole.slice(0, begin, begin + bucket[0].numel())));
    }
  });
}

TEST(Failure, TheLowestCauseIsRethrownWithItsTypeAndText) {
  std::atomic<int> woken{0};
  const auto run = [&](const std::function<void()>& fail) {
    run_ranks(world(4), [&](RankContext& context) {
      auto group = context.new_group("world", all_ranks(4));
      if (context.rank() == 2) fail();
      try {
        group->barrier()->wait();
      } catch (...) {
        ++woken;
        throw;
      }
      ADD_FAILURE() << "rank " << context.rank() << " passed a barrier that rank 2 never entered";
    });
  };
  try {
    run([] { throw Error(ExitCode::kDoesNotFit, "rank 2 needs 3 GiB more"); });
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_STREQ(error.what(), "rank 2 needs 3 GiB more");
  }
  EXPECT_EQ(woken, 3);
  EXPECT_THROW(run([] { throw ConfigError("seq_length: expected a number"); }), ConfigError);
  EXPECT_THROW(run([] { TORCH_CHECK(false, "shapes differ"); }), c10::Error);
  EXPECT_THROW(run([] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(Failure, TwoCausesAreReportedByRankNotByTime) {
  const auto [text, code] = error_of([] {
    WorldOptions options = world(4);
    options.host_threads = 4;
    run_ranks(options, [](RankContext& context) {
      if (context.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (context.rank() == 1 || context.rank() == 3)
        throw Error(ExitCode::kParity, "cause of rank " + std::to_string(context.rank()));
      context.host_barrier();
    });
  });
  EXPECT_EQ(text, "cause of rank 1");
}

TEST(Failure, AWorldCanFollowAFailedOne) {
  EXPECT_THROW(run_ranks(world(2), [](RankContext&) { throw Error(ExitCode::kParity, "once"); }),
               Error);
  std::atomic<int> ran{0};
  run_ranks(world(2), [&](RankContext& context) {
    context.host_barrier();
    EXPECT_FALSE(context.stop_requested());
    ++ran;
  });
  EXPECT_EQ(ran, 2);
}

TEST(Stop, EveryRankStopsAtTheSameStep) {
  std::vector<std::int64_t> steps(8, -1);
  run_ranks(world(8), [&](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(8));
    std::int64_t step = 0;
    for (; !context.stop_requested(); ++step) {
      context.begin_step(step);
      if (step == 5 && context.rank() == 3) request_stop();
      Tensors tensors{at::ones({4})};
      group->allreduce(tensors)->wait();
      if (step > 1000) break;
    }
    steps[static_cast<std::size_t>(context.rank())] = step;
  });
  EXPECT_TRUE(stop_requested());
  clear_stop_request();
  EXPECT_FALSE(stop_requested());
  EXPECT_GE(steps[0], 6);
  EXPECT_LE(steps[0], 7);
  for (std::int64_t step : steps) EXPECT_EQ(step, steps[0]);
}

TEST(Agree, EveryRankGetsTheAnswersOfWhoeverAsksFirst) {
  std::vector<std::vector<bool>> got(8);
  run_ranks(world(8), [&](RankContext& context) {
    std::vector<bool>& mine = got[static_cast<std::size_t>(context.rank())];
    for (int i = 0; i < 200; ++i) mine.push_back(context.agree((i * 7 + context.rank()) % 3 == 0));
    context.host_barrier();
    mine.push_back(context.agree(true));
  });
  for (const auto& mine : got) EXPECT_EQ(mine, got[0]);
  EXPECT_TRUE(got[0].back());
}

TEST(Stop, AFailureElsewhereIsSeen) {
  std::atomic<bool> seen{false};
  EXPECT_THROW(run_ranks(world(2),
                         [&](RankContext& context) {
                           if (context.rank() == 1) throw Error(ExitCode::kParity, "x");
                           while (!context.stop_requested()) std::this_thread::yield();
                           seen = true;
                         }),
               Error);
  EXPECT_TRUE(seen);
}

/// Megatron's g: sums over the group in forward, passes gradients through; here backward sums too,
/// to have a collective inside it.
struct SumOverGroup : torch::autograd::Function<SumOverGroup> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Group& group) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    at::Tensor y = x.clone();
    Tensors tensors{y};
    group->allreduce(tensors)->wait();
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    auto holder = context->saved_data["group"].toCapsule();
    auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(holder);
    Tensors tensors{grads[0].clone()};
    group->allreduce(tensors)->wait();
    return {tensors[0], at::Tensor()};
  }
};

TEST(Autograd, CollectivesRunInsideBackward) {
  for (int host_threads : {1, 4}) {
    WorldOptions options = world(4);
    options.host_threads = host_threads;
    run_ranks(options, [](RankContext& context) {
      auto group = context.new_group("tp", all_ranks(4));
      at::Tensor x = at::full({3}, context.rank() + 1.0).requires_grad_();
      // y = Σ_r x_r, loss_r = (r + 1) · Σ y: each x_r receives Σ_r (r + 1) = 10.
      at::Tensor loss = SumOverGroup::apply(x, group).mul(context.rank() + 1.0).sum();
      EXPECT_DOUBLE_EQ(loss.item<double>(), 30.0 * (context.rank() + 1));
      loss.backward();
      EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 10.0))) << x.grad();
    });
  }
}

TEST(Autograd, ErrorsInsideBackwardKeepTheirType) {
  struct Fails : torch::autograd::Function<Fails> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list&) {
      throw Error(ExitCode::kDoesNotFit, "in backward");
    }
  };
  const auto [text, code] = error_of([] {
    run_ranks(world(3), [](RankContext& context) {
      auto group = context.new_group("tp", all_ranks(3));
      at::Tensor x = at::ones({2}).requires_grad_();
      if (context.rank() == 1) Fails::apply(x).sum().backward();
      SumOverGroup::apply(x, group).sum().backward();
    });
  });
  EXPECT_EQ(code, ExitCode::kDoesNotFit);
  EXPECT_EQ(text, "in backward\n  raised by rank 1");
}

TEST(Groups, ManyGroupsCommunicateAtOnce) {
  run_ranks(world(8), [](RankContext& context) {
    const int rank = context.rank();
    auto row = context.new_group(
        "tp", {rank / 4 * 4, rank / 4 * 4 + 1, rank / 4 * 4 + 2, rank / 4 * 4 + 3});
    auto column = context.new_group("dp", {rank % 4, rank % 4 + 4});
    auto reversed = context.new_group("cp", {7, 6, 5, 4, 3, 2, 1, 0});
    for (int i = 0; i < 50; ++i) {
      Tensors a{at::full({8}, rank)};
      Tensors b{at::full({8}, rank)};
      Tensors c{at::full({8}, rank)};
      auto wa = row->allreduce(a);
      auto wb = column->allreduce(b);
      auto wc = reversed->broadcast(c);
      wc->wait();
      wb->wait();
      wa->wait();
      EXPECT_EQ(a[0][0].item<int>(), rank < 4 ? 6 : 22);
      EXPECT_EQ(b[0][0].item<int>(), rank % 4 * 2 + 4);
      EXPECT_EQ(c[0][0].item<int>(), 7);
    }
  });
}

TEST(Groups, EqualGroupsAreDistinctInstances) {
  run_ranks(world(2), [](RankContext& context) {
    auto first = context.new_group("tp", {0, 1});
    auto second = context.new_group("tp", {0, 1});
    EXPECT_NE(first->getGroupName(), second->getGroupName());
    Tensors a{at::full({1}, 1.0)};
    Tensors b{at::full({1}, 10.0)};
    // Each rank starts them in another order: they must not meet each other.
    auto one = context.rank() == 0 ? first->allreduce(a) : second->allreduce(b);
    auto two = context.rank() == 0 ? second->allreduce(b) : first->allreduce(a);
    one->wait();
    two->wait();
    EXPECT_EQ(a[0].item<double>(), 2.0);
    EXPECT_EQ(b[0].item<double>(), 20.0);
  });
}

TEST(Groups, AStrangerCannotMakeAGroup) {
  EXPECT_THROW(run_ranks(world(2),
                         [](RankContext& context) {
                           context.new_group("tp", {context.rank() == 0 ? 1 : 0});
                         }),
               c10::Error);
}

TEST(ShapeOnly, MovesNothingButStillMatches) {
  WorldOptions options = world(4);
  options.shape_only = true;
  const auto without_data = [](std::int64_t n) {
    return at::from_blob(nullptr, {n}, at::dtype(at::kFloat));
  };
  run_ranks(options, [&](RankContext& context) {
    auto group = context.new_group("tp", all_ranks(4));
    at::Tensor shard = without_data(1 << 20);
    at::Tensor whole = without_data(4 << 20);
    Tensors tensors{whole};
    group->allreduce(tensors)->wait();
    group->all_gather_single(whole, shard)->wait();
    group->reduce_scatter_single(shard, whole)->wait();
    Tensors message{shard};
    if (context.rank() == 0) group->send(message, 1, 0)->wait();
    if (context.rank() == 1) group->recv(message, 0, 0)->wait();
    EXPECT_EQ(context.bytes_sent(), 0);
  });
  const auto [text, code] = error_of([&] {
    run_ranks(options, [&](RankContext& context) {
      auto group = context.new_group("tp", all_ranks(4));
      Tensors tensors{without_data(context.rank() == 2 ? 8 : 16)};
      group->allreduce(tensors)->wait();
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(
      text, AllOf(HasSubstr("all-reduce sum of 16 Float"), HasSubstr("all-reduce sum of 8 Float")));
}

}  // namespace
}  // namespace trellis::runtime::testing
