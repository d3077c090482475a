#include "trainer/data/tokenizers/json_reader.h"

#include "trainer/data/mapped_file.h"

namespace trellis::trainer {

nlohmann::json read_json_file(const std::string& file) {
  const MappedFile mapped(file);
  try {
    return nlohmann::json::parse(mapped.text());
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(file + ": this is no JSON: " + error.what());
  }
}

}  // namespace trellis::trainer
