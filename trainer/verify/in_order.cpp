#include "trainer/verify/in_order.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trellis::trainer {

void run_in_order(std::size_t count, int workers, const std::function<void(std::size_t)>& run,
                  const std::function<void(std::size_t)>& done) {
  std::mutex mutex;
  std::size_t next = 0, first_failed = count, reported = 0;
  std::exception_ptr error;
  std::vector<bool> ended(count + 1, false);
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (!error && next < count) {
      const std::size_t i = next++;
      lock.unlock();
      std::exception_ptr failure;
      try {
        run(i);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && i < first_failed) first_failed = i, error = failure;
      ended[i] = !failure;
      while (ended[reported]) done(reported++);
    }
  };
  {
    std::vector<std::jthread> others;
    for (int worker = 1; worker < workers; ++worker) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace trellis::trainer
