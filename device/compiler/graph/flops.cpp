#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "device/compiler/graph/flops.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/graph/scalars.h"

/// FLOPs by shapes. Leading inputs are at fixed places in a schema, so that an `out` tensor
/// listed after them does not disturb.
namespace trellis::device {
namespace {

enum class Cost : std::uint8_t {
  kElementwise,
  kNone,
  kReduction,
  kMatmul,
  kAddMatmul,
  kAddBatchSum,
  kGroupedMatmul,
  kAttention,
  kAttentionBackward,
  kConvolution,
  kConvolutionBackward,
  kScatterAdd,
  kDistance,
  kFourier,
  kLstmCell,
  kGruCell,
  kLu,
  kCholesky,
  kCholeskyInverse,
  kInverse,
  kQr,
  kHouseholder,
  kSingularValues,
  kSymmetricEigen,
  kEigen,
  kEigenvalues,
  kMatrixExponential,
  kSolve,
  kTwoTriangularSolves,
  kTriangularSolve
};

struct Row {
  std::string_view op;
  Cost cost;
};

/// Sorted by name. What is not here costs one FLOP per output element.
constexpr auto kCosts = [] {
  std::array rows = std::to_array<Row>({
      {"mm", Cost::kMatmul},
      {"bmm", Cost::kMatmul},
      {"linear", Cost::kMatmul},
      {"matmul", Cost::kMatmul},
      {"mv", Cost::kMatmul},
      {"dot", Cost::kMatmul},
      {"vdot", Cost::kMatmul},
      {"inner", Cost::kMatmul},
      {"_int_mm", Cost::kMatmul},
      {"_scaled_mm", Cost::kMatmul},
      {"_grouped_mm", Cost::kGroupedMatmul},
      {"_scaled_grouped_mm", Cost::kGroupedMatmul},
      {"addmm", Cost::kAddMatmul},
      {"baddbmm", Cost::kAddMatmul},
      {"addmv", Cost::kAddMatmul},
      {"_addmm_activation", Cost::kAddMatmul},
      {"mm_gelu", Cost::kMatmul},
      {"mm_gelu_backward", Cost::kMatmul},
      {"addmm_gelu", Cost::kAddMatmul},
      {"addbmm", Cost::kAddBatchSum},
      {"scaled_dot_product_attention", Cost::kAttention},
      {"_scaled_dot_product_attention_math", Cost::kAttention},
      {"_scaled_dot_product_flash_attention", Cost::kAttention},
      {"_scaled_dot_product_flash_attention_for_cpu", Cost::kAttention},
      {"_scaled_dot_product_efficient_attention", Cost::kAttention},
      {"_scaled_dot_product_fused_attention_overrideable", Cost::kAttention},
      {"_scaled_dot_product_flash_attention_backward", Cost::kAttentionBackward},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", Cost::kAttentionBackward},
      {"_scaled_dot_product_efficient_attention_backward", Cost::kAttentionBackward},
      {"_scaled_dot_product_fused_attention_overrideable_backward", Cost::kAttentionBackward},
      {"convolution", Cost::kConvolution},
      {"_convolution", Cost::kConvolution},
      {"convolution_overrideable", Cost::kConvolution},
      {"convolution_backward", Cost::kConvolutionBackward},
      {"convolution_backward_overrideable", Cost::kConvolutionBackward},
      {"scatter_add", Cost::kScatterAdd},
      {"index_add", Cost::kScatterAdd},
      {"embedding_dense_backward", Cost::kScatterAdd},
      {"_cdist_forward", Cost::kDistance},
      {"_pdist_forward", Cost::kDistance},
      {"_fft_c2c", Cost::kFourier},
      {"_fft_r2c", Cost::kFourier},
      {"_fft_c2r", Cost::kFourier},
      {"_thnn_fused_lstm_cell", Cost::kLstmCell},
      {"_thnn_fused_gru_cell", Cost::kGruCell},
      {"_linalg_det", Cost::kLu},
      {"_linalg_slogdet", Cost::kLu},
      {"linalg_lu", Cost::kLu},
      {"linalg_lu_factor_ex", Cost::kLu},
      {"linalg_cholesky_ex", Cost::kCholesky},
      {"linalg_ldl_factor_ex", Cost::kCholesky},
      {"cholesky", Cost::kCholesky},
      {"linalg_inv_ex", Cost::kInverse},
      {"cholesky_inverse", Cost::kCholeskyInverse},
      {"linalg_qr", Cost::kQr},
      {"geqrf", Cost::kHouseholder},
      {"linalg_householder_product", Cost::kHouseholder},
      {"_linalg_svd", Cost::kSingularValues},
      {"linalg_lstsq", Cost::kSingularValues},
      {"_linalg_eigh", Cost::kSymmetricEigen},
      {"linalg_eig", Cost::kEigen},
      {"_linalg_eigvals", Cost::kEigenvalues},
      {"linalg_eigvals", Cost::kEigenvalues},
      {"linalg_matrix_exp", Cost::kMatrixExponential},
      {"_linalg_solve_ex", Cost::kSolve},
      {"linalg_lu_solve", Cost::kTwoTriangularSolves},
      {"cholesky_solve", Cost::kTwoTriangularSolves},
      {"linalg_ldl_solve", Cost::kTwoTriangularSolves},
      {"linalg_solve_triangular", Cost::kTriangularSolve},
      {"triangular_solve", Cost::kTriangularSolve},
      // reductions and scans
      {"all", Cost::kReduction},
      {"amax", Cost::kReduction},
      {"amin", Cost::kReduction},
      {"aminmax", Cost::kReduction},
      {"any", Cost::kReduction},
      {"argmax", Cost::kReduction},
      {"argmin", Cost::kReduction},
      {"argsort", Cost::kReduction},
      {"bincount", Cost::kReduction},
      {"count_nonzero", Cost::kReduction},
      {"cumprod", Cost::kReduction},
      {"cumsum", Cost::kReduction},
      {"linalg_vector_norm", Cost::kReduction},
      {"logsumexp", Cost::kReduction},
      {"max", Cost::kReduction},
      {"mean", Cost::kReduction},
      {"median", Cost::kReduction},
      {"min", Cost::kReduction},
      {"nll_loss_forward", Cost::kReduction},
      {"nll_loss2d_forward", Cost::kReduction},
      {"nonzero", Cost::kReduction},
      {"norm", Cost::kReduction},
      {"prod", Cost::kReduction},
      {"sort", Cost::kReduction},
      {"std", Cost::kReduction},
      {"std_mean", Cost::kReduction},
      {"sum", Cost::kReduction},
      {"topk", Cost::kReduction},
      {"var", Cost::kReduction},
      {"var_mean", Cost::kReduction},
      {"_foreach_norm", Cost::kReduction},
      {"_foreach_max", Cost::kReduction},
      {"mse_loss", Cost::kReduction},
      // data movement
      {"alias", Cost::kNone},
      {"arange", Cost::kNone},
      {"as_strided", Cost::kNone},
      {"cat", Cost::kNone},
      {"chunk", Cost::kNone},
      {"clone", Cost::kNone},
      {"constant_pad_nd", Cost::kNone},
      {"contiguous", Cost::kNone},
      {"copy", Cost::kNone},
      {"detach", Cost::kNone},
      {"diagonal", Cost::kNone},
      {"embedding", Cost::kNone},
      {"empty", Cost::kNone},
      {"empty_like", Cost::kNone},
      {"empty_strided", Cost::kNone},
      {"expand", Cost::kNone},
      {"eye", Cost::kNone},
      {"fill", Cost::kNone},
      {"flatten", Cost::kNone},
      {"flip", Cost::kNone},
      {"full", Cost::kNone},
      {"full_like", Cost::kNone},
      {"gather", Cost::kNone},
      {"index", Cost::kNone},
      {"index_copy", Cost::kNone},
      {"index_fill", Cost::kNone},
      {"index_put", Cost::kNone},
      {"_index_put_impl", Cost::kNone},
      {"_unsafe_index", Cost::kNone},
      {"_unsafe_index_put", Cost::kNone},
      {"index_select", Cost::kNone},
      {"lift_fresh", Cost::kNone},
      {"masked_select", Cost::kNone},
      {"narrow", Cost::kNone},
      {"new_empty", Cost::kNone},
      {"new_full", Cost::kNone},
      {"new_zeros", Cost::kNone},
      {"one_hot", Cost::kNone},
      {"ones", Cost::kNone},
      {"ones_like", Cost::kNone},
      {"permute", Cost::kNone},
      {"repeat", Cost::kNone},
      {"repeat_interleave", Cost::kNone},
      {"reshape", Cost::kNone},
      {"resize", Cost::kNone},
      {"roll", Cost::kNone},
      {"scatter", Cost::kNone},
      {"select", Cost::kNone},
      {"select_backward", Cost::kNone},
      {"select_scatter", Cost::kNone},
      {"set", Cost::kNone},
      {"slice", Cost::kNone},
      {"slice_backward", Cost::kNone},
      {"slice_scatter", Cost::kNone},
      {"split", Cost::kNone},
      {"split_with_sizes", Cost::kNone},
      {"split_with_sizes_copy", Cost::kNone},
      {"squeeze", Cost::kNone},
      {"stack", Cost::kNone},
      {"t", Cost::kNone},
      {"to", Cost::kNone},
      {"transpose", Cost::kNone},
      {"tril", Cost::kNone},
      {"triu", Cost::kNone},
      {"unbind", Cost::kNone},
      {"unfold", Cost::kNone},
      {"unsqueeze", Cost::kNone},
      {"view", Cost::kNone},
      {"zero", Cost::kNone},
      {"zeros", Cost::kNone},
      {"zeros_like", Cost::kNone},
      {"_copy_from", Cost::kNone},
      {"_copy_from_and_resize", Cost::kNone},
      {"_foreach_copy", Cost::kNone},
      {"_foreach_zero", Cost::kNone},
      {"_local_scalar_dense", Cost::kNone},
      {"_reshape_alias", Cost::kNone},
      {"_to_copy", Cost::kNone},
      {"_unsafe_view", Cost::kNone},
  });
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.op < b.op; });
  return rows;
}();

