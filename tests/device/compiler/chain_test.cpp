#include <cmath>

#include "tests/device/compiler/graph_fixture.h"
#include "tests/device/compiler/numbers.h"

namespace trellis::device::testing {
namespace {

TEST(Chain, OddFlatSizes) {
  for (std::int64_t n : {1, 7, 128, 1000, 4097, 300000}) {
    GraphFixture g;
    const auto a = g.input({n}), b = g.input({n}), c = g.temporary({n}), d = g.output({n});
    g.node("mul.Tensor", {a, b}, {c});
    g.node("add.Tensor", {c, a}, {d}, "alpha=2");
    const Values va = g.random(a), vb = g.random(b);
    g.run();
    EXPECT_EQ(g.compiled().program.kernels.size(), 1u);
    g.expect(d, [&](std::int64_t i) { return va[i] * vb[i] + 2 * va[i]; });
  }
}

TEST(Chain, InPlaceAndScalars) {
  GraphFixture g;
  const auto a = g.input({40, 50});
  g.node("mul_.Scalar", {a}, {a}, "other=0.5");
  g.node("add_.Scalar", {a}, {a}, "other=3 alpha=2");
  g.node("rsub.Scalar", {a}, {a}, "other=1 alpha=1");
  const Values va = g.random(a);
  g.run();
  g.expect(a, [&](std::int64_t i) { return 1 - (va[i] * 0.5 + 6); });
}

TEST(Chain, HostNumbers) {
  GraphFixture g;
  const auto a = g.input({40, 50});
  g.node("mul.out", {a}, {a}, "self=0.5");
  g.node("div.out", {a}, {a}, "other=4");
  const Values va = g.random(a);
  g.run();
  g.expect(a, [&](std::int64_t i) { return va[i] * 0.125; });
}

TEST(Chain, BroadcastRowsAndColumns) {
  GraphFixture g;
  const auto x = g.input({300, 200}), w = g.input({200}), s = g.input({300, 1}), k = g.input({}),
             t = g.temporary({300, 200}), u = g.temporary({300, 200}), y = g.output({300, 200});
  g.node("mul.Tensor", {x, w}, {t});
  g.node("div.Tensor", {s, t}, {u});
  g.node("sub.Tensor", {k, u}, {y}, "alpha=1");
  const Values vx = g.random(x, 1, 2), vw = g.random(w, 1, 3), vs = g.random(s), vk = g.random(k);
  g.run();
  g.expect(y, [&](std::int64_t i) { return vk[0] - vs[i / 200] / (vx[i] * vw[i % 200]); });
}

/// Halves of heads of many sequences (rotary embedding): what lies next to each other is as much as
/// fits, not one half at a time.
TEST(Chain, AWideMiddleDimensionIsCut) {
  GraphFixture g;
  const std::uint32_t whole = g.input({130, 120, 64}), table = g.input({130, 32}),
                      result = g.output({130, 120, 32});
  const auto in_x = g.random(whole), in_t = g.random(table);
  g.node("mul.Tensor",
         {g.view(whole, {130, 120, 32}, {120 * 64, 64, 1}, 32),
          g.view(table, {130, 120, 32}, {32, 0, 1})},
         {result});
  g.run();
  g.expect(result, [&](std::int64_t i) {
    const std::int64_t row = i / (120 * 32), head = i / 32 % 120, column = i % 32;
    return in_x[static_cast<std::size_t>((row * 120 + head) * 64 + 32 + column)] *
           in_t[static_cast<std::size_t>(row * 32 + column)];
  });
  std::int64_t products = 0;
  for (const auto& segment : g.compiled().program.segments) {
    for (const auto& queue : segment.queues) {
      for (const auto& i : queue)
        products = std::max<std::int64_t>(products, i.opcode == sim::isa::Opcode::kTensorTensor
                                                        ? i.dst.elements_per_partition()
                                                        : 0);
    }
  }
  EXPECT_GE(products, 512) << "not one half of a head at a time";
}

TEST(Chain, RmsNormAsOneKernel) {
  GraphFixture g;
  const std::int64_t rows = 200, cols = 96;
  const auto x = g.input({2, 100, cols}, kB), xf = g.temporary({2, 100, cols}),
             sq = g.temporary({2, 100, cols}), m = g.temporary({2, 100, 1}),
             e = g.temporary({2, 100, 1}), r = g.output({2, 100, 1}),
             n = g.temporary({2, 100, cols}), nb = g.temporary({2, 100, cols}, kB),
             w = g.input({cols}, kB), y = g.output({2, 100, cols}, kB);
  g.node("_to_copy", {x}, {xf});
  g.node("pow.Tensor_Scalar", {xf}, {sq}, "exponent=2");
  g.node("mean.dim", {sq}, {m}, "dim=[-1] keepdim=1");
  g.node("add.Scalar", {m}, {e}, "other=1e-05 alpha=1");
  g.node("rsqrt", {e}, {r});
  g.node("mul.Tensor", {xf, r}, {n});
  g.node("_to_copy", {n}, {nb});
  g.node("mul.Tensor", {w, nb}, {y});
  const Values vx = g.random(x), vw = g.random(w);
  g.run();
  EXPECT_EQ(g.compiled().program.kernels.size(), 1u) << g.compiled().program.kernels.size();
  const auto rstd = [&](std::int64_t row) {
    double sum = 0;
    for (std::int64_t c = 0; c < cols; ++c) sum += vx[row * cols + c] * vx[row * cols + c];
    return 1 / std::sqrt(sum / cols + 1e-5);
  };
  g.expect(r, rstd);
  g.expect(y, [&](std::int64_t i) { return vx[i] * rstd(i / cols) * vw[i % cols]; }, 0.02);
  (void)rows;
}

/// Small SBUF: the row does not fit and is walked once per stage.
TEST(Chain, LogSoftmaxLongRows) {
  for (std::int64_t sbuf : {192 * 1024, 16 * 1024}) {
    GraphFixture g(sbuf);
    const std::int64_t rows = 150, cols = 1500;
    const auto x = g.input({rows, cols}), y = g.output({rows, cols}), z = g.output({rows, cols});
    g.node("_log_softmax", {x}, {y}, "dim=1 half_to_float=0");
    g.node("_softmax", {x}, {z}, "dim=-1 half_to_float=0");
    const Values vx = g.random(x, -4, 4);
    g.run();
    Values lse;
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < cols; ++c) sum += std::exp(vx[r * cols + c]);
      lse.push_back(std::log(sum));
    }
    g.expect(y, [&](std::int64_t i) { return vx[i] - lse[i / cols]; });
    g.expect(z, [&](std::int64_t i) { return std::exp(vx[i] - lse[i / cols]); });
  }
}

