#include "trainer/files/checkpoint/adapters/peft_source.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/adapters/peft_folder.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/plan/boxes.h"

namespace trellis::checkpoint::adapters {
namespace {

constexpr std::string_view kModelPrefix = "base_model.model.";
constexpr std::string_view kEmbeddingA = ".lora_embedding_A", kEmbeddingB = ".lora_embedding_B";

/// `from` [columns, rows] as [rows, columns].
void transpose(std::span<const std::byte> from, std::span<std::byte> into, std::size_t rows,
               std::size_t columns, std::size_t width) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column)
      std::copy_n(&from[(column * rows + row) * width], width,
                  &into[(row * columns + column) * width]);
  }
}

}  // namespace

bool PeftSource::is_at(const Place& place) { return place.has(kAdapterWeightsFile); }

PeftSource::PeftSource(const Place& place)
    : file_(
          native::with_checksums(place).storage->open(join_path(place.path, kAdapterWeightsFile))) {
  for (const SafetensorsEntry& entry : file_.tensors()) add(entry);
  std::ranges::sort(tensors_, {}, &TensorEntry::key);
}

void PeftSource::add(const SafetensorsEntry& entry) {
  const std::string where = address() + ": " + terminal_line(entry.name);
  if (!entry.name.starts_with(kModelPrefix))
    throw ConfigError(where + ": expected a name that begins with " + std::string(kModelPrefix));
  if (entry.name.find(".lora_magnitude_vector") != std::string::npos)
    throw ConfigError(where + ": weight-decomposed adapters (DoRA) are not supported");
  std::string key = entry.name.substr(kModelPrefix.size());
  // PEFT saves the whole embedding next to its adapter; training changes the adapter alone.
  if (key.find(".base_layer.") != std::string::npos) return;
  bool transposed = false;
  for (const auto& [end, name] :
       {std::pair{kEmbeddingA, ".lora_A.weight"}, std::pair{kEmbeddingB, ".lora_B.weight"}}) {
    if (!key.ends_with(end)) continue;
    transposed = end == kEmbeddingA;
    key.replace(key.size() - end.size(), end.size(), name);
  }
  Shape shape = entry.meta.shape;
  if (transposed) std::ranges::reverse(shape);
  stored_.emplace(key, Stored{&entry, transposed});
  tensors_.push_back({key, entry.meta.dtype, std::move(shape)});
}

void PeftSource::read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const {
  const auto& [entry, transposed] = stored_.at(tensor.key);
  Box there = box;
  if (transposed) {
    std::ranges::reverse(there.offset);
    std::ranges::reverse(there.shape);
  }
  std::vector<std::byte> bytes(transposed ? into.size() : 0);
  const std::span<std::byte> target = transposed ? std::span(bytes) : into;
  const auto width = static_cast<std::size_t>(element_bytes(tensor.dtype));
  read_box(
      {entry->meta.shape, there.offset, there.shape, Shape(there.shape.size(), 0), there.shape},
      static_cast<std::int64_t>(width),
      [&, stored = entry](std::int64_t first_byte, std::span<std::byte> part) {
        file_.read_bytes(*stored, first_byte, part);
      },
      target);
  if (transposed)
    transpose(bytes, into, static_cast<std::size_t>(box.shape[0]),
              static_cast<std::size_t>(box.shape[1]), width);
}

}  // namespace trellis::checkpoint::adapters
