#include "device/aten/dispatch/widenings.h"

#include <algorithm>
#include <array>

namespace trellis::device {
namespace {

using enum c10::ScalarType;

constexpr std::array kHalf{Widening{Half, Float}};
constexpr std::array kReduced{Widening{Half, Float}, Widening{BFloat16, Float}};
constexpr std::array kComplexHalf{Widening{ComplexHalf, ComplexFloat}};
constexpr std::array kHalves{Widening{ComplexHalf, ComplexFloat}, Widening{Half, Float}};
constexpr std::array kBoolAsBytes{Widening{Bool, Byte}};
constexpr std::array kTrace{Widening{Bool, Long, /*back=*/false},
                            Widening{ComplexHalf, ComplexFloat}};
constexpr std::array kIntegers{Widening{Byte, Double}, Widening{Char, Double},
                               Widening{Short, Double}, Widening{Int, Double},
                               Widening{Long, Double}};

struct Row {
  std::string_view op;
  std::span<const Widening> widenings;
};

/// tests/conformance/families/wider.py has all pairs of PyTorch's operator database. Backward
/// operators are next to theirs.
constexpr std::array kRows{
    Row{"histc", kIntegers},
    Row{"abs", kBoolAsBytes},
    Row{"trace", kTrace},
    Row{"avg_pool3d", kReduced},
    Row{"avg_pool3d_backward", kReduced},
    Row{"_upsample_bilinear2d_aa", kReduced},
    Row{"_upsample_bilinear2d_aa_backward", kReduced},
    Row{"multi_margin_loss", kReduced},
    Row{"multi_margin_loss_backward", kReduced},
    Row{"multilabel_margin_loss_forward", kReduced},
    Row{"multilabel_margin_loss_backward", kReduced},
    Row{"rrelu_with_noise", kHalf},
    Row{"rrelu_with_noise_backward", kHalf},
    Row{"_fft_c2c", kHalves},
    Row{"_fft_c2r", kHalves},
    Row{"_fft_r2c", kHalves},
    Row{"round", kHalf},
    Row{"polygamma", kHalf},
};

}  // namespace

std::span<const Widening> widenings_of(std::string_view op) {
  constexpr std::string_view kAten = "aten::";
  if (op.starts_with(kAten)) op.remove_prefix(kAten.size());
  op = op.substr(0, op.find('.'));
  const auto is = [op](const Row& row) {
    return row.op == op ||
           (op.size() == row.op.size() + 1 && op.ends_with('_') && op.starts_with(row.op));
  };
  const auto row = std::find_if(kRows.begin(), kRows.end(), is);
  // CUDA has complex32 nearly everywhere, the CPU next to nowhere.
  return row == kRows.end() ? std::span<const Widening>(kComplexHalf) : row->widenings;
}

}  // namespace trellis::device
