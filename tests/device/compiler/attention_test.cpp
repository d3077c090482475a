#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "device/compiler/attention/lower_attention.h"
#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/test_core.h"

namespace trellis::device::testing {
namespace {

enum class Layout {
  kContiguous,
  kSequenceFirst,
  kBatchFirst,
  kColumnMajor
};  ///< [b, h, l, d]; [l, b, h, d]; [b, l, h, d]; [b, h, d, l]

/// The mask that is added to scores: −∞ outside of a window; −1e30 outside of a packed document,
/// another cut in each sample.
enum class Mask { kNone, kWindow, kDocuments };
constexpr std::int64_t kMaskWindow = 150;

struct AttentionCase {
  std::int64_t batch, heads, key_heads, lq, lk, d;
  bool causal;
  DType dtype = DType::kFp32;
  Layout layout = Layout::kContiguous;
  std::int64_t sbuf = 192 * 1024;
  std::int64_t window = 0;
  Mask mask = Mask::kNone;

  [[nodiscard]] double added(std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (mask == Mask::kWindow && (j > i || j <= i - kMaskWindow))
      return -std::numeric_limits<double>::infinity();
    const auto document = [b](std::int64_t at) { return at / (170 + 450 * b); };
    return mask == Mask::kDocuments && (j > i || document(i) != document(j)) ? -1e30 : 0;
  }
};

HbmView rows_view(std::uint32_t buffer, DType dtype, Layout layout, std::int64_t b, std::int64_t h,
                  std::int64_t l, std::int64_t d) {
  switch (layout) {
    case Layout::kContiguous: return contiguous(buffer, dtype, {b, h, l, d});
    case Layout::kSequenceFirst: return {buffer, dtype, {b, h, l, d}, {h * d, d, b * h * d, 1}, 0};
    case Layout::kBatchFirst: return {buffer, dtype, {b, h, l, d}, {l * h * d, d, h * d, 1}, 0};
    case Layout::kColumnMajor: return {buffer, dtype, {b, h, l, d}, {h * d * l, d * l, 1, l}, 0};
  }
  return {};
}

/// An HBM tensor with its values as fp64.
struct Tensor {
  HbmView view;
  Values values;

  [[nodiscard]] double& at(std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t c = 0) {
    const auto& s = view.strides;
    return values[static_cast<std::size_t>(view.offset + b * s[0] + h * s[1] + l * s[2] +
                                           (s.size() > 3 ? c * s[3] : 0))];
  }
};

class Device {
 public:
  explicit Device(std::int64_t sbuf)
      : core(test_core(sbuf)),
        builder("attention", core),
        kernel(builder.add_kernel({"attention", 0, 0, false})) {}

  Tensor tensor(const std::string& name, const AttentionCase& c, std::int64_t heads,
                std::int64_t length) {
    const std::int64_t n = c.batch * heads * length * c.d;
    const auto buffer = builder.add_hbm(name, n * isa::size_bytes(c.dtype), slot_++);
    return {rows_view(buffer, c.dtype, c.layout, c.batch, heads, length, c.d),
            Values(static_cast<std::size_t>(n))};
  }
  /// The same for all heads, seen as one for each.
  std::optional<Tensor> mask(const AttentionCase& c) {
    if (c.mask == Mask::kNone) return std::nullopt;
    const std::int64_t n = c.batch * c.lq * c.lk;
    Tensor mask{contiguous(builder.add_hbm("mask", n * isa::size_bytes(c.dtype), slot_++), c.dtype,
                           {c.batch, 1, c.lq, c.lk}),
                Values(static_cast<std::size_t>(n))};
    mask.view.sizes[1] = c.heads;
    mask.view.strides[1] = 0;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t i = 0; i < c.lq; ++i) {
        for (std::int64_t j = 0; j < c.lk; ++j) mask.at(b, 0, i, j) = c.added(b, i, j);
      }
    }
    return mask;
  }
  Tensor statistics(const AttentionCase& c) {
    const std::int64_t n = c.batch * c.heads * c.lq;
    return {contiguous(builder.add_hbm("logsumexp", n * 4, slot_++), DType::kFp32,
                       {c.batch, c.heads, c.lq}),
            Values(static_cast<std::size_t>(n))};
  }

