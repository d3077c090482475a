#include "sim/profile/xz.h"

#include <fmt/format.h>
#include <lzma.h>

#include <memory>

#include "base/error.h"

namespace trellis::sim {
namespace {

constexpr std::uint64_t kDecoderMemory = std::uint64_t{256} << 20;
constexpr std::size_t kPiece = std::size_t{1} << 20;

std::string reason(lzma_ret code) {
  switch (code) {
    case LZMA_DATA_ERROR: return "its data are damaged";
    case LZMA_FORMAT_ERROR: return "it is no xz file";
    case LZMA_OPTIONS_ERROR: return "it uses options of xz that are not known here";
    case LZMA_MEMLIMIT_ERROR: return "its dictionary is larger than 256 MiB";
    case LZMA_MEM_ERROR: return "memory is exhausted";
    default: return "it ends in the middle of its data: the file is cut off";
  }
}

}  // namespace

bool is_xz(std::string_view bytes) {
  return bytes.starts_with(
      std::string_view("\xFD"
                       "7zXZ\0",
                       6));
}

std::string unpack_xz(std::string_view bytes, const std::string& where, std::size_t most) {
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, decltype(&lzma_end)> owner(&stream, lzma_end);
  if (const lzma_ret code = lzma_stream_decoder(&stream, kDecoderMemory, LZMA_CONCATENATED);
      code != LZMA_OK)
    throw ConfigError(fmt::format("{}: cannot unpack: {}", where, reason(code)));
  stream.next_in = reinterpret_cast<const std::uint8_t*>(bytes.data());
  stream.avail_in = bytes.size();
  std::string out;
  for (;;) {
    const std::size_t before = out.size();
    out.resize(before + kPiece);
    stream.next_out = reinterpret_cast<std::uint8_t*>(out.data()) + before;
    stream.avail_out = kPiece;
    const lzma_ret code = lzma_code(&stream, LZMA_FINISH);
    out.resize(before + kPiece - stream.avail_out);
    if (code == LZMA_STREAM_END) return out;
    if (code != LZMA_OK)
      throw ConfigError(fmt::format("{}: cannot unpack: {}", where, reason(code)));
    if (out.size() > most)
      throw ConfigError(
          fmt::format("{}: unpacks to more than {} MiB; expected a profile of one "
                      "core's program",
                      where, most >> 20));
  }
}

}  // namespace trellis::sim