Cost cost_of(std::string_view op) {
  const auto row =
      std::lower_bound(kCosts.begin(), kCosts.end(), op,
                       [](const Row& r, std::string_view name) { return r.op < name; });
  return row != kCosts.end() && row->op == op ? row->cost : Cost::kElementwise;
}

bool is_causal(std::string_view scalars) {
  while (!scalars.empty()) {
    const std::string_view token = scalars.substr(0, scalars.find(' '));
    if (token == "is_causal=1" || token == "causal=1" || token == "causal") return true;
    scalars.remove_prefix(std::min(scalars.size(), token.size() + 1));
  }
  return false;
}

/// Counts a real matrix of `rows` × `columns` by G. H. Golub and C. F. Van Loan, Matrix
/// Computations, 4th edition (sections 3.2, 4.2, 5.2, 7.5, 8.3, 8.6). `vectors`: the orthogonal
/// factors too.
double factorization_flops(Cost cost, double rows, double columns, bool vectors) {
  const double m = std::max(rows, columns), n = std::min(rows, columns);
  switch (cost) {
    case Cost::kLu: return m * n * n - n * n * n / 3;
    case Cost::kCholesky: return n * n * n / 3;
    case Cost::kCholeskyInverse: return 2 * n * n * n / 3;
    case Cost::kInverse: return 2 * n * n * n;
    case Cost::kHouseholder: return 2 * n * n * (m - n / 3);
    case Cost::kQr: return (vectors ? 4 : 2) * n * n * (m - n / 3);  // R, and as much for Q
    case Cost::kSingularValues:
      return vectors ? 4 * m * m * n + 8 * m * n * n + 9 * n * n * n : 4 * n * n * (m - n / 3);
    case Cost::kSymmetricEigen: return vectors ? 9 * n * n * n : 4 * n * n * n / 3;
    case Cost::kEigen: return 25 * n * n * n;
    case Cost::kEigenvalues: return 10 * n * n * n;
    case Cost::kMatrixExponential: return 2 * 8 * n * n * n;  // a Padé approximant, squared
    default: return 0;
  }
}

