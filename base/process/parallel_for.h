#pragma once

#include <cstddef>
#include <functional>

namespace trellis {

/// run(0) … run(count − 1), up to `workers` at a time and begun in this order, then `done(i)`, if
/// there is one, for each, one at a time and in this order too. The caller's thread is a worker.
/// After an error none begins any more, and the error of the first of those that failed is thrown
/// when the others have ended.
void parallel_for(std::size_t count, std::size_t workers,
                  const std::function<void(std::size_t)>& run,
                  const std::function<void(std::size_t)>& done = {});

/// As many workers as the host has cores, at least one.
[[nodiscard]] std::size_t host_cores();

}  // namespace trellis
