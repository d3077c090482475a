#include "trainer/files/checkpoint/storage/open_storage.h"

#include <dlfcn.h>

#include "base/address.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/files/shared_files.h"
#include "trainer/files/checkpoint/storage/local_storage.h"
#include "trainer/files/checkpoint/storage/s3_request.h"

namespace trellis::checkpoint {
namespace {

std::shared_ptr<Storage> open_s3(const std::string& address) {
  static const auto open = [] {
    void* library = dlopen(installed_library("libtrellis_s3.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    void* symbol = library == nullptr ? nullptr : dlsym(library, "trellis_open_s3_storage");
    if (symbol == nullptr)
      throw Error(ExitCode::kInternal, "cannot load the S3 library: " + std::string(dlerror()) +
                                           "; build the target trellis_s3");
    return reinterpret_cast<trellis_open_s3_storage_fn>(symbol);
  }();
  std::shared_ptr<Storage> storage;
  open(address, storage);
  return storage;
}

}  // namespace

std::shared_ptr<Storage> open_storage(const std::string& address) {
  if (address.empty() || address.find('\0') != std::string::npos)
    throw ConfigError("checkpoint address '" + terminal_line(address) +
                      "': expected a folder or s3://bucket/prefix");
  refuse_keys(address);
  if (address.starts_with("s3://")) return open_s3(address);
  if (const std::size_t scheme = address.find("://"); scheme != std::string::npos) {
    throw ConfigError("checkpoint address '" + terminal_line(address) + "': cannot read '" +
                      terminal_line(address.substr(0, scheme)) +
                      "://'; expected a folder or s3://bucket/prefix");
  }
  return open_local_storage(address);
}

}  // namespace trellis::checkpoint
