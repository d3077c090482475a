#pragma once

#include <string>
#include <string_view>

/// Addresses such as s3://bucket/prefix, which may not carry what only their user may know.
namespace trellis {

/// True if an address in `text` has keys: "s3://KEY:SECRET@bucket/…", "https://user:word@host/…",
/// or a query with a parameter such as secret_key.
[[nodiscard]] bool has_keys(std::string_view text);
/// `text` without them: "s3://bucket/…". Each message of the program and each text of a saved
/// configuration goes through it.
[[nodiscard]] std::string without_keys(std::string_view text);
/// Advice for the error text of a function that refuses keys: where they belong instead.
extern const char* const kKeysAdvice;
/// Throws ConfigError that names `address` without its keys, and the environment they belong in.
void refuse_keys(const std::string& address);

}  // namespace trellis