/// A number per row that is read first after a walk over the row.
TEST(Chain, LongRowsTimesANumberPerRow) {
  for (std::int64_t sbuf : {192 * 1024, 16 * 1024}) {
    GraphFixture g(sbuf);
    const std::int64_t rows = 150, cols = 1500;
    const auto x = g.input({rows, cols}), r = g.input({rows, 1}), p = g.output({rows, cols}),
               y = g.output({rows, cols});
    g.node("_softmax", {x}, {p}, "dim=-1 half_to_float=0");
    g.node("mul.Tensor", {p, r}, {y});
    const Values vx = g.random(x, -4, 4), vr = g.random(r, -2, 2);
    g.run();
    Values sums;
    for (std::int64_t row = 0; row < rows; ++row) {
      sums.push_back(0);
      for (std::int64_t c = 0; c < cols; ++c) sums.back() += std::exp(vx[row * cols + c]);
    }
    g.expect(y, [&](std::int64_t i) { return std::exp(vx[i]) / sums[i / cols] * vr[i / cols]; });
  }
}

TEST(Chain, ReductionsOverAnyDimensions) {
  const std::vector<std::int64_t> sizes{5, 140, 33};
  struct Case {
    std::string op, dims;
    std::vector<bool> reduced;
  };
  const std::vector<Case> cases{{"sum", "[0]", {true, false, false}},
                                {"sum", "[1]", {false, true, false}},
                                {"sum", "[2]", {false, false, true}},
                                {"sum", "[0,1]", {true, true, false}},
                                {"mean", "[0,2]", {true, false, true}},
                                {"amax", "[1]", {false, true, false}},
                                {"amax", "[0,1,2]", {true, true, true}},
                                {"sum", "[]", {true, true, true}},
                                {"linalg_vector_norm", "[1,2]", {false, true, true}},
                                {"linalg_vector_norm", "[]", {true, true, true}}};
  for (const Case& c : cases) {
    GraphFixture g;
    GraphFixture::Sizes out;
    std::int64_t n = 1, count = 1;
    for (std::size_t d = 0; d < 3; ++d) {
      out.push_back(c.reduced[d] ? 1 : sizes[d]);
      (c.reduced[d] ? count : n) *= sizes[d];
    }
    const auto x = g.input(sizes), y = g.output(out);
    g.node(c.op + ".dim", {x}, {y}, "dim=" + c.dims + " keepdim=1");
    const Values vx = g.random(x);
    g.run();
    Values want(static_cast<std::size_t>(n), c.op == "amax" ? -1e30 : 0);
    for (std::int64_t i = 0; i < 5 * 140 * 33; ++i) {
      const std::int64_t index[3] = {i / (140 * 33), i / 33 % 140, i % 33};
      std::int64_t at = 0;
      for (std::size_t d = 0; d < 3; ++d) at = at * out[d] + (c.reduced[d] ? 0 : index[d]);
      double& w = want[static_cast<std::size_t>(at)];
      if (c.op == "amax")
        w = std::max(w, vx[i]);
      else
        w += c.op == "sum"    ? vx[i]
             : c.op == "mean" ? vx[i] / static_cast<double>(count)
                              : vx[i] * vx[i];
    }
    SCOPED_TRACE(c.op + c.dims);
    g.expect(
        y,
        [&](std::int64_t i) { return c.op == "linalg_vector_norm" ? std::sqrt(want[i]) : want[i]; },
        1e-3);
  }
}

