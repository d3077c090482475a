#include "runtime/rendezvous/stop_request.h"

#include <atomic>

namespace trellis::runtime {
namespace {

// A signal handler may only touch a lock-free flag; signals belong to the process, so this does
// too.
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void request_stop() { stop_flag.store(true, std::memory_order_relaxed); }
void clear_stop_request() { stop_flag.store(false, std::memory_order_relaxed); }
bool stop_requested() { return stop_flag.load(std::memory_order_relaxed); }

}  // namespace trellis::runtime
