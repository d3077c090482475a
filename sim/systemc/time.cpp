#include "sim/systemc/time.h"

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>

#include <sanitizer/common_interface_defs.h>
#endif

namespace trellis::sim {
namespace {

/// SystemC notifies AddressSanitizer of its fibres, but not the bounds of the thread that it
/// returns to: an exception thrown afterwards would be reported as a stack overflow. Tell them.
void restore_stack_bounds() {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  void* bottom = nullptr;
  std::size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  pthread_attr_getstack(&attributes, &bottom, &size);
  pthread_attr_destroy(&attributes);
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, bottom, size);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

}  // namespace

void elaborate_once() {
  if (sc_core::sc_get_status() != sc_core::SC_ELABORATION) return;
  sc_core::sc_start(sc_core::SC_ZERO_TIME);
  restore_stack_bounds();
}

void run_until_idle() {
  if (sc_core::sc_pending_activity()) sc_core::sc_start();
  restore_stack_bounds();
}

}  // namespace trellis::sim
