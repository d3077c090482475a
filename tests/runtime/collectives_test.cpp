// Every collective against plain ATen arithmetic on the members' inputs, bit for bit.
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using c10d::ReduceOp;

class Collectives : public ::testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  [[nodiscard]] int members() const { return std::get<0>(GetParam()); }
  [[nodiscard]] at::ScalarType dtype() const { return std::get<1>(GetParam()); }
  [[nodiscard]] at::Tensor input(int rank, at::IntArrayRef sizes) const {
    return numbers(rank, sizes, dtype());
  }
  [[nodiscard]] Tensors inputs(at::IntArrayRef sizes) const {
    Tensors result;
    for (int rank = 0; rank < members(); ++rank) result.push_back(input(rank, sizes));
    return result;
  }
  /// Runs `body` on every rank with the group of all ranks.
  void on_all(const std::function<void(RankContext&, Group)>& body) const {
    run_ranks(world(members()), [&](RankContext& context) {
      body(context, context.new_group("tp", all_ranks(members())));
    });
  }
};

TEST_P(Collectives, AllReduceCombinesInMemberOrderAndRoundsEachPartialResult) {
  std::vector<ReduceOp::RedOpType> ops{ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT,
                                       ReduceOp::MIN, ReduceOp::MAX};
  if (at::isIntegralType(input(0, {1}).scalar_type(), true))
    ops.insert(ops.end(), {ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR});
  for (const auto op : ops) {
    const at::Tensor expected = reduced(inputs({7, 11}), op);
    on_all([&](RankContext& context, const Group& group) {
      Tensors tensors{input(context.rank(), {7, 11})};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      EXPECT_TRUE(group->allreduce(tensors, options)->wait());
      EXPECT_TRUE(at::equal(tensors[0], expected))
          << "rank " << context.rank() << ", op " << static_cast<int>(op);
    });
  }
}

TEST_P(Collectives, AllReduceTakesStridedTensorsAndSeveralAtOnce) {
  on_all([&](RankContext& context, const Group& group) {
    at::Tensor strided = input(context.rank(), {6, 10}).t().slice(0, 0, 10, 2);
    ASSERT_FALSE(strided.is_contiguous());
    Tensors tensors{strided, input(context.rank(), {3})};
    group->allreduce_coalesced(tensors)->wait();
    Tensors first;
    Tensors second;
    for (int r = 0; r < members(); ++r) {
      first.push_back(input(r, {6, 10}).t().slice(0, 0, 10, 2));
      second.push_back(input(r, {3}));
    }
    EXPECT_TRUE(at::equal(strided, reduced(first, ReduceOp::SUM)));
    EXPECT_TRUE(at::equal(tensors[1], reduced(second, ReduceOp::SUM)));
  });
}

TEST_P(Collectives, AllGatherFormsAgree) {
  const at::Tensor expected = at::cat(inputs({4, 3}));
  on_all([&](RankContext& context, const Group& group) {
    at::Tensor mine = input(context.rank(), {4, 3});
    at::Tensor whole = at::empty_like(expected);
    group->all_gather_single(whole, mine)->wait();
    EXPECT_TRUE(at::equal(whole, expected));

    std::vector<Tensors> lists(1);
    for (int r = 0; r < members(); ++r) lists[0].push_back(at::empty_like(mine));
    Tensors in{mine};
    group->allgather(lists, in)->wait();
    EXPECT_TRUE(at::equal(at::cat(lists[0]), expected));

    at::Tensor strided = at::empty({3, 4 * members()}, mine.options()).t();
    group->all_gather_single(strided, mine)->wait();
    EXPECT_TRUE(at::equal(strided, expected));
  });
}

