#include "sim/neuron_core/ports.h"

#include <gtest/gtest.h>

#include "sim/config/load_system.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;
using isa::testing::tile;

constexpr std::uint32_t kSbufPort = 0, kPsumPort = 1;

class PortsTest : public ::testing::Test {
 protected:
  PortSet ports(Engine engine, const AccessPattern& dst, const AccessPattern& src0) {
    Instruction i;
    i.opcode = Opcode::kTensorCopy;
    i.dst = dst;
    i.src0 = src0;
    return shared_ports(i, engine, program_, core_);
  }
  void use(const char* instance) { core_ = load_system(instance).chip.core; }

  isa::Program program_ = [] {
    isa::Program p;
    p.buffers = {{MemorySpace::kSbuf, "a", 0, -1, 0, 128, 65536, 0},
                 {MemorySpace::kPsum, "c", 0, -1, 0, 128, 8192, 4096}};
    return p;
  }();
  CoreConfig core_;
  AccessPattern sbuf_ = tile(kSbufPort, DType::kFp32, 128, 64);
  AccessPattern bf16_ = tile(kSbufPort, DType::kBf16, 128, 64);
  AccessPattern psum_ = tile(kPsumPort, DType::kFp32, 128, 512);
};

TEST_F(PortsTest, EnginesOfV2ShareWholeMemories) {
  use("trn1.32xlarge");
  EXPECT_EQ(ports(Engine::kVector, sbuf_, sbuf_), kSbufVectorGpSimd);
  EXPECT_EQ(ports(Engine::kGpSimd, sbuf_, sbuf_), kSbufVectorGpSimd);
  EXPECT_EQ(ports(Engine::kScalar, sbuf_, sbuf_), 0u);
  EXPECT_EQ(ports(Engine::kVector, sbuf_, psum_), kSbufVectorGpSimd | kPsumVectorScalar);
  EXPECT_EQ(ports(Engine::kScalar, sbuf_, psum_), kPsumVectorScalar);
}

TEST_F(PortsTest, OnlyPerfModesOfV3NeedTheGpSimdBus) {
  use("trn2.48xlarge");
  const AccessPattern words = tile(kSbufPort, DType::kInt32, 128, 64);
  EXPECT_EQ(ports(Engine::kVector, words, words), 0u);
  EXPECT_EQ(ports(Engine::kVector, sbuf_, psum_) & kSbufVectorGpSimd, 0u);
  EXPECT_EQ(ports(Engine::kVector, sbuf_, sbuf_), kSbufVectorGpSimd);
  EXPECT_EQ(ports(Engine::kVector, bf16_, bf16_), kSbufVectorGpSimd);
  EXPECT_EQ(ports(Engine::kGpSimd, bf16_, bf16_), kSbufVectorGpSimd);
}

TEST_F(PortsTest, BanksOfV3AreTakenOneByOne) {
  use("trn2.48xlarge");
  // The buffer starts in bank 2.
  EXPECT_EQ(ports(Engine::kVector, sbuf_, psum_), 1u << 2);
  psum_.offset = 256;
  EXPECT_EQ(ports(Engine::kScalar, sbuf_, psum_), (1u << 2) | (1u << 3));
  EXPECT_EQ(ports(Engine::kTensor, psum_, sbuf_), 0u);
}

TEST_F(PortsTest, ARingOverBanksCollidesWithNone) {
  use("trn2.48xlarge");
  psum_.rotate_count = 2;
  psum_.rotate_stride = 512;
  EXPECT_EQ(ports(Engine::kVector, sbuf_, psum_), 0u);
}

}  // namespace
}  // namespace trellis::sim
