#pragma once

namespace trellis::trainer {

/// Processors without AVX-512 have no bfloat16 kernels in LibTorch: its products and its attention
/// are then loops over scalars, 30 to 90 times slower than in fp32. On such a processor this
/// replaces the CPU's kernels of this process by the fp32 ones, with the operands widened (exactly)
/// and the result rounded once. It counts for `neuron` too, whose numbers are the CPU's. Sums are
/// as exact as before, in another order: about one element in 10,000 rounds to its other neighbour.
/// Call it before ranks start; later calls do nothing.
void use_wide_products();

}  // namespace trellis::trainer