  /// Runs under several schedules, which must agree, and reads `outputs` back.
  void run(const std::vector<const Tensor*>& inputs, const std::vector<Tensor*>& outputs) {
    const auto program = builder.finish();
    const auto violations = isa::validate(program, core.limits);
    for (std::size_t i = 0; i < std::min<std::size_t>(violations.size(), 5); ++i) {
      ADD_FAILURE() << name(violations[i].engine) << " " << violations[i].index << ": "
                    << violations[i].text;
    }
    for (std::uint32_t seed : {0u, 1u, 2u}) {
      Interpreter interpreter(program, core.limits, in_double(seed));
      for (const Tensor* t : inputs) interpreter.write(t->view.buffer, t->view.dtype, t->values);
      interpreter.run();
      for (Tensor* t : outputs) {
        const Values got = interpreter.read(t->view.buffer, t->view.dtype,
                                            static_cast<std::int64_t>(t->values.size()));
        ASSERT_TRUE(seed == 0 || got == t->values) << "the schedule changes the result: a race";
        t->values = got;
      }
    }
  }

  sim::CoreConfig core;
  ProgramBuilder builder;
  std::uint32_t kernel;

 private:
  std::int32_t slot_ = 0;
};

/// Multiples of 1/32 below 2: exact in bf16.
void fill(Tensor& t, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> draw(-63, 63);
  for (double& x : t.values) x = draw(random) / 32.0;
}

/// One row of a tensor, [d].
class Row {
 public:
  Row(Tensor& t, std::int64_t b, std::int64_t h, std::int64_t l)
      : first_(&t.at(b, h, l)), stride_(t.view.strides[3]), d_(t.view.sizes[3]) {}
  [[nodiscard]] double dot(const Row& other) const {
    double sum = 0;
    for (std::int64_t x = 0; x < d_; ++x)
      sum += first_[x * stride_] * other.first_[x * other.stride_];
    return sum;
  }
  void add(double factor, const Row& other) const {
    for (std::int64_t x = 0; x < d_; ++x)
      first_[x * stride_] += factor * other.first_[x * other.stride_];
  }

 private:
  double* first_;
  std::int64_t stride_, d_;
};

/// Softmax of one query's scaled scores in fp64, and their logsumexp.
struct Probabilities {
  Values p;
  double logsumexp = 0;
  /// Calls visit(key, probability) for those that are not 0: most are, where a mask hides them.
  template <typename Visit>
  void each(Visit visit) const {
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] != 0) visit(static_cast<std::int64_t>(j), p[j]);
    }
  }
};
Probabilities probabilities(Tensor& q, Tensor& k, const AttentionCase& c, std::int64_t b,
                            std::int64_t h, std::int64_t i, double scale) {
  const std::int64_t hk = h / (c.heads / c.key_heads);
  const Row query(q, b, h, i);
  Probabilities out;
  double most = -1e300, sum = 0;
  for (std::int64_t j = 0; j < (c.causal ? std::min(i + 1, c.lk) : c.lk); ++j) {
    out.p.push_back(c.window > 0 && j <= i - c.window
                        ? -1e300
                        : query.dot({k, b, hk, j}) * scale + c.added(b, i, j));
    most = std::max(most, out.p.back());
  }
  // 0 beyond what a double holds, without the slow way to find that out.
  for (double& p : out.p) sum += p = p - most < -800 ? 0 : std::exp(p - most);
  for (double& p : out.p) p /= sum;
  out.logsumexp = most + std::log(sum);
  return out;
}
/// Their sum of the values' rows.
Values weighted(const Probabilities& row, Tensor& v, const AttentionCase& c, std::int64_t b,
                std::int64_t h) {
  Tensor sum{contiguous(0, DType::kFp32, {1, 1, 1, c.d}), Values(static_cast<std::size_t>(c.d))};
  const Row into(sum, 0, 0, 0);
  row.each([&](std::int64_t j, double p) { into.add(p, {v, b, h / (c.heads / c.key_heads), j}); });
  return sum.values;
}