TEST_P(Collectives, CoalescedGatherAndScatterKeepTensorsSeparate) {
  on_all([&](RankContext& context, const Group& group) {
    const int n = members();
    Tensors shards{input(context.rank(), {5}), input(context.rank(), {2, 2})};
    Tensors wholes{at::empty({5 * n}, shards[0].options()),
                   at::empty({2 * n, 2}, shards[0].options())};
    group->all_gather_single_coalesced(wholes, shards)->wait();
    EXPECT_TRUE(at::equal(wholes[0], at::cat(inputs({5}))));
    EXPECT_TRUE(at::equal(wholes[1], at::cat(inputs({2, 2}))));

    Tensors full{input(context.rank(), {5 * n}), input(context.rank(), {2 * n, 2})};
    group->reduce_scatter_single_coalesced(shards, full)->wait();
    EXPECT_TRUE(at::equal(shards[0], reduced(inputs({5 * n}), ReduceOp::SUM)
                                         .chunk(n)[static_cast<std::size_t>(context.rank())]));
    EXPECT_TRUE(at::equal(shards[1], reduced(inputs({2 * n, 2}), ReduceOp::SUM)
                                         .chunk(n)[static_cast<std::size_t>(context.rank())]));
  });
}

TEST_P(Collectives, ReduceScatterFormsAgreeWithAllReduce) {
  const at::Tensor sum = reduced(inputs({members() * 4, 3}), ReduceOp::SUM);
  on_all([&](RankContext& context, const Group& group) {
    const at::Tensor expected = sum.slice(0, context.rank() * 4, context.rank() * 4 + 4);
    at::Tensor whole = input(context.rank(), {members() * 4, 3});
    at::Tensor shard = at::empty({4, 3}, whole.options());
    group->reduce_scatter_single(shard, whole)->wait();
    EXPECT_TRUE(at::equal(shard, expected));

    std::vector<Tensors> lists{whole.chunk(members())};
    Tensors out{at::empty({4, 3}, whole.options())};
    group->reduce_scatter(out, lists)->wait();
    EXPECT_TRUE(at::equal(out[0], expected));

    at::Tensor in_place = whole.slice(0, context.rank() * 4, context.rank() * 4 + 4);
    group->reduce_scatter_single(in_place, whole)->wait();
    EXPECT_TRUE(at::equal(in_place, expected));
  });
}

TEST_P(Collectives, BroadcastAndReduceRespectTheRoot) {
  for (int root = 0; root < members(); ++root) {
    on_all([&](RankContext& context, const Group& group) {
      Tensors tensors{input(context.rank(), {9})};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group->broadcast(tensors, options)->wait();
      EXPECT_TRUE(at::equal(tensors[0], input(root, {9})));

      Tensors terms{input(context.rank(), {9})};
      c10d::ReduceOptions reduce;
      reduce.rootRank = root;
      group->reduce(terms, reduce)->wait();
      const at::Tensor expected =
          context.rank() == root ? reduced(inputs({9}), ReduceOp::SUM) : input(context.rank(), {9});
      EXPECT_TRUE(at::equal(terms[0], expected)) << "root " << root << ", rank " << context.rank();
    });
  }
}

TEST_P(Collectives, GatherAndScatterAreInverse) {
  const int root = members() - 1;
  on_all([&](RankContext& context, const Group& group) {
    const bool is_root = context.rank() == root;
    Tensors mine{input(context.rank(), {6})};
    std::vector<Tensors> gathered;
    if (is_root) gathered.push_back(Tensors{});
    for (int r = 0; is_root && r < members(); ++r)
      gathered[0].push_back(at::empty({6}, mine[0].options()));
    c10d::GatherOptions gather;
    gather.rootRank = root;
    group->gather(gathered, mine, gather)->wait();
    if (is_root) {
      EXPECT_TRUE(at::equal(at::cat(gathered[0]), at::cat(inputs({6}))));
    }

    Tensors back{at::empty({6}, mine[0].options())};
    c10d::ScatterOptions scatter;
    scatter.rootRank = root;
    group->scatter(back, gathered, scatter)->wait();
    EXPECT_TRUE(at::equal(back[0], mine[0]));
  });
}

