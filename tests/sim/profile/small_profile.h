#pragma once

#include <string>

#include <nlohmann/json.hpp>

/// A profile of a few instructions: a transfer by Sync, a product of what it brought, a copy of the
/// product by Scalar and a transfer of that by Scalar.
namespace trellis::sim::samples {

inline nlohmann::json instruction(const std::string& label, int pc, int start, int duration,
                                  const std::string& opcode, const std::string& operands,
                                  const std::string& type = "REGULAR") {
  return {{"label", label},       {"subgraph", "sg00"},   {"pc", pc},
          {"timestamp", start},   {"duration", duration}, {"opcode", opcode},
          {"operands", operands}, {"activation_fn", ""},  {"instruction_type", type}};
}

inline nlohmann::json packet(int engine, int queue, int bytes, int start, int duration) {
  return {{"dma_engine", std::to_string(engine)},
          {"dma_queue", std::to_string(queue)},
          {"queue_type", "hardware_dynamic"},
          {"transfer_size", bytes},
          {"timestamp", start},
          {"duration", duration},
          {"subgraph", "sg00"}};
}

inline nlohmann::json small_profile() {
  using nlohmann::json;
  json p;
  p["summary"] = json::array({{{"instance_type", "trn2.3xlarge"}}});
  p["dma_queues_info"] =
      json::array({{{"q_idx", 2}, {"q_name", "qSyncDynamicHW"}, {"subgraph", "sg00"}},
                   {{"q_idx", 0}, {"q_name", "qScalarDynamicHW"}, {"subgraph", "sg00"}}});
  p["ham"] = json::array(
      {{{"timestamp", 0}, {"duration", 3413}, {"k", 4}, {"n", 8}, {"subgraph", "sg00"}}});
  p["instruction"] = json::array(
      {instruction("Sync", 10, 100, 30, "DRAIN", "", ""),
       instruction("Sync", 11, 1000, 530, "DMA_DIRECT2D",
                   " semaphore=8 sem_increment=16  src_elem_size=256 dst_elem_size=256 "
                   "src_pattern=[256,1][128,1] dst_pattern=[262144,1][128,1] "
                   "src_addr_imm=0x800500000000 dst_addr_imm=0x802000000000 compute_op=NONE "),
       instruction("Tensor", 20, 2700, 100, "LDWEIGHTS",
                   " S[8] (qSyncDynamicHW)>=16 transpose_mode=DISABLED "
                   "src=bfloat16@0xfe[-1,0,0][128,1,1] 128*128"),
       instruction("TensorMatrix", 21, 2730, 300, "MATMUL",
                   " S[5] (Tensor)++@complete acc_flags=3 src=bfloat16@0x0[1,0,0][128,1,1] "
                   "dst=0x2000000[1,0,0][128,1,1] 128*128 "),
       instruction("Scalar", 30, 3060, 265, "COPY",
                   " S[5] (Tensor)>=1 S[4] (Scalar)++@complete src=fp32@0x2000000[1,1,1,1]"
                   "[128,1,1,1] dst=fp32@0x4000[1,1,1,1][128,1,1,1] channels=128 "),
       instruction("Scalar", 31, 3360, 530, "DMA_DIRECT2D",
                   " S[4] (Scalar)>=1 semaphore=9 sem_increment=16  src_elem_size=512 "
                   "dst_elem_size=512 src_pattern=[262144,1][128,1] dst_pattern=[512,1][128,1] "
                   "src_addr_imm=0x802000004000 dst_addr_imm=0x800600000000 compute_op=NONE "),
       instruction("GpSimd", 40, 5400, 20, "NOP", " S[9] (qScalarDynamicHW)>=16 cycle=0 ")});
  p["dma"] = json::array();
  for (int engine = 0; engine < 16; ++engine) {
    p["dma"].push_back(packet(engine, 2, 2048, 2330, 160));
    p["dma"].push_back(packet(engine, 2, 4, 2490, 9));
    p["dma"].push_back(packet(engine, 0, 4096, 4580, 180));
    p["dma"].push_back(packet(engine, 0, 4, 4760, 9));
  }
  return p;
}

}  // namespace trellis::sim::samples
