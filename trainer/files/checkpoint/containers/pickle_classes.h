#pragma once

#include <string>

namespace trellis::checkpoint {

/// True if any pickle may name the class: plain data of Python, torch and NumPy.
[[nodiscard]] bool is_plain_class(const std::string& name);

/// The name that Python 3 has for a class which Python 2 and protocol 2 name otherwise.
[[nodiscard]] std::string python3_name(const std::string& module, const std::string& name);

/// Module and name as protocol 2 writes them.
struct PickledName {
  std::string module, name;
};
[[nodiscard]] PickledName protocol2_name(const std::string& class_name);

}  // namespace trellis::checkpoint