double tolerance(const AttentionCase& c) { return c.dtype == DType::kFp32 ? 1e-4 : 2e-2; }

void check_forward(const AttentionCase& c) {
  Device device(c.sbuf);
  Tensor q = device.tensor("q", c, c.heads, c.lq), k = device.tensor("k", c, c.key_heads, c.lk),
         v = device.tensor("v", c, c.key_heads, c.lk);
  Tensor out = device.tensor("out", c, c.heads, c.lq), lse = device.statistics(c);
  const std::optional<Tensor> mask = device.mask(c);
  const double scale = 1 / std::sqrt(static_cast<double>(c.d));
  Attention attention{q.view, k.view, v.view, out.view, lse.view, c.causal, scale, c.window};
  std::vector<const Tensor*> inputs{&q, &k, &v};
  if (mask) attention.mask = mask->view, inputs.push_back(&*mask);
  ASSERT_TRUE(lower_attention(device.builder, device.kernel, attention));
  fill(q, 1), fill(k, 2), fill(v, 3);
  ASSERT_NO_FATAL_FAILURE(device.run(inputs, {&out, &lse}));
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t i = 0; i < c.lq; ++i) {
        const Probabilities want = probabilities(q, k, c, b, h, i, scale);
        ASSERT_NEAR(lse.at(b, h, i), want.logsumexp, tolerance(c)) << b << " " << h << " " << i;
        const Values sum = weighted(want, v, c, b, h);
        for (std::int64_t x = 0; x < c.d; ++x)
          ASSERT_NEAR(out.at(b, h, i, x), sum[static_cast<std::size_t>(x)], tolerance(c))
              << b << " " << h << " " << i << " " << x;
      }
    }
  }
}

/// The gradients in fp64.
struct Gradients {
  Tensor q, k, v;
};
Gradients reference(Tensor& grad_out, Tensor& q, Tensor& k, Tensor& v, Tensor& out,
                    const AttentionCase& c, double scale, Gradients grads) {
  for (Tensor* t : {&grads.q, &grads.k, &grads.v})
    std::fill(t->values.begin(), t->values.end(), 0.0);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t i = 0; i < c.lq; ++i) {
        const std::int64_t hk = h / (c.heads / c.key_heads);
        const Row query(q, b, h, i), grad(grad_out, b, h, i), grad_q(grads.q, b, h, i);
        const double delta = grad.dot({out, b, h, i});
        probabilities(q, k, c, b, h, i, scale).each([&](std::int64_t j, double p) {
          const double grad_score = p * (grad.dot({v, b, hk, j}) - delta) * scale;
          grad_q.add(grad_score, {k, b, hk, j});
          Row(grads.k, b, hk, j).add(grad_score, query);
          Row(grads.v, b, hk, j).add(p, grad);
        });
      }
    }
  }
  return grads;
}

/// The forward pass in fp64, rounded as the device would hand it over.
void forward(Tensor& q, Tensor& k, Tensor& v, Tensor& out, Tensor& lse, const AttentionCase& c,
             double scale) {
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t i = 0; i < c.lq; ++i) {
        const Probabilities row = probabilities(q, k, c, b, h, i, scale);
        lse.at(b, h, i) = row.logsumexp;
        const Values sum = weighted(row, v, c, b, h);
        for (std::int64_t x = 0; x < c.d; ++x)
          out.at(b, h, i, x) = sum[static_cast<std::size_t>(x)];
      }
    }
  }
}

void expect_near(const Tensor& got, const Tensor& want, double tolerance, const char* what) {
  double most = 1;
  for (const double x : want.values) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < want.values.size(); ++i)
    ASSERT_NEAR(got.values[i], want.values[i], tolerance * most) << what << " " << i;
}