class FlopCounter {
 public:
  FlopCounter(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  [[nodiscard]] std::int64_t run() const {
    if (node_.kind != Node::Kind::kOp) return 0;
    switch (cost_of(plain_name(node_.op))) {
      case Cost::kElementwise: return written();
      case Cost::kNone: return 0;
      case Cost::kReduction: return reduction();
      case Cost::kMatmul: return 2 * output() * last_size(0);
      case Cost::kAddMatmul: return 2 * output() * last_size(1);
      case Cost::kAddBatchSum: return 2 * output() * last_size(1) * size(1, 0);
      case Cost::kGroupedMatmul: return grouped_matmul();
      case Cost::kAttention: return attention(0);
      case Cost::kAttentionBackward:
        return attention(1) * 5 /
               2;  // 5 products instead of 2: q·k again, and one for each of dv, dp, dq, dk
      case Cost::kConvolution: return convolution();
      case Cost::kConvolutionBackward: return convolution_backward();
      case Cost::kScatterAdd: return scattered();
      case Cost::kDistance: return 3 * output() * last_size(0);  // a − b, its power, the sum
      case Cost::kFourier: return fourier();
      case Cost::kLstmCell: return kLstmCellFlops * output();
      case Cost::kGruCell: return kGruCellFlops * output();
      case Cost::kSolve: return factorization(Cost::kLu) + 2 * output() * last_size(0);
      case Cost::kTwoTriangularSolves: return 2 * output() * triangle();
      case Cost::kTriangularSolve: return output() * triangle();
      default: return factorization(cost_of(plain_name(node_.op)));
    }
    return 0;
  }

 private:
  [[nodiscard]] const TensorView* input(std::size_t i) const {
    return i < node_.inputs.size() ? &graph_.values[node_.inputs[i]].view : nullptr;
  }
  [[nodiscard]] std::int64_t elements(std::size_t i) const {
    return input(i) == nullptr ? 0 : input(i)->elements();
  }
  [[nodiscard]] std::int64_t output() const {
    return node_.outputs.empty() ? 0 : graph_.values[node_.outputs[0]].view.elements();
  }

  [[nodiscard]] std::int64_t size(std::size_t i, std::size_t dim) const {
    const TensorView* view = input(i);
    return view == nullptr || dim >= view->sizes.size() ? 1 : view->sizes[dim];
  }
  [[nodiscard]] std::int64_t last_size(std::size_t i) const {
    const TensorView* view = input(i);
    return view == nullptr || view->sizes.empty() ? 1 : view->sizes.back();
  }

  /// Elements of every distinct output: an in-place operation on lists may name one twice.
  [[nodiscard]] std::int64_t written() const {
    std::int64_t sum = 0;
    for (std::uint32_t value : std::set<std::uint32_t>(node_.outputs.begin(), node_.outputs.end()))
      sum += graph_.values[value].view.elements();
    return sum;
  }

  /// max.other and min.other are element-wise, with a result that may be larger than the first
  /// input.
  [[nodiscard]] std::int64_t reduction() const {
    if (!node_.op.starts_with("_foreach")) return std::max(elements(0), output());
    const std::set<std::uint32_t> outputs(node_.outputs.begin(), node_.outputs.end());
    std::int64_t sum = 0;
    for (std::uint32_t value : node_.inputs)
      sum += outputs.contains(value) ? 0 : graph_.values[value].view.elements();
    return sum;
  }

  /// With two matrices the offsets divide the inner dimension: each group has a part of it. Else a
  /// group has its own matrix, or its own rows or columns of the result.
  [[nodiscard]] std::int64_t grouped_matmul() const {
    const bool divides_inner =
        input(0) != nullptr && input(0)->sizes.size() == 2 && input(1)->sizes.size() == 2;
    return 2 * (divides_inner ? elements(0) * last_size(1) : output() * last_size(0));
  }

  /// Both products of every query row with every key that it may see; `first` is the query's place.
  [[nodiscard]] std::int64_t attention(std::size_t first) const {
    const TensorView* query = input(first);
    if (query == nullptr || query->sizes.size() < 2) return 0;
    const std::size_t rows = query->sizes.size() - 2;
    const std::int64_t all = 2 * query->elements() / std::max<std::int64_t>(1, last_size(first)) *
                             size(first + 1, rows) * (last_size(first) + last_size(first + 2));
    return is_causal(node_.scalars) ? all / 2 : all;
  }

  /// Products per element of the side that the weight [this side's or the other's channels, …] fans
  /// out from.
  [[nodiscard]] std::int64_t taps(std::size_t weight) const {
    return elements(weight) / std::max<std::int64_t>(1, size(weight, 0));
  }
  [[nodiscard]] bool transposed() const {
    return node_.scalars.find("transposed=1") != std::string::npos;
  }

  [[nodiscard]] std::int64_t convolution() const {
    return 2 * (transposed() ? elements(0) : output()) * taps(1);
  }

  /// Inputs: gradient, input, weight. The gradients of input and weight cost a forward each; the
  /// bias's is a sum.
  [[nodiscard]] std::int64_t convolution_backward() const {
    const std::int64_t forward = 2 * elements(transposed() ? 1 : 0) * taps(2);
    std::int64_t sum = 0;
    for (std::uint32_t value : node_.outputs)
      sum += graph_.values[value].view.sizes.size() > 1 ? forward : elements(0);
    return sum;
  }

  /// One addition per element that is added: scatter_add(self, index, source), index_add(self,
  /// index, source), embedding_dense_backward(gradient, indices).
  [[nodiscard]] std::int64_t scattered() const {
    return plain_name(node_.op) == "embedding_dense_backward" ? elements(0) : elements(2);
  }

  /// Sums the factorizations of a batch.
  [[nodiscard]] std::int64_t factorization(Cost cost) const {
    const TensorView* matrices = input(0);
    if (matrices == nullptr || matrices->sizes.size() < 2) return 0;
    const std::int64_t rows = matrices->sizes.end()[-2], columns = matrices->sizes.back();
    if (rows == 0 || columns == 0) return 0;
    return static_cast<std::int64_t>(static_cast<double>(elements(0) / (rows * columns)) *
                                     factorization_flops(cost, static_cast<double>(rows),
                                                         static_cast<double>(columns),
                                                         gives_vectors()));
  }
  [[nodiscard]] bool gives_vectors() const {
    const Scalars scalars(node_.scalars);
    return scalars.flag("compute_uv", true) && scalars.flag("compute_v", true) &&
           scalars.text("mode") != "r";
  }
  /// Rows of the triangular matrix: triangular_solve(b, A) and cholesky_solve(b, A) have it second.
  [[nodiscard]] std::int64_t triangle() const {
    const std::string_view op = plain_name(node_.op);
    return last_size(op == "triangular_solve" || op == "cholesky_solve" ? 1 : 0);
  }

  /// 5·n·log2(n) for n complex points (C. Van Loan, Computational Frameworks for the Fast Fourier
  /// Transform, section 1.4), half of it where one side is real.
  [[nodiscard]] std::int64_t fourier() const {
    const std::string_view op = plain_name(node_.op);
    const bool real = op != "_fft_c2c", from_real = op == "_fft_r2c";
    const TensorView* whole = from_real ? input(0) : &graph_.values[node_.outputs.at(0)].view;
    if (whole == nullptr) return 0;
    double points = 1;
    const auto rank = static_cast<std::int64_t>(whole->sizes.size());
    for (const std::int64_t dim : Scalars(node_.scalars).list("dim")) {
      const std::int64_t place = dim < 0 ? dim + rank : dim;
      if (place >= 0 && place < rank)
        points *= static_cast<double>(whole->sizes[static_cast<std::size_t>(place)]);
    }
    const double flops =
        5 * static_cast<double>(whole->elements()) * std::log2(std::max(1., points));
    return static_cast<std::int64_t>(real ? flops / 2 : flops);
  }

  /// An element of the state costs, after the products of input and state: additions of both and
  /// the biases, gates, and what they weigh.
  static constexpr std::int64_t kLstmCellFlops = 4 * 4 + 3 + 2, kGruCellFlops = 3 * 4 + 3 + 2;

  const Graph& graph_;
  const Node& node_;
};

}  // namespace

std::int64_t node_flops(const Graph& graph, const Node& node) {
  return FlopCounter(graph, node).run();
}

}  // namespace trellis::device
