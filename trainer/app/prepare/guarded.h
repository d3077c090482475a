#pragma once

#include <filesystem>
#include <iostream>

#include <c10/util/Exception.h>

#include "base/activity.h"
#include "base/error.h"
#include "base/files/partial_files.h"
#include "trainer/app/prepare/failed_allocation.h"

namespace trellis::trainer {

/// Calls `body` at the border of the library: what it throws becomes a text on stderr and an exit
/// code.
template <typename Body>
int guarded(Body body) {
  const Activity activity("starting");
  const RemovesPartialFiles on_signals;
  try {
    return body();
  } catch (const trellis::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  } catch (const c10::NotImplementedError&
               error) {  // the device names an operator, its place and what to do
    std::cerr << "error: " << error.what_without_backtrace() << "\n";
    return static_cast<int>(ExitCode::kConfig);
  } catch (const c10::Error& error) {
    if (const auto failed = failed_allocation(error)) {
      std::cerr << "error: " << failed->what() << "\n";
      return static_cast<int>(failed->code());
    }
    std::cerr << "internal error: " << error.what_without_backtrace() << "\n";
    return static_cast<int>(ExitCode::kInternal);
  } catch (
      const std::filesystem::filesystem_error& error) {  // a path that cannot be used: its user's
    std::cerr << "error: " << error.path1().string() << ": " << error.code().message() << "\n";
    return static_cast<int>(ExitCode::kConfig);
  } catch (const std::exception& error) {
    if (const auto failed = failed_allocation(error)) {
      std::cerr << "error: " << failed->what() << "\n";
      return static_cast<int>(failed->code());
    }
    std::cerr << "internal error: " << error.what() << "\n";
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace trellis::trainer