void check_backward(const AttentionCase& c) {
  Device device(c.sbuf);
  Tensor q = device.tensor("q", c, c.heads, c.lq), k = device.tensor("k", c, c.key_heads, c.lk),
         v = device.tensor("v", c, c.key_heads, c.lk);
  Tensor out = device.tensor("out", c, c.heads, c.lq), lse = device.statistics(c),
         grad_out = device.tensor("grad_out", c, c.heads, c.lq);
  Gradients got{device.tensor("grad_q", c, c.heads, c.lq),
                device.tensor("grad_k", c, c.key_heads, c.lk),
                device.tensor("grad_v", c, c.key_heads, c.lk)};
  const double scale = 1 / std::sqrt(static_cast<double>(c.d));
  const std::optional<Tensor> mask = device.mask(c);
  AttentionBackward attention{grad_out.view, q.view,     k.view,     v.view,   out.view, lse.view,
                              got.q.view,    got.k.view, got.v.view, c.causal, scale,    c.window};
  std::vector<const Tensor*> inputs{&q, &k, &v, &out, &lse, &grad_out};
  if (mask) attention.mask = mask->view, inputs.push_back(&*mask);
  ASSERT_TRUE(lower_attention_backward(device.builder, device.kernel, attention));
  fill(q, 1), fill(k, 2), fill(v, 3), fill(grad_out, 4);
  forward(q, k, v, out, lse, c, scale);
  const Gradients want = reference(grad_out, q, k, v, out, c, scale, got);
  ASSERT_NO_FATAL_FAILURE(device.run(inputs, {&got.q, &got.k, &got.v}));
  expect_near(got.v, want.v, tolerance(c), "grad_v");
  expect_near(got.k, want.k, tolerance(c), "grad_k");
  expect_near(got.q, want.q, tolerance(c), "grad_q");
}

constexpr bool kCausal = true, kFull = false;

AttentionCase windowed(std::int64_t length, std::int64_t window) {
  return {1, 1, 1, length, length, 16, kCausal, kF, Layout::kContiguous, 192 * 1024, window};
}

TEST(Attention, OneQuery) { check_forward({1, 1, 1, 1, 1, 64, kCausal}); }
TEST(Attention, OneQueryOfManyKeys) { check_forward({2, 2, 1, 1, 700, 64, kFull}); }
TEST(Attention, OneTile) { check_forward({1, 2, 2, 128, 128, 64, kCausal}); }
TEST(Attention, ShortTail) { check_forward({1, 2, 2, 77, 77, 16, kCausal}); }
TEST(Attention, TailTile) { check_forward({1, 2, 2, 200, 200, 32, kFull}); }
TEST(Attention, CausalTailTile) { check_forward({2, 1, 1, 384, 384, 32, kCausal}); }
TEST(Attention, SeveralKeyHeadsAtATime) { check_forward({1, 5, 5, 100, 100, 32, kCausal, kB}); }
TEST(Attention, SeveralQueryHeadsAtATime) {
  check_forward({2, 6, 2, 1024, 1024, 16, kCausal, kF, Layout::kSequenceFirst});
}
TEST(Attention, TwoHeadsOfThreeBlocks) { check_forward({1, 4, 1, 1300, 1300, 16, kCausal, kB}); }
TEST(Attention, OneHeadOfFourBlocks) { check_forward({1, 2, 1, 2048, 2048, 16, kCausal, kF}); }
TEST(Attention, ManyBlocks) { check_forward({1, 1, 1, 2048 + 200, 2048 + 200, 16, kCausal}); }
TEST(Attention, ManyBlocksFull) { check_forward({1, 1, 1, 1100, 1300, 16, kFull}); }
TEST(Attention, MoreQueriesThanKeys) { check_forward({1, 1, 1, 1700, 600, 16, kCausal}); }
TEST(Attention, MoreKeysThanQueries) { check_forward({1, 1, 1, 600, 1700, 16, kCausal}); }
TEST(Attention, GroupedQueries) { check_forward({2, 4, 2, 200, 200, 64, kCausal}); }
TEST(Attention, GroupedQueriesSequenceFirst) {
  check_forward({2, 6, 2, 150, 150, 32, kCausal, kB, Layout::kSequenceFirst});
}
TEST(Attention, SequenceFirst) {
  check_forward({2, 2, 2, 200, 200, 128, kCausal, kB, Layout::kSequenceFirst});
}
TEST(Attention, GroupedQueriesBatchFirst) {
  check_forward({2, 4, 2, 600, 600, 16, kCausal, kF, Layout::kBatchFirst});
}
TEST(Attention, ColumnMajor) {
  check_forward({1, 2, 2, 140, 70, 32, kFull, kF, Layout::kColumnMajor});
}
TEST(Attention, SmallMemory) {
  check_forward({1, 2, 1, 1700, 1700, 32, kCausal, kF, Layout::kContiguous, 34 * 1024});
}
TEST(Attention, SmallMemoryFull) {
  check_forward({1, 2, 1, 1100, 1700, 32, kFull, kF, Layout::kContiguous, 34 * 1024});
}
TEST(Attention, SmallMemoryMoreQueries) {
  check_forward({1, 1, 1, 1700, 1100, 32, kCausal, kF, Layout::kContiguous, 32 * 1024});
}

