#include <gtest/gtest.h>

#include "device/compiler/compile.h"
#include "device/compiler/graph/recipe.h"
#include "tests/device/compiler/graph_samples.h"

namespace trellis::device::testing {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t flops(const std::string& op, const std::vector<Shape>& inputs,
                   const std::vector<Shape>& outputs, const std::string& scalars = "") {
  GraphMaker make;
  std::vector<std::uint32_t> in, out;
  for (const Shape& shape : inputs) in.push_back(make.tensor(shape));
  for (const Shape& shape : outputs) out.push_back(make.tensor(shape));
  make.op(op, in, out, scalars);
  return node_flops(make.graph, make.graph.nodes[0]);
}

TEST(PlainName, KeepsWhatIsComputed) {
  EXPECT_EQ(plain_name("add.Tensor"), "add");
  EXPECT_EQ(plain_name("add_.Tensor"), "add");
  EXPECT_EQ(plain_name("mm.out"), "mm");
  EXPECT_EQ(plain_name("sum.IntList_out"), "sum");
  EXPECT_EQ(plain_name("copy_"), "copy");
  EXPECT_EQ(plain_name("_softmax"), "_softmax");
  EXPECT_EQ(plain_name("_softmax.out"), "_softmax");
  EXPECT_EQ(plain_name("_foreach_add_.Scalar"), "_foreach_add");
  EXPECT_EQ(plain_name("__iand__.Tensor"), "__iand__");
  EXPECT_EQ(plain_name("_"), "_");
  EXPECT_EQ(plain_name(""), "");
}

TEST(Flops, MatrixProducts) {
  EXPECT_EQ(flops("mm", {{3, 5}, {5, 7}}, {{3, 7}}), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("mm.out", {{3, 5}, {5, 7}, {3, 7}}, {{3, 7}}), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("addmm.out", {{7}, {3, 5}, {5, 7}, {3, 7}}, {{3, 7}}, "beta=1 alpha=1"),
            2 * 3 * 5 * 7);
  EXPECT_EQ(flops("addmm_", {{3, 7}, {3, 5}, {5, 7}}, {{3, 7}}), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("bmm", {{2, 3, 5}, {2, 5, 7}}, {{2, 3, 7}}), 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("baddbmm", {{2, 3, 7}, {2, 3, 5}, {2, 5, 7}}, {{2, 3, 7}}), 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("addbmm", {{3, 7}, {2, 3, 5}, {2, 5, 7}}, {{3, 7}}), 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("linear", {{2, 3, 5}, {7, 5}, {7}}, {{2, 3, 7}}), 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(flops("matmul", {{2, 1, 3, 5}, {4, 5, 7}}, {{2, 4, 3, 7}}), 2 * 2 * 4 * 3 * 5 * 7);
  EXPECT_EQ(flops("matmul", {{5}, {5, 7}}, {{7}}), 2 * 5 * 7);
  EXPECT_EQ(flops("mv", {{3, 5}, {5}}, {{3}}), 2 * 3 * 5);
  EXPECT_EQ(flops("dot", {{5}, {5}}, {{}}), 2 * 5);
}

TEST(Flops, ProductsOfGroups) {
  constexpr std::int64_t kAll = std::int64_t{2} * 4 * 3 * 5 * 7;
  EXPECT_EQ(flops("_grouped_mm", {{4, 3, 5}, {4, 5, 7}}, {{4, 3, 7}}), kAll);
  EXPECT_EQ(flops("_grouped_mm", {{12, 5}, {4, 5, 7}, {4}}, {{12, 7}}), kAll) << "rows in groups";
  EXPECT_EQ(flops("_grouped_mm", {{4, 3, 5}, {5, 28}, {4}}, {{3, 28}}), kAll) << "columns";
  EXPECT_EQ(flops("_grouped_mm", {{3, 20}, {20, 7}, {4}}, {{4, 3, 7}}), kAll) << "inner dimension";
}

TEST(Flops, Attention) {
  const Shape q{2, 4, 8, 16}, kv{2, 2, 32, 16}, stats{2, 4, 8};
  const std::int64_t full = 4 * 2 * 4 * 8 * 32 * 16;
  const std::string op = "_scaled_dot_product_fused_attention_overrideable";
  EXPECT_EQ(flops(op, {q, kv, kv}, {q, stats}, "dropout_p=0 is_causal=0"), full);
  EXPECT_EQ(flops(op, {q, kv, kv}, {q, stats}, "dropout_p=0 is_causal=1 return_debug_mask=0"),
            full / 2);
  EXPECT_EQ(flops("scaled_dot_product_attention", {q, kv, kv}, {q}), full);
  EXPECT_EQ(flops(op + "_backward", {q, q, kv, kv, q, stats}, {q, kv, kv}, "is_causal=1"),
            full / 2 * 5 / 2);
}

TEST(Flops, Convolutions) {
  // 6 input and 9 output channels in 3 groups, 5 × 5 taps.
  EXPECT_EQ(flops("convolution", {{2, 6, 20, 20}, {9, 2, 5, 5}, {9}}, {{2, 9, 16, 16}},
                  "transposed=0 groups=3"),
            2 * 2 * 9 * 16 * 16 * 2 * 25);
  EXPECT_EQ(flops("convolution", {{2, 6, 20, 20}, {6, 3, 5, 5}}, {{2, 9, 24, 24}},
                  "transposed=1 groups=3"),
            2 * 2 * 6 * 20 * 20 * 3 * 25);
  EXPECT_EQ(flops("convolution_backward", {{2, 9, 16, 16}, {2, 6, 20, 20}, {9, 2, 5, 5}},
                  {{2, 6, 20, 20}, {9, 2, 5, 5}, {9}}, "transposed=0 groups=3"),
            2 * (2 * 2 * 9 * 16 * 16 * 2 * 25) + 2 * 9 * 16 * 16);
}

TEST(Flops, Distances) {
  EXPECT_EQ(flops("_cdist_forward", {{2, 3, 5}, {2, 7, 5}}, {{2, 3, 7}}), 2 * 3 * 7 * 3 * 5);
}

TEST(Flops, FourierTransforms) {
  EXPECT_EQ(flops("_fft_c2c", {{3, 16}}, {{3, 16}}, "dim=[1] normalization=0 forward=1"),
            3 * 5 * 16 * 4);
  EXPECT_EQ(flops("_fft_c2c", {{4, 16}}, {{4, 16}}, "dim=[0,-1]"), 5 * 64 * 6);
  EXPECT_EQ(flops("_fft_r2c", {{3, 16}}, {{3, 9}}, "dim=[1] onesided=1"), 3 * 5 * 16 * 4 / 2);
  EXPECT_EQ(flops("_fft_c2r", {{3, 9}}, {{3, 16}}, "dim=[1] last_dim_size=16"), 3 * 5 * 16 * 4 / 2);
}

TEST(Flops, RecurrentCells) {
  EXPECT_EQ(flops("_thnn_fused_lstm_cell", {{2, 12}, {2, 12}, {2, 3}}, {{2, 3}, {2, 3}, {2, 12}}),
            21 * 6);
  EXPECT_EQ(flops("_thnn_fused_gru_cell", {{2, 9}, {2, 9}, {2, 3}}, {{2, 3}, {2, 15}}), 17 * 6);
}

TEST(Flops, LinearAlgebra) {
  EXPECT_EQ(flops("linalg_lu_factor_ex", {{2, 6, 6}}, {{2, 6, 6}, {2, 6}}), 2 * 216 * 2 / 3);
  EXPECT_EQ(flops("linalg_cholesky_ex", {{2, 6, 6}}, {{2, 6, 6}}), 2 * 216 / 3);
  EXPECT_EQ(flops("linalg_inv_ex", {{6, 6}}, {{6, 6}}), 2 * 216);
  EXPECT_EQ(flops("linalg_qr", {{9, 6}}, {{9, 6}, {6, 6}}), 4 * 36 * 7);
  EXPECT_EQ(flops("linalg_qr", {{6, 9}}, {{6, 6}, {6, 9}}), 4 * 36 * 7) << "columns, rows";
  EXPECT_EQ(flops("_linalg_svd", {{9, 6}}, {{9, 6}, {6}, {6, 6}}),
            4 * 81 * 6 + 8 * 9 * 36 + 9 * 216);
  EXPECT_EQ(flops("_linalg_svd", {{9, 6}}, {{0}, {6}, {0}}, "full_matrices=0 compute_uv=0"),
            4 * 36 * 7);
  EXPECT_EQ(flops("_linalg_eigh", {{6, 6}}, {{6}, {6, 6}}), 9 * 216);
  EXPECT_EQ(flops("_linalg_eigh", {{6, 6}}, {{6}, {0}}, "compute_v=0"), 4 * 216 / 3);
  EXPECT_EQ(flops("linalg_eig", {{6, 6}}, {{6}, {6, 6}}), 25 * 216);
  EXPECT_EQ(flops("_linalg_eigvals", {{6, 6}}, {{6}}), 10 * 216);
  EXPECT_EQ(flops("cholesky_inverse", {{6, 6}}, {{6, 6}}), 2 * 216 / 3);
  EXPECT_EQ(flops("_linalg_solve_ex", {{6, 6}, {6, 5}}, {{6, 5}}), 216 * 2 / 3 + 2 * 36 * 5);
  EXPECT_EQ(flops("linalg_solve_triangular", {{6, 6}, {6, 5}}, {{6, 5}}), 36 * 5);
  EXPECT_EQ(flops("cholesky_solve", {{6, 5}, {6, 6}}, {{6, 5}}), 2 * 36 * 5);
  EXPECT_EQ(flops("linalg_inv_ex", {{0, 6, 6}}, {{0, 6, 6}}), 0);
}

TEST(Flops, ElementwiseCountsOutputs) {
  EXPECT_EQ(flops("add.Tensor", {{4, 1}, {5}}, {{4, 5}}), 20);
  EXPECT_EQ(flops("add_.Tensor", {{4, 5}, {5}}, {{4, 5}}), 20);
  EXPECT_EQ(flops("silu.out", {{4, 5}, {4, 5}}, {{4, 5}}), 20);
  EXPECT_EQ(flops("maximum", {{4, 1}, {5}}, {{4, 5}}), 20);
  EXPECT_EQ(flops("an_operator_of_the_future", {{7}}, {{4, 5}}), 20);
}

TEST(Flops, ListsCountEachOutputOnce) {
  GraphMaker make;
  const auto a = make.tensor({4, 5}), b = make.tensor({3}), c = make.tensor({4, 5}),
             d = make.tensor({3});
  make.op("_foreach_add_.List", {a, b, c, d}, {a, b, a, b}, "alpha=1");
  EXPECT_EQ(node_flops(make.graph, make.graph.nodes[0]), 23);
}

TEST(Flops, ReductionsCountInputs) {
  EXPECT_EQ(flops("sum.dim_IntList", {{4, 5}}, {{4}}), 20);
  EXPECT_EQ(flops("sum.IntList_out", {{4, 5}, {4}}, {{4}}), 20);
  EXPECT_EQ(flops("max.dim", {{4, 5}}, {{4}, {4}}), 20);
  EXPECT_EQ(flops("max.other", {{4, 1}, {5}}, {{4, 5}}), 20);
  EXPECT_EQ(flops("_foreach_norm.Scalar", {{4, 5}, {3}}, {{}, {}}), 23);
}

TEST(Flops, MovingDataIsNone) {
  for (const char* op : {"copy_", "cat.out", "index_select", "embedding", "zero_", "fill_.Scalar",
                         "_to_copy", "clone", "gather.out", "empty.memory_format"}) {
    EXPECT_EQ(flops(op, {{4, 5}}, {{4, 5}}), 0) << op;
  }
  EXPECT_EQ(flops("embedding_dense_backward", {{6, 5}, {6}}, {{100, 5}}), 30);
}

TEST(Flops, CommunicationIsNone) {
  GraphMaker make;
  const auto a = make.tensor({8});
  make.op("all_reduce", {a}, {a}).kind = Node::Kind::kCommStart;
  EXPECT_EQ(node_flops(make.graph, make.graph.nodes[0]), 0);
}

TEST(Flops, EmptyTensors) {
  EXPECT_EQ(flops("mm", {{0, 5}, {5, 7}}, {{0, 7}}), 0);
  EXPECT_EQ(flops("add.Tensor", {{0}, {0}}, {{0}}), 0);
  EXPECT_EQ(flops("scaled_dot_product_attention", {{2, 4, 0, 0}, {2, 4, 0, 0}, {2, 4, 0, 0}},
                  {{2, 4, 0, 0}}),
            0);
}

}  // namespace
}  // namespace trellis::device::testing