TEST_P(Collectives, AllToAllTransposesEvenAndUnevenBlocks) {
  const int n = members();
  const auto rows = [](int from, int to) { return (from * 3 + to * 5) % 4; };  // some are 0
  on_all([&](RankContext& context, const Group& group) {
    const int me = context.rank();
    at::Tensor even_in = input(me, {2 * n, 3});
    at::Tensor even_out = at::empty_like(even_in);
    std::vector<std::int64_t> none;
    group->all_to_all_single(even_out, even_in, none, none)->wait();
    for (int r = 0; r < n; ++r) {
      EXPECT_TRUE(at::equal(even_out.slice(0, 2 * r, 2 * r + 2),
                            input(r, {2 * n, 3}).slice(0, 2 * me, 2 * me + 2)));
    }

    const auto block = [&](int from, int to) {
      return at::full({rows(from, to), 2}, from * 10 + to, even_in.options());
    };
    Tensors out;
    Tensors in;
    std::vector<std::int64_t> in_splits;
    std::vector<std::int64_t> out_splits;
    for (int r = 0; r < n; ++r) {
      in.push_back(block(me, r));
      out.push_back(at::empty({rows(r, me), 2}, even_in.options()));
      in_splits.push_back(rows(me, r));
      out_splits.push_back(rows(r, me));
    }
    at::Tensor base_in = at::cat(in);
    at::Tensor base_out = at::empty_like(at::cat(out));
    group->all_to_all_single(base_out, base_in, out_splits, in_splits)->wait();
    group->alltoall(out, in)->wait();
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(at::equal(out[static_cast<std::size_t>(r)], block(r, me)));
    EXPECT_TRUE(at::equal(base_out, at::cat(out)));
  });
}

TEST_P(Collectives, SendAndReceiveKeepOrderPerPair) {
  const int n = members();
  on_all([&](RankContext& context, const Group& group) {
    const int next = (context.rank() + 1) % n;
    const int previous = (context.rank() + n - 1) % n;
    for (int i = 0; i < 3; ++i) {
      Tensors out{input(context.rank() + 100 * i, {5, 2}).t()};
      group->send(out, next, i)->wait();
      out[0].zero_();  // the message is a copy
    }
    for (int i = 0; i < 3; ++i) {
      Tensors in{at::empty({2, 5}, at::dtype(dtype()))};
      group->recv(in, previous, i)->wait();
      EXPECT_TRUE(at::equal(in[0], input(previous + 100 * i, {5, 2}).t()));
    }
    group->barrier()->wait();
  });
}

TEST_P(Collectives, ReceiveMayBePostedFirst) {
  if (members() < 2) return;
  on_all([&](RankContext& context, const Group& group) {
    if (context.rank() == 0) {
      Tensors in{at::empty({4}, at::dtype(dtype()))};
      auto work = group->recv(in, 1, 0);
      Tensors token{at::zeros({1})};
      group->send(token, 1, 7)->wait();
      work->wait();
      EXPECT_TRUE(at::equal(in[0], input(1, {4})));
    } else if (context.rank() == 1) {
      Tensors token{at::zeros({1})};
      group->recv(token, 0, 7)->wait();
      Tensors out{input(1, {4})};
      group->send(out, 0, 0)->wait();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, Collectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5, 8),
                                            ::testing::Values(at::kDouble, at::kFloat,
                                                              at::kBFloat16, at::kHalf, at::kLong)),
                         [](const auto& param) {
                           return std::to_string(std::get<0>(param.param)) + "_" +
                                  c10::toString(std::get<1>(param.param));
                         });

TEST(CollectiveSizes, EmptyAndIndivisibleBuffersWork) {
  for (std::int64_t elements : {0, 1, 3, 7, 1000003}) {
    run_ranks(world(8), [&](RankContext& context) {
      auto group = context.new_group("dp", all_ranks(8));
      Tensors tensors{at::full({elements}, context.rank() + 1.0)};
      group->allreduce(tensors)->wait();
      EXPECT_TRUE(at::equal(tensors[0], at::full({elements}, 36.0)));
    });
  }
}

TEST(Work, OffersTheWholeInterface) {
  run_ranks(world(2), [&](RankContext& context) {
    auto group = context.new_group("dp", {0, 1});
    Tensors tensors{at::ones({3})};
    auto work = group->allreduce(tensors);
    const auto future = work->getFuture();
    EXPECT_TRUE(future->completed());
    EXPECT_TRUE(at::equal(future->value().toTensorVector()[0], at::full({3}, 2.0)));
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(work->exception(), nullptr);
    EXPECT_TRUE(work->result()[0].is_same(tensors[0]));
    EXPECT_EQ(group->getBackend(c10d::ProcessGroup::BackendType::CUSTOM)->getBackendName(),
              "neuron");
    EXPECT_EQ(group->getGroupName(), "dp [0, 1] #0");
  });
}

}  // namespace
}  // namespace trellis::runtime::testing
