#include "device/driver/timing/timing_cache.h"

#include <link.h>

#include <algorithm>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/cache_file.h"
#include "base/log.h"

namespace trellis::device {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSchema = "trellis.timed_piece/2";

/// Every number that may decide how long a program takes on a core.
ContentHash hash_of(const sim::SystemConfig& system) {
  ContentHasher h;
  h.text(system.instance.name);
  h.value(system.instance.logical_core_size);
  for (const sim::Parameter& parameter : system.parameters) {
    if (parameter.key.starts_with(sim::kSoftwarePrefix)) continue;
    h.text(parameter.key);
    h.text(parameter.value);
  }
  h.text(build_id());
  return h.finish();
}

/// One loaded binary's notes, searched for the build id when `address` lies in it.
struct NoteSearch {
  std::uintptr_t address = 0;
  std::string id;
};

void search_notes(const char* notes, std::size_t size, NoteSearch& search) {
  const auto padded = [](std::size_t n) { return (n + 3) / 4 * 4; };
  for (std::size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(notes + at);
    const std::size_t text = at + sizeof *note + padded(note->n_namesz);
    if (text + note->n_descsz > size) return;
    if (note->n_type == NT_GNU_BUILD_ID &&
        std::string_view(notes + at + sizeof *note, note->n_namesz) ==
            std::string_view("GNU\0", 4)) {
      for (std::size_t i = 0; i < note->n_descsz; ++i)
        search.id += fmt::format("{:02x}", static_cast<unsigned char>(notes[text + i]));
      return;
    }
    at = text + padded(note->n_descsz);
  }
}

int search_binary(dl_phdr_info* binary, std::size_t, void* data) {
  NoteSearch& search = *static_cast<NoteSearch*>(data);
  const auto headers = std::span(binary->dlpi_phdr, binary->dlpi_phnum);
  const auto holds = [&](const ElfW(Phdr) & h) {
    const std::uintptr_t begin = binary->dlpi_addr + h.p_vaddr;
    return h.p_type == PT_LOAD && search.address >= begin && search.address < begin + h.p_memsz;
  };
  if (std::none_of(headers.begin(), headers.end(), holds)) return 0;
  for (const ElfW(Phdr) & h : headers) {
    if (h.p_type == PT_NOTE && search.id.empty())
      search_notes(reinterpret_cast<const char*>(binary->dlpi_addr + h.p_vaddr), h.p_memsz, search);
  }
  return 1;
}

}  // namespace

std::string build_id() {
  NoteSearch search{reinterpret_cast<std::uintptr_t>(&build_id), {}};
  dl_iterate_phdr(search_binary, &search);
  return search.id;
}

TimingCache::TimingCache(std::optional<fs::path> directory, const sim::SystemConfig& system)
    : machine_(hash_of(system)) {
  // Without an id of the code it is unknown whether a file still holds.
  if (directory && !build_id().empty()) directory_ = *directory / "timings" / machine_.to_string();
}

fs::path TimingCache::file_of(const ContentHash& piece) const {
  return *directory_ / piece.to_string();
}

ContentHash TimingCache::key_of(const ContentHash& piece) const {
  ContentHasher hasher;
  for (const ContentHash& part : {machine_, piece}) {
    hasher.value(part.high);
    hasher.value(part.low);
  }
  return hasher.finish();
}

std::optional<TimedPiece> TimingCache::load(const ContentHash& piece) const {
  if (!directory_) return std::nullopt;
  const std::optional<std::string> bytes = read_cache_file(file_of(piece), kSchema, key_of(piece));
  if (!bytes) return std::nullopt;
  std::optional<TimedPiece> timed = decode(*bytes);
  if (!timed)
    log_warning(fmt::format("{}: a cached result is ignored and made again: no timed piece",
                            file_of(piece).string()));
  return timed;
}

void TimingCache::store(const ContentHash& piece, const TimedPiece& timed) {
  if (!directory_) return;
  try {
    write_cache_file(file_of(piece), kSchema, key_of(piece), encode(timed));
  } catch (const Error& error) {
    log_warning(
        fmt::format("timings cannot be kept, so the next run makes them again: {}; set "
                    "TRELLIS_CACHE to another directory, or to off",
                    error.what()));
    directory_.reset();
  }
}

}  // namespace trellis::device