TEST(Chain, SumOverFewIsAFewStridedAdds) {
  for (std::int64_t heads : {2, 3, 8}) {
    GraphFixture g;
    const auto x = g.input({4, heads, 70, 16}, kB), y = g.output({4, 1, 70, 16}, kB);
    g.node("sum.dim_IntList", {x}, {y}, "dim=[1] keepdim=1");
    const Values vx = g.random(x);
    g.run();
    EXPECT_LT(g.compiled().program.instruction_count(), 100);
    g.expect(
        y,
        [&](std::int64_t i) {
          double want = 0;
          for (std::int64_t h = 0; h < heads; ++h)
            want += vx[(i / 1120 * heads + h) * 1120 + i % 1120];
          return want;
        },
        2e-2);
  }
}

TEST(Chain, GatherAndScatterAddOneElementPerRow) {
  for (std::int64_t rows : {1, 100, 300}) {
    GraphFixture g;
    const auto table = g.input({rows, 1, 37}), index = g.input({rows, 1, 1}, DType::kInt64),
               out = g.output({rows, 1, 1});
    const auto sums = g.input({rows, 1, 37});
    g.node("gather", {table, index}, {out}, "dim=-1 sparse_grad=0");
    g.node("scatter_add_", {sums, index, out}, {sums}, "dim=-1");
    const Values vt = g.random(table), vs = g.random(sums);
    Values vi;
    for (std::int64_t r = 0; r < rows; ++r) vi.push_back(static_cast<double>((r * 11 + 5) % 37));
    g.set(index, vi);
    g.run();
    EXPECT_EQ(g.compiled().coverage.estimated_ops, 0);
    const auto picked = [&](std::int64_t r) {
      return vt[r * 37 + static_cast<std::int64_t>(vi[r])];
    };
    g.expect(out, picked);
    g.expect(sums, [&](std::int64_t i) {
      return vs[i] + (i % 37 == static_cast<std::int64_t>(vi[i / 37]) ? picked(i / 37) : 0);
    });
  }
}

TEST(Chain, PutReplacesRowsAndAccumulateAddsToThem) {
  for (const bool accumulates : {false, true}) {
    for (const auto& [op, count] : {std::pair{"index_put_", 1},
                                    {"_index_put_impl_", 40},
                                    {"_unsafe_index_put", 300},
                                    {"index_put_", 300}}) {
      constexpr std::int64_t kRows = 700, kWidth = 24;
      GraphFixture g;
      const auto table = g.input({kRows, kWidth}), index = g.input({count}, DType::kInt64),
                 rows = g.input({count, kWidth});
      g.node(op, {table, index, rows}, {table}, accumulates ? "accumulate=1" : "accumulate=0");
      const Values vt = g.random(table), vr = g.random(rows);
      Values vi;
      for (std::int64_t r = 0; r < count; ++r)
        vi.push_back(static_cast<double>((r * 11 + 5) % kRows));
      g.set(index, vi);
      g.run();
      EXPECT_EQ(g.compiled().coverage.estimated_ops, 0);
      Values want = vt;
      for (std::int64_t i = 0; i < count * kWidth; ++i) {
        const std::int64_t to = static_cast<std::int64_t>(vi[i / kWidth]) * kWidth + i % kWidth;
        want[to] = (accumulates ? vt[to] : 0) + vr[i];
      }
      g.expect(table, [&](std::int64_t i) { return want[i]; });
    }
  }
}

TEST(Chain, TransposedCopy) {
  GraphFixture g;
  const auto x = g.input({3, 200, 140}), y = g.output({3, 140, 200}),
             z = g.output({200, 3, 140}, kB);
  g.node("clone", {g.view(x, {3, 140, 200}, {200 * 140, 1, 140})}, {y});
  g.node("_copy_from", {g.view(x, {200, 3, 140}, {140, 200 * 140, 1})}, {z});
  const Values vx = g.random(x);
  g.run();
  g.expect(y,
           [&](std::int64_t i) { return vx[i / 28000 * 28000 + i % 200 * 140 + i / 200 % 140]; });
  g.expect(z, [&](std::int64_t i) { return vx[i / 140 % 3 * 28000 + i / 420 * 140 + i % 140]; });
}

