#pragma once

#include <systemc>
#include <tlm>
#include <tlm_utils/multi_passthrough_target_socket.h>
#include <vector>

#include "sim/mem/bandwidth_server.h"

namespace trellis::sim {

/// One HBM stack as the DMA engines of its cores see it: bandwidth, first come first served. Reads
/// and writes count alike; an initiator whose rows use a part of the channels asks for
/// proportionally more bytes. Latency is part of the DMA's; banks and refresh are left out. Timing
/// only: payloads carry no data.
class Hbm final : public sc_core::sc_module {
 public:
  tlm_utils::multi_passthrough_target_socket<Hbm> target{"target"};

  explicit Hbm(const sc_core::sc_module_name& name);
  void configure(BytesPerSecond bandwidth) { channel_.configure(bandwidth); }
  void reset(std::int64_t now) { channel_.reset(now); }

  /// How long the stack is busy from `now` on.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
    out.push_back(std::max<std::int64_t>(channel_.free_at() - now, 0));
  }

 private:
  void b_transport(int port, tlm::tlm_generic_payload& payload, sc_core::sc_time& delay);

  BandwidthServer channel_;
};

}  // namespace trellis::sim
