#include "trainer/files/checkpoint/conversion/open_checkpoint.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/conversion/format_table.h"
#include "trainer/files/checkpoint/formats/full/full_source.h"
#include "trainer/files/checkpoint/formats/hugging_face/hugging_face_source.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"

namespace trellis::checkpoint {
namespace {

constexpr std::size_t kMostNames = 12;

const Format kFormats[] = {
    {"trellis", "manifest.json, or the file `checkpoint`",
     [](const Place& place) {
       return place.has(native::kManifestFile) ||
              (place.has(native::kBeginFile) && !nxd::is_nxd_folder(place));
     },
     [](const Place& place) -> std::unique_ptr<TensorSource> {
       return std::make_unique<native::NativeSource>(place);
     }},
    {"nxd", "model/ without manifest.json, or tp_rank_00_pp_rank_00, of NxD, NxDT or NNM",
     &nxd::is_nxd_folder,
     [](const Place& place) -> std::unique_ptr<TensorSource> {
       throw ConfigError(
           place.address() +
           ": a checkpoint of NxD, NxDT or NNM: what its tensors are parts of follows "
           "from a configuration: convert it with `trellis checkpoint convert "
           "--to native --config YAML`");
     }},
    {"hugging_face", "config.json next to model.safetensors, pytorch_model.bin or their index",
     &hugging_face::is_hub_folder,
     [](const Place& place) -> std::unique_ptr<TensorSource> {
       return std::make_unique<hugging_face::HuggingFaceSource>(place);
     }},
    {"megatron", "metadata.json next to .metadata, of megatron.core.dist_checkpointing",
     &megatron::is_at,
     [](const Place& place) -> std::unique_ptr<TensorSource> {
       return std::make_unique<megatron::MegatronSource>(place);
     }},
    {"full", "checkpoint.pt, or a file *.pt with a dict of tensors",
     [](const Place& place) { return !full::file_at(place).empty(); },
     [](const Place& place) -> std::unique_ptr<TensorSource> {
       return std::make_unique<full::FullSource>(place);
     }},
};

/// "a.txt, b/, …"
std::string contents_of(const Place& place) {
  std::vector<Entry> entries;
  try {
    entries = place.storage->list(place.path, /*recursive=*/false);
  } catch (const ConfigError&) {
    return place.storage->exists(place.path) ? "a file" : "nothing";
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(entries.size(), kMostNames); ++i) {
    std::string name = entries[i].path;
    if (!place.path.empty()) name.erase(0, place.path.size() + 1);
    text += (i == 0 ? "" : ", ") + terminal_line(name) + (entries[i].is_directory ? "/" : "");
  }
  if (entries.size() > kMostNames) text += ", …";
  return text.empty() ? "an empty folder" : text;
}

[[noreturn]] void refuse(const Place& place) {
  std::string expected;
  for (const Format& format : kFormats)
    expected +=
        std::string(expected.empty() ? "" : "; ") + format.name + " (" + format.evidence + ")";
  throw ConfigError(place.address() + ": is no checkpoint of a known format: expected " + expected +
                    "; found " + contents_of(place) + "; correct the path");
}

}  // namespace

std::span<const Format> format_table() { return kFormats; }

std::unique_ptr<TensorSource> open_checkpoint(const std::string& address) {
  const Place place = open_place(address);
  for (const Format& format : kFormats) {
    if (format.is_at(place)) return format.open(place);
  }
  refuse(place);
}

}  // namespace trellis::checkpoint
