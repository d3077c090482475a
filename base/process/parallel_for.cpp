#include "base/process/parallel_for.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trellis {

void parallel_for(std::size_t count, std::size_t workers,
                  const std::function<void(std::size_t)>& run,
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
      while (done && ended[reported]) done(reported++);
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t worker = 1; worker < std::min(workers, count); ++worker)
      others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

std::size_t host_cores() { return std::max(1U, std::thread::hardware_concurrency()); }

}  // namespace trellis
