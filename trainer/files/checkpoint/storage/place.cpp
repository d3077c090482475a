#include "trainer/files/checkpoint/storage/place.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/address.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::checkpoint {
namespace {

constexpr std::string_view kS3 = "s3://";

/// Around the last part: its parent's address and its name.
std::pair<std::string, std::string> split_s3(const std::string& address) {
  const std::size_t query = std::min(address.find('?'), address.size());
  std::string path = address.substr(0, query);
  while (path.size() > kS3.size() && path.ends_with('/')) path.pop_back();
  const std::size_t slash = path.rfind('/');
  if (slash < kS3.size()) return {path + address.substr(query), ""};
  return {path.substr(0, slash) + address.substr(query), path.substr(slash + 1)};
}

std::pair<std::string, std::string> split_local(const std::string& address) {
  namespace fs = std::filesystem;
  fs::path path = fs::path(address).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.filename() == "." || path.filename() == "..")
    path = fs::absolute(path).lexically_normal();
  const std::string parent = path.parent_path().string();
  return {parent.empty() ? "." : parent, path.filename().string()};
}

}  // namespace

std::string Place::address() const { return join_path(storage->address(), path); }

bool Place::has(const std::string& name) const { return storage->exists(join_path(path, name)); }

Place open_place(const std::string& address) {
  refuse_keys(address);
  const bool is_plain = !address.empty() && address.find('\0') == std::string::npos;
  const auto [parent, name] = address.starts_with(kS3) ? split_s3(address)
                              : is_plain && address.find("://") == std::string::npos
                                  ? split_local(address)
                                  : std::pair{address, std::string()};
  return {open_storage(parent), name};
}

}  // namespace trellis::checkpoint