TEST(Attention, WindowOfOneTile) {
  check_forward({1, 2, 1, 1536, 1536, 16, kCausal, kF, Layout::kContiguous, 192 * 1024, 128});
}
TEST(Attention, WindowOfSomeBlocks) {
  check_forward({1, 1, 1, 2560, 2560, 16, kCausal, kF, Layout::kContiguous, 192 * 1024, 896});
}
TEST(Attention, WindowOfEverything) {
  check_forward({1, 1, 1, 1024, 1024, 16, kCausal, kB, Layout::kContiguous, 192 * 1024, 2048});
}

TEST(Attention, WindowOfOneKey) { check_forward(windowed(1024, 1)); }
TEST(Attention, WindowWithinATile) { check_forward(windowed(1024, 77)); }
TEST(Attention, WindowJustPastATile) { check_forward(windowed(1024, 129)); }
TEST(Attention, WindowNoMultipleOfABlock) { check_forward(windowed(2560, 700)); }
TEST(Attention, WindowOfAlmostEverything) { check_forward(windowed(1024, 1023)); }
TEST(Attention, WindowSmallMemory) {
  for (const std::int64_t sbuf : {96, 64, 48})
    check_forward({1, 1, 1, 3072, 3072, 16, kCausal, kF, Layout::kContiguous, sbuf * 1024, 700});
}
TEST(Attention, WindowGroupedQueries) {
  check_forward({2, 4, 2, 1024, 1024, 16, kCausal, kB, Layout::kBatchFirst, 192 * 1024, 200});
}
TEST(Attention, WindowBeyondAnOddSequence) { check_forward(windowed(333, 333)); }

TEST(AttentionBackward, WindowOfOneKey) { check_backward(windowed(1024, 1)); }
TEST(AttentionBackward, WindowWithinATile) { check_backward(windowed(1024, 77)); }
TEST(AttentionBackward, WindowOfOneTile) {
  check_backward({2, 4, 2, 1024, 1024, 16, kCausal, kB, Layout::kBatchFirst, 192 * 1024, 128});
}
TEST(AttentionBackward, WindowJustPastATile) { check_backward(windowed(1536, 129)); }
TEST(AttentionBackward, WindowOfThreeTiles) { check_backward(windowed(1536, 300)); }
TEST(AttentionBackward, WindowOfABlock) { check_backward(windowed(2048, 512)); }
TEST(AttentionBackward, WindowNoMultipleOfABlock) { check_backward(windowed(2560, 700)); }
TEST(AttentionBackward, WindowOfAlmostEverything) { check_backward(windowed(1024, 1023)); }
TEST(AttentionBackward, WindowBeyondAnOddSequence) { check_backward(windowed(333, 333)); }
TEST(AttentionBackward, WindowSmallMemory) {
  check_backward({1, 1, 1, 3072, 3072, 16, kCausal, kF, Layout::kContiguous, 80 * 1024, 200});
}
TEST(AttentionBackward, WindowCarriedOverTwoPhases) {
  check_backward({1, 1, 1, 2560, 2560, 16, kCausal, kF, Layout::kContiguous, 96 * 1024, 900});
}

