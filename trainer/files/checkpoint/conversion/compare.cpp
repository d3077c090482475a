#include "trainer/files/checkpoint/conversion/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "base/error.h"
#include "trainer/files/checkpoint/containers/convert.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

/// Elements of a piece, of one side.
class Piece {
 public:
  void read(const TensorSource& source, const TensorEntry& entry, const Box& box) {
    const auto elements = static_cast<std::size_t>(box.elements());
    bytes_.resize(elements * static_cast<std::size_t>(element_bytes(entry.dtype)));
    source.read(entry, box, bytes_);
    dtype_ = entry.dtype;
    wide_.resize(elements);
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<double>& wide() {
    widen_elements(dtype_, bytes_, wide_);
    return wide_;
  }

 private:
  DType dtype_ = DType::kFloat32;
  std::vector<std::byte> bytes_;
  std::vector<double> wide_;
};

class TensorComparison {
 public:
  TensorComparison(const TensorSource& a, const TensorSource& b, const CompareOptions& options)
      : a_(a), b_(b), tolerance_(options.tolerance), every_bit_(options.every_bit) {}

  /// Compares the box of this shape at the beginning of both tensors.
  void values(TensorDifference& result, const Shape& shape) {
    for_each_piece(shape, kPieceElements, [&](const Box& box) {
      piece_a_.read(a_, result.a, box);
      piece_b_.read(b_, result.b, box);
      const bool same_bits =
          result.a.dtype == result.b.dtype && piece_a_.bytes() == piece_b_.bytes();
      if (same_bits) return;
      const bool is_number = is_widenable(result.a.dtype) && is_widenable(result.b.dtype);
      if (is_number) numbers(result);
      if (!is_number || every_bit_) count_bytes(result, box.elements());
      if (!is_number) result.l2 = result.max_abs = result.max_rel = INFINITY;
    });
    result.l2 = std::sqrt(result.l2);
  }

 private:
  void numbers(TensorDifference& result) {
    const std::vector<double>&x = piece_a_.wide(), &y = piece_b_.wide();
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double difference = std::abs(x[i] - y[i]);
      const double scale = std::max(std::abs(x[i]), std::abs(y[i]));
      // Written so that not-a-number differs from every number.
      if (!every_bit_ && !(difference <= tolerance_ * (1 + std::abs(y[i])))) ++result.elements;
      const bool is_finite = std::isfinite(difference);
      result.l2 += is_finite ? difference * difference : INFINITY;
      result.max_abs = std::max(result.max_abs, is_finite ? difference : INFINITY);
      result.max_rel = std::max(result.max_rel, is_finite ? difference / scale : INFINITY);
    }
  }
  /// Elements by their bytes: those of types without arithmetic here, such as eight-bit floats,
  /// too.
  void count_bytes(TensorDifference& result, std::int64_t elements) {
    const std::size_t a = piece_a_.bytes().size() / static_cast<std::size_t>(elements),
                      b = piece_b_.bytes().size() / static_cast<std::size_t>(elements);
    for (std::int64_t i = 0; i < elements; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const bool equal = a == b && std::memcmp(piece_a_.bytes().data() + place * a,
                                               piece_b_.bytes().data() + place * b, a) == 0;
      result.elements += equal ? 0 : 1;
    }
  }

  const TensorSource& a_;
  const TensorSource& b_;
  double tolerance_;
  bool every_bit_;
  Piece piece_a_, piece_b_;
};

/// The common shape of two tables with a row per token, whose vocabularies are padded for their
/// layouts. None: other tensors of different shapes.
std::optional<Shape> common_shape(const std::string& key, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const bool is_table =
      is_vocabulary_weight(parse_state_key(key).weight) && a.size() == b.size() && !a.empty();
  if (!is_table || !std::equal(a.begin() + 1, a.end(), b.begin() + 1)) return std::nullopt;
  Shape shape = a;
  shape[0] = std::min(a[0], b[0]);
  return shape;
}

struct Pair {
  const TensorEntry *a = nullptr, *b = nullptr;
};

std::map<std::string, Pair> pairs_of(const TensorSource& a, const TensorSource& b,
                                     bool weights_only) {
  const auto counts = [&](const TensorEntry& entry) {
    return !weights_only || parse_state_key(entry.key).state.empty();
  };
  std::map<std::string, Pair> pairs;
  for (const TensorEntry& entry : a.tensors()) {
    if (counts(entry)) pairs[entry.key].a = &entry;
  }
  for (const TensorEntry& entry : b.tensors()) {
    if (counts(entry)) pairs[entry.key].b = &entry;
  }
  return pairs;
}

}  // namespace

const char* name(TensorDifference::Kind kind) {
  switch (kind) {
    case TensorDifference::Kind::kOnlyInA: return "only in A";
    case TensorDifference::Kind::kOnlyInB: return "only in B";
    case TensorDifference::Kind::kShape: return "shape";
    case TensorDifference::Kind::kDType: return "type";
    case TensorDifference::Kind::kValues: break;
  }
  return "values";
}

Comparison compare(const TensorSource& a, const TensorSource& b, const CompareOptions& options,
                   const std::function<void(std::int64_t, std::int64_t)>& progress) {
  using Kind = TensorDifference::Kind;
  const std::map<std::string, Pair> pairs = pairs_of(a, b, options.weights_only);
  Comparison result;
  TensorComparison comparison(a, b, options);
  for (const auto& [key, pair] : pairs) {
    TensorDifference difference{.key = key};
    if (pair.a != nullptr) difference.a = *pair.a;
    if (pair.b != nullptr) difference.b = *pair.b;
    bool differs = true;
    if (pair.b == nullptr) {
      difference.kind = Kind::kOnlyInA;
    } else if (pair.a == nullptr) {
      difference.kind = Kind::kOnlyInB;
    } else if (const auto shape = common_shape(key, pair.a->shape, pair.b->shape); !shape) {
      difference.kind = Kind::kShape;
    } else {
      comparison.values(difference, *shape);
      result.padded += pair.a->shape == pair.b->shape ? 0 : 1;
      result.bytes += elements_of(*shape) * element_bytes(pair.a->dtype);
      const bool types = !options.ignore_dtypes && pair.a->dtype != pair.b->dtype;
      difference.kind = types ? Kind::kDType : Kind::kValues;
      differs = types || difference.elements > 0;
    }
    if (differs) result.differences.push_back(std::move(difference));
    progress(++result.tensors, static_cast<std::int64_t>(pairs.size()));
  }
  return result;
}

}  // namespace trellis::checkpoint