TEST(Chain, MasksAndSelects) {
  GraphFixture g;
  const auto x = g.input({70, 90}), y = g.input({70, 90}), m = g.temporary({70, 90}, DType::kBool),
             f = g.output({70, 90}), w = g.output({70, 90});
  g.node("gt.Tensor", {x, y}, {m});
  g.node("masked_fill.Scalar", {x, m}, {f}, "value=-inf");
  g.node("where.self", {m, x, y}, {w});
  const Values vx = g.random(x), vy = g.random(y);
  g.run();
  const Values& masked = g.result(f);
  for (std::size_t i = 0; i < masked.size(); ++i)
    ASSERT_EQ(masked[i], vx[i] > vy[i] ? -INFINITY : vx[i]);
  g.expect(w, [&](std::int64_t i) { return std::max(vx[i], vy[i]); });
}

TEST(Chain, ForeachAndAdamW) {
  GraphFixture g;
  std::vector<std::uint32_t> p, gr, m, v, s;
  const std::vector<GraphFixture::Sizes> shapes{{300, 7}, {64}, {1000}};
  std::vector<Values> vp, vg, vm, vv;
  for (const auto& shape : shapes) {
    p.push_back(g.input(shape)), gr.push_back(g.input(shape)), m.push_back(g.input(shape)),
        v.push_back(g.input(shape)), s.push_back(g.input({}));
    vp.push_back(g.random(p.back())), vg.push_back(g.random(gr.back())),
        vm.push_back(g.random(m.back())), vv.push_back(g.random(v.back(), 0, 1));
    g.set(s.back(), {2});
  }
  std::vector<std::uint32_t> all, out;
  for (auto* list : {&p, &gr, &m, &v, &s}) all.insert(all.end(), list->begin(), list->end());
  for (auto* list : {&p, &m, &v}) out.insert(out.end(), list->begin(), list->end());
  g.node("_foreach_add_.Scalar", s, s, "scalar=1");
  g.node("_fused_adamw_", all, out,
         "lr=0.01 beta1=0.9 beta2=0.95 weight_decay=0.1 eps=1e-08 amsgrad=0 maximize=0");
  g.run();
  for (std::size_t t = 0; t < 3; ++t) {
    g.expect(
        p[t],
        [&](std::int64_t i) {
          const double mm = 0.9 * vm[t][i] + 0.1 * vg[t][i],
                       w = 0.95 * vv[t][i] + 0.05 * vg[t][i] * vg[t][i];
          return vp[t][i] * (1 - 0.001) -
                 0.01 / (1 - std::pow(0.9, 3)) * mm /
                     (std::sqrt(w) / std::sqrt(1 - std::pow(0.95, 3)) + 1e-8);
        },
        1e-3);
  }
}

TEST(Chain, AdamWWithTheLearningRateOnTheDevice) {
  for (const bool amsgrad : {false, true}) {
    GraphFixture g;
    const std::uint32_t p = g.input({64, 9}), gr = g.input({64, 9}), m = g.input({64, 9}),
                        v = g.input({64, 9}), top = g.input({64, 9}), t = g.input({}),
                        lr = g.input({});
    const Values vp = g.random(p), vg = g.random(gr), vm = g.random(m), vv = g.random(v, 0, 1),
                 vt = g.random(top, 0, 1);
    g.set(t, {3}), g.set(lr, {0.02f});
    std::vector<std::uint32_t> in{p, gr, m, v, t, lr}, out{p, m, v};
    if (amsgrad) in.insert(in.begin() + 4, top), out.push_back(top);
    g.node("_fused_adamw_.tensor_lr", in, out,
           std::string("beta1=0.9 beta2=0.95 weight_decay=0.1 eps=1e-08 maximize=0 amsgrad=") +
               (amsgrad ? "1" : "0"));
    g.run();
    g.expect(
        p,
        [&](std::int64_t i) {
          const double mm = 0.9 * vm[i] + 0.1 * vg[i], w = 0.95 * vv[i] + 0.05 * vg[i] * vg[i],
                       most = amsgrad ? std::max<double>(vt[i], w) : w;
          return vp[i] * (1 - 0.002) -
                 0.02 / (1 - std::pow(0.9, 3)) * mm /
                     (std::sqrt(most) / std::sqrt(1 - std::pow(0.95, 3)) + 1e-8);
        },
        1e-3);
  }
}

}  // namespace
}  // namespace trellis::device::testing