TEST(Attention, WindowsWithoutALowering) {
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 1, 1024, 1024, 16, kFull, kF, Layout::kContiguous, 192 * 1024,
                      128},  // not causal
        AttentionCase{1, 1, 1, 1000, 1000, 16, kCausal, kF, Layout::kContiguous, 192 * 1024,
                      128},  // no multiple of a block
        AttentionCase{1, 1, 1, 1024, 512, 16, kCausal, kF, Layout::kContiguous, 192 * 1024,
                      128},  // no square
        AttentionCase{1, 1, 1, 4096, 4096, 16, kCausal, kF, Layout::kContiguous, 34 * 1024,
                      2000}}) {  // more than SBUF holds
    Device device(c.sbuf);
    const HbmView q = device.tensor("q", c, 1, c.lq).view, k = device.tensor("k", c, 1, c.lk).view,
                  lse = device.statistics(c).view;
    EXPECT_FALSE(
        lower_attention(device.builder, device.kernel, {q, k, k, q, lse, c.causal, 1, c.window}));
    EXPECT_FALSE(lower_attention_backward(device.builder, device.kernel,
                                          {q, q, k, k, q, lse, q, k, k, c.causal, 1, c.window}));
  }
}

AttentionCase masked(Mask mask, std::int64_t lq, std::int64_t lk, DType dtype = kF,
                     std::int64_t sbuf = 192 * 1024, bool causal = kFull) {
  return {2, 2, 1, lq, lk, 16, causal, dtype, Layout::kContiguous, sbuf, 0, mask};
}

TEST(Attention, MaskOfAWindow) { check_forward(masked(Mask::kWindow, 700, 700)); }
TEST(Attention, MaskOfPackedDocuments) {
  check_forward(masked(Mask::kDocuments, 600, 600));
  check_forward(masked(Mask::kDocuments, 1100, 1100, kB, 40 * 1024));
}
TEST(Attention, CausalWithAMask) {
  check_forward(masked(Mask::kWindow, 1300, 1300, kF, 192 * 1024, kCausal));
  check_forward(masked(Mask::kDocuments, 1100, 1100, kB, 192 * 1024, kCausal));
  check_forward(masked(Mask::kDocuments, 1100, 1100, kF, 40 * 1024, kCausal));
}
TEST(AttentionBackward, CausalWithAMask) {
  check_backward(masked(Mask::kWindow, 1300, 1300, kF, 192 * 1024, kCausal));
  check_backward(masked(Mask::kDocuments, 1100, 1100, kB, 192 * 1024, kCausal));
  check_backward(masked(Mask::kDocuments, 1100, 1100, kF, 60 * 1024, kCausal));
}
TEST(AttentionBackward, MaskOfAWindow) { check_backward(masked(Mask::kWindow, 700, 700)); }
TEST(AttentionBackward, MaskOfPackedDocuments) {
  check_backward(masked(Mask::kDocuments, 600, 600));
  check_backward(masked(Mask::kDocuments, 1100, 1100, kB, 60 * 1024));
}

