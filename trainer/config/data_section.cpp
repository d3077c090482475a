#include "trainer/config/sections.h"

namespace trellis::trainer {

DataSection read_data(SectionReader& reader) {
  DataSection section;
  section.micro_batch_size = reader.required_positive("micro_batch_size");
  section.global_batch_size = reader.required_positive("global_batch_size");
  section.train_dir = reader.get<std::string>("train_dir", "");
  SectionReader tokenizer = reader.section("tokenizer");
  section.tokenizer_library = tokenizer.one_of("library", section.tokenizer_library, {"byte-level"},
                                               {"huggingface", "megatron", "sentencepiece", "regex", "tiktoken", "tabular"});
  return section;
}

}  // namespace trellis::trainer
