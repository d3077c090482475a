#include "trainer/files/data/tokenizers/json_reader.h"

#include "base/files/mapped_file.h"
#include "base/json/json_text.h"

namespace trellis::trainer {

nlohmann::json read_json_file(const std::string& file) {
  const MappedFile mapped(file);
  return parse_json(mapped.text(), file, "a file of a tokenizer");
}

}  // namespace trellis::trainer