TEST(AttentionBackward, OneQuery) { check_backward({1, 1, 1, 1, 1, 64, kCausal}); }
TEST(AttentionBackward, OneQueryOfManyKeys) { check_backward({2, 2, 1, 1, 700, 64, kFull}); }
TEST(AttentionBackward, OneTile) { check_backward({1, 2, 2, 128, 128, 64, kCausal}); }
TEST(AttentionBackward, ShortTail) { check_backward({1, 2, 2, 77, 77, 16, kCausal}); }
TEST(AttentionBackward, TailTile) { check_backward({1, 2, 2, 200, 200, 32, kFull}); }
TEST(AttentionBackward, CausalTailTile) { check_backward({2, 1, 1, 384, 384, 32, kCausal}); }
TEST(AttentionBackward, SeveralKeyHeadsAtATime) {
  check_backward({1, 5, 5, 100, 100, 32, kCausal, kB});
}
TEST(AttentionBackward, SeveralQueryHeadsAtATime) {
  check_backward({2, 6, 2, 1024, 1024, 16, kCausal, kF, Layout::kSequenceFirst});
}
TEST(AttentionBackward, TwoHeadsOfThreeBlocks) {
  check_backward({1, 4, 1, 1300, 1300, 16, kCausal, kB});
}
TEST(AttentionBackward, OneHeadOfFourBlocks) {
  check_backward({1, 2, 1, 2048, 2048, 16, kCausal, kF});
}
TEST(AttentionBackward, ManyBlocks) {
  check_backward({1, 1, 1, 2048 + 200, 2048 + 200, 16, kCausal});
}
TEST(AttentionBackward, ManyBlocksFull) { check_backward({1, 1, 1, 1100, 1300, 16, kFull}); }
TEST(AttentionBackward, MoreQueriesThanKeys) { check_backward({1, 1, 1, 1700, 600, 16, kCausal}); }
TEST(AttentionBackward, MoreKeysThanQueries) { check_backward({1, 1, 1, 600, 1700, 16, kCausal}); }
TEST(AttentionBackward, GroupedQueries) { check_backward({2, 4, 2, 200, 200, 64, kCausal}); }
TEST(AttentionBackward, GroupedQueriesSequenceFirst) {
  check_backward({2, 6, 2, 150, 150, 32, kCausal, kB, Layout::kSequenceFirst});
}
TEST(AttentionBackward, SequenceFirst) {
  check_backward({2, 2, 2, 200, 200, 128, kCausal, kB, Layout::kSequenceFirst});
}
TEST(AttentionBackward, GroupedQueriesBatchFirst) {
  check_backward({2, 4, 2, 600, 600, 16, kCausal, kF, Layout::kBatchFirst});
}
TEST(AttentionBackward, ColumnMajor) {
  check_backward({1, 2, 2, 140, 70, 32, kFull, kF, Layout::kColumnMajor});
}
TEST(AttentionBackward, SmallMemory) {
  check_backward({1, 2, 1, 1700, 1700, 16, kCausal, kF, Layout::kContiguous, 66 * 1024});
}
TEST(AttentionBackward, SmallMemoryFull) {
  check_backward({1, 2, 1, 1100, 1700, 16, kFull, kF, Layout::kContiguous, 54 * 1024});
}
TEST(AttentionBackward, SmallMemoryMoreKeys) {
  check_backward({1, 1, 1, 600, 1700, 16, kCausal, kF, Layout::kContiguous, 54 * 1024});
}
TEST(AttentionBackward, SmallMemoryMoreQueries) {
  check_backward({1, 1, 1, 1700, 1100, 16, kCausal, kF, Layout::kContiguous, 54 * 1024});
}

TEST(Attention, ExpandedKeyHeads) {
  const AttentionCase c{1, 3, 3, 140, 140, 32, kCausal};
  Device device(c.sbuf);
  Tensor q = device.tensor("q", c, 3, 140), k = device.tensor("k", c, 1, 140),
         v = device.tensor("v", c, 1, 140), out = device.tensor("out", c, 3, 140);
  for (Tensor* t : {&k, &v}) t->view.sizes[1] = 3, t->view.strides[1] = 0;
  ASSERT_TRUE(lower_attention(device.builder, device.kernel,
                              {q.view, k.view, v.view, out.view, std::nullopt, true, 0.2}));
  fill(q, 1), fill(k, 2), fill(v, 3);
  ASSERT_NO_FATAL_FAILURE(device.run({&q, &k, &v}, {&out}));
  for (std::int64_t h = 0; h < 3; ++h) {
    const Probabilities want = probabilities(q, k, c, 0, h, 139, 0.2);
    double sum = 0;
    for (std::size_t j = 0; j < want.p.size(); ++j)
      sum += want.p[j] * v.at(0, h, static_cast<std::int64_t>(j), 5);
    ASSERT_NEAR(out.at(0, h, 139, 5), sum, 1e-4);
  }
}

TEST(Attention, WideHeadHasNoLowering) {
  const AttentionCase c{1, 1, 1, 8, 8, 160, kCausal};
  Device device(c.sbuf);
  const HbmView v = device.tensor("x", c, 1, 8).view;
  EXPECT_FALSE(lower_attention(device.builder, device.kernel, {v, v, v, v, std::nullopt, true, 1}));
}

