#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace trellis::cli {

/// Keys that `--accept-difference` named.
using AcceptedKeys = std::shared_ptr<std::vector<std::string>>;

[[nodiscard]] inline AcceptedKeys add_accept_option(CLI::App& verb) {
  auto accepted = std::make_shared<std::vector<std::string>>();
  verb.add_option("--accept-difference", *accepted,
                  "a property in which the model may differ from what the checkpoint says, as the "
                  "error names it; once for each (exp_manager.accept_differences)")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->check([](const std::string& key) {
        const bool is_key =
            !key.empty() && key.find_first_not_of(
                                "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == std::string::npos;
        return is_key ? std::string()
                      : "expected a key such as model.rope_theta, got '" + key + "'";
      });
  return accepted;
}

/// As an override of the configuration, where there are some.
inline void add_accepted(const AcceptedKeys& accepted, std::vector<std::string>& overrides) {
  if (accepted->empty()) return;
  std::string list;
  for (const std::string& key : *accepted) list += (list.empty() ? "" : ", ") + key;
  overrides.push_back("exp_manager.accept_differences=[" + list + "]");
}

}  // namespace trellis::cli
