#pragma once

#include <cstdint>

#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// Paths of a core that engines share, one bit each. An instruction holds its paths for its
/// occupancy; instructions of different engines that need a common one take turns (hardware.md
/// §2.3). DMA has its own ports.
///   bits 0 … 15   PSUM banks, for VectorE and ScalarE where they collide on equal banks only (v3,
///                 v4)
///   bit 16        SBUF: VectorE with GpSimd. v2: any access; v3, v4: VectorE in a 2x or 4x mode
///   bit 17        PSUM: VectorE with ScalarE (v2)
using PortSet = std::uint32_t;
inline constexpr int kMaxPsumBanks = 16;
inline constexpr PortSet kSbufVectorGpSimd = 1u << 16;
inline constexpr PortSet kPsumVectorScalar = 1u << 17;

/// The shared paths that an instruction needs. A tile that loops or rotation move between banks has
/// no bank bits: such rings exist so that two engines are on different banks.
[[nodiscard]] PortSet shared_ports(const isa::Instruction& instruction, isa::Engine engine,
                                   const isa::Program& program, const CoreConfig& core);

}  // namespace trellis::sim
