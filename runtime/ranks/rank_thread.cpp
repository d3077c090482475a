#include "runtime/ranks/rank_thread.h"

#include <algorithm>
#include <cstring>

#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "runtime/hangs/crash.h"

namespace trellis::runtime {
namespace {
constexpr std::size_t kStackBytes = 8 * 1024 * 1024;
}

RankThread::RankThread(std::function<void()> body) : body_(std::move(body)) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  std::size_t stack = 0;
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_setstacksize(&attributes, std::max(stack, kStackBytes));
  const auto run = [](void* self) -> void* {
    const SignalStack signal_stack;
    static_cast<RankThread*>(self)->body_();
    return nullptr;
  };
  const int error = pthread_create(&thread_, &attributes, run, this);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    throw Error(ExitCode::kInternal,
                c10::str("cannot start a rank's thread: ", std::strerror(error),
                         ": raise the limit on threads or address space, or run fewer ranks"));
  }
}

RankThread::~RankThread() { pthread_join(thread_, nullptr); }

}  // namespace trellis::runtime
