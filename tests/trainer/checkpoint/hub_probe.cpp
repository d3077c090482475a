#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_writer.h"
#include "trainer/files/checkpoint/formats/hugging_face/hugging_face_source.h"
#include "trainer/files/checkpoint/plan/boxes.h"

/// For hugging_face_oracle.py: says what a folder holds as native tensors, and writes it again.
namespace trellis::checkpoint::hugging_face {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  return text;
}

std::string content(const TensorSource& source, const TensorEntry& entry, const Box& box) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(box.elements() * element_bytes(entry.dtype)));
  source.read(entry, box, bytes);
  return hex(bytes);
}

/// dump FOLDER: every tensor as a whole, and the middle of each along each axis.
void dump(const Arguments& arguments) {
  const HuggingFaceSource source(open_place(arguments.at(0)));
  json tensors = json::object();
  for (const TensorEntry& entry : source.tensors()) {
    const Box whole{Shape(entry.shape.size(), 0), entry.shape};
    Box middle = whole;
    for (std::size_t axis = 0; axis < entry.shape.size(); ++axis) {
      middle.offset[axis] = entry.shape[axis] / 3;
      middle.shape[axis] = entry.shape[axis] / 2;
    }
    tensors[entry.key] = {{"dtype", name(entry.dtype)},
                          {"shape", entry.shape},
                          {"data", content(source, entry, whole)},
                          {"middle", content(source, entry, middle)}};
  }
  std::cout << tensors.dump() << "\n";
}

/// export FOLDER CONFIG OUT BYTES [DTYPE]
void export_again(const Arguments& arguments) {
  const HuggingFaceSource source(open_place(arguments.at(0)));
  const Place config = open_place(arguments.at(1));
  ExportOptions options{.config_text = config.storage->read_text(config.path),
                        .config_place = config.address(),
                        .max_shard_bytes = std::stoll(arguments.at(3))};
  if (arguments.size() > 4) options.dtype = dtype_named(arguments[4]);
  write_export(source, plan_export(source, options), {{"config.json", options.config_text}},
               open_place(arguments.at(2)));
}

}  // namespace
}  // namespace trellis::checkpoint::hugging_face

int main(int count, char** values) {
  using namespace trellis::checkpoint::hugging_face;
  const std::map<std::string, std::function<void(const Arguments&)>> commands{
      {"dump", dump}, {"export", export_again}};
  try {
    commands.at(values[1])(Arguments(values + 2, values + count));
    return 0;
  } catch (const trellis::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
