#pragma once

#include <string>
#include <type_traits>

#include <c10/util/Exception.h>

#include "base/error.h"

/// The border of every library that implements device/plugin.h: no exception passes it.
namespace trellis::device {

struct PluginError {
  ExitCode code = ExitCode::kOk;
  std::string text;
};

/// The error of the calling thread's last call.
inline PluginError& plugin_error() {
  thread_local PluginError error;
  return error;
}

inline int failed(ExitCode code, const std::string& text) {
  plugin_error() = {code, text};
  return -1;
}

/// Runs `body`; its errors become a text and an exit code for last_error().
template <typename Body>
auto guarded(Body body) -> std::invoke_result_t<Body> {
  plugin_error() = {};
  try {
    return body();
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const c10::OutOfMemoryError& error) {
    return failed(ExitCode::kDoesNotFit, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return failed(ExitCode::kInternal, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(ExitCode::kInternal, error.what());
  }
}

/// The plugin's member `last_error`.
inline const char* last_plugin_error(int* exit_code) {
  if (exit_code != nullptr) *exit_code = static_cast<int>(plugin_error().code);
  return plugin_error().text.c_str();
}

}  // namespace trellis::device
