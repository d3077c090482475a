#pragma once

#include <systemc>
#include <tlm>
#include <tlm_utils/multi_passthrough_target_socket.h>

#include "sim/mem/bandwidth_server.h"

namespace trellis::sim {

/// One core's share of its chip's HBM, as the DMA engines see it: bandwidth, first come first served. Latency is part of the DMA's fixed
/// latency; banks, refresh and a neighbour core's traffic are left out. Timing only: payloads carry no data.
class Hbm final : public sc_core::sc_module {
 public:
  tlm_utils::multi_passthrough_target_socket<Hbm> target{"target"};

  explicit Hbm(const sc_core::sc_module_name& name);
  void configure(BytesPerSecond bandwidth) { channel_.configure(bandwidth); }
  void reset(std::int64_t now) { channel_.reset(now); }

 private:
  void b_transport(int port, tlm::tlm_generic_payload& payload, sc_core::sc_time& delay);

  BandwidthServer channel_;
};

}  // namespace trellis::sim
