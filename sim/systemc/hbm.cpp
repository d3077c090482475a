#include "sim/systemc/hbm.h"

namespace trellis::sim {

Hbm::Hbm(const sc_core::sc_module_name& name) : sc_module(name) {
  target.register_b_transport(this, &Hbm::b_transport);
}

void Hbm::b_transport(int, tlm::tlm_generic_payload& payload, sc_core::sc_time& delay) {
  const auto now = static_cast<std::int64_t>(sc_core::sc_time_stamp().value());
  const std::int64_t arrival = now + static_cast<std::int64_t>(delay.value());
  const std::int64_t done = channel_.finish_time(arrival, payload.get_data_length());
  delay = sc_core::sc_time::from_value(static_cast<sc_dt::uint64>(done - now));
  payload.set_response_status(tlm::TLM_OK_RESPONSE);
}

}  // namespace trellis::sim
