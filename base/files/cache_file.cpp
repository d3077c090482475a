#include "base/files/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/byte_codec.h"
#include "base/check.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/log.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "trellis cache file 1\n";

class Descriptor {
 public:
  /// Without waiting for the writer of a pipe.
  explicit Descriptor(const fs::path& file)
      : number_(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

/// At most `size` bytes; fewer at the end or after an error.
std::string read_bytes(int descriptor, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(descriptor, bytes.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

/// Everything before the payload.
std::string head_of(std::string_view schema, const ContentHash& key, std::string_view payload) {
  ContentHasher hasher;
  hasher.text(schema);
  hasher.value(key.high);
  hasher.value(key.low);
  hasher.text(payload);
  const ContentHash checksum = hasher.finish();
  ByteWriter head;
  head(schema);
  for (const std::uint64_t word : {key.high, key.low, checksum.high, checksum.low}) head(word);
  return std::string(kMagic) + head.bytes();
}

std::nullopt_t miss(const fs::path& file, const std::string& reason) {
  log_warning(file.string() + ": a cached result is ignored and made again: " + reason);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> read_cache_file(const fs::path& file, std::string_view schema,
                                           const ContentHash& key) {
  const Descriptor descriptor(file);
  if (descriptor.number() < 0)
    return errno == ENOENT ? std::nullopt : miss(file, std::strerror(errno));
  struct stat status{};
  if (::fstat(descriptor.number(), &status) != 0 || !S_ISREG(status.st_mode))
    return miss(file, "not a regular file");
  const std::size_t head_size = head_of(schema, key, {}).size();
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size < head_size || size > kMostCacheBytes + head_size)
    return miss(file, "not a cache file of " + std::string(schema) + " by its size");
  const std::string head = read_bytes(descriptor.number(), head_size);
  std::string payload = read_bytes(descriptor.number(), size - head_size);
  if (head.size() + payload.size() != size) return miss(file, "it cannot be read");
  if (head_of(schema, key, payload) != head)
    return miss(file, "damaged, or of another key, version or program");
  return payload;
}

std::optional<MappedPayload> map_cache_file(const fs::path& file, std::string_view schema,
                                            const ContentHash& key) {
  if (std::error_code error; fs::symlink_status(file, error).type() == fs::file_type::not_found)
    return std::nullopt;
  MappedPayload found;
  try {
    found.file = MappedFile(file);
  } catch (const ConfigError& unreadable) {
    return miss(file, unreadable.what());
  }
  const std::size_t head_size = head_of(schema, key, {}).size();
  const std::string_view text = found.file.text();
  if (text.size() < head_size || text.size() > kMostCacheBytes + head_size)
    return miss(file, "not a cache file of " + std::string(schema) + " by its size");
  found.payload = text.substr(head_size);
  if (head_of(schema, key, found.payload) != text.substr(0, head_size))
    return miss(file, "damaged, or of another key, version or program");
  return found;
}

void write_cache_file(const fs::path& file, std::string_view schema, const ContentHash& key,
                      std::string_view payload) {
  TRELLIS_CHECK(payload.size() <= kMostCacheBytes, "a cached result that could not be read again");
  // A pipe or a device in its place would be written into, and waited for.
  std::error_code error;
  const fs::file_status there = fs::symlink_status(file, error);
  if (fs::is_other(there)) fs::remove(file, error);
  AtomicFile out(file);
  const std::string head = head_of(schema, key, payload);
  out.stream().write(head.data(), static_cast<std::streamsize>(head.size()));
  out.stream().write(payload.data(), static_cast<std::streamsize>(payload.size()));
  out.commit(AtomicFile::Durability::kProcess);
}

bool is_cache_file(const fs::path& file) {
  std::error_code error;
  if (fs::symlink_status(file, error).type() != fs::file_type::regular) return false;
  const Descriptor descriptor(file);
  return descriptor.number() >= 0 && read_bytes(descriptor.number(), kMagic.size()) == kMagic;
}

}  // namespace trellis