/// Batch, key head and query head do not merge: the deepest nest of loops there is.
TEST(Attention, DeepestNestIsLegal) {
  const AttentionCase c{2, 4, 2, 4096 + 40, 4096 + 40, 16, kCausal, kB, Layout::kBatchFirst};
  for (const std::int64_t sbuf : {192 * 1024, 48 * 1024}) {
    for (const bool causal : {true, false}) {
      Device device(sbuf);
      const auto rows = device.builder.add_hbm("rows", 2 * 4 * c.lq * c.d * 2, 0),
                 statistics = device.builder.add_hbm("logsumexp", 2 * 4 * c.lq * 4, 1);
      const HbmView q = rows_view(rows, kB, c.layout, 2, 4, c.lq, c.d),
                    k = rows_view(rows, kB, c.layout, 2, 2, c.lk, c.d);
      const HbmView lse = contiguous(statistics, kF, {2, 4, c.lq});
      ASSERT_TRUE(lower_attention(device.builder, device.kernel, {q, k, k, q, lse, causal, 0.25}));
      ASSERT_TRUE(lower_attention_backward(device.builder, device.kernel,
                                           {q, q, k, k, q, lse, q, k, k, causal, 0.25}));
      EXPECT_TRUE(isa::validate(device.builder.finish(), device.core.limits).empty());
    }
  }
}

TEST(Attention, TooLittleMemoryHasNoLowering) {
  Device device(16 * 1024);
  const HbmView v = device.tensor("x", {1, 1, 1, 8, 8, 128, kCausal}, 1, 8).view;
  const HbmView lse = device.statistics({1, 1, 1, 8, 8, 128, kCausal}).view;
  EXPECT_FALSE(lower_attention(device.builder, device.kernel, {v, v, v, v, lse, true, 1}));
  EXPECT_FALSE(lower_attention_backward(device.builder, device.kernel,
                                        {v, v, v, v, v, lse, v, v, v, true, 1}));
}

/// The program of a training shape stays small. Lower takes the device, a view of the rows of 4
/// heads and one of their statistics.
template <typename Lower>
void check_size(std::int64_t length, std::int64_t most_instructions, Lower lower) {
  Device device(192 * 1024);
  const auto rows = device.builder.add_hbm("rows", 4 * length * 128 * 2, 0),
             statistics = device.builder.add_hbm("logsumexp", 4 * length * 4, 1);
  const auto start = std::chrono::steady_clock::now();
  lower(device, contiguous(rows, DType::kBf16, {1, 4, length, 128}),
        contiguous(statistics, DType::kFp32, {1, 4, length}));
  const auto program = device.builder.finish();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  ::testing::Test::RecordProperty("instructions_" + std::to_string(length),
                                  std::to_string(program.instruction_count()));
  ::testing::Test::RecordProperty("milliseconds_" + std::to_string(length),
                                  std::to_string(took.count()));
  EXPECT_LT(program.instruction_count(), most_instructions) << length;
  EXPECT_TRUE(isa::validate(program, device.core.limits).empty()) << length;
}

TEST(Attention, ProgramSize) {
  for (const std::int64_t length : {512, 2048, 3000, 4096, 8192, 32768}) {
    check_size(length, 8000, [](Device& d, const HbmView& rows, const HbmView& lse) {
      ASSERT_TRUE(lower_attention(d.builder, d.kernel, {rows, rows, rows, rows, lse, true, 0.1}));
    });
  }
}

TEST(AttentionBackward, ProgramSize) {
  for (const std::int64_t length : {512, 2048, 3000, 4096, 8192, 32768}) {
    check_size(length, length <= 4096 ? 3000 : 12000,
               [](Device& d, const HbmView& rows, const HbmView& lse) {
                 ASSERT_TRUE(lower_attention_backward(
                     d.builder, d.kernel,
                     {rows, rows, rows, rows, rows, lse, rows, rows, rows, true, 0.1}));
               });
  }
}

}  // namespace
}  // namespace trellis::device::testing
