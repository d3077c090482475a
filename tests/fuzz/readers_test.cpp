#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/fuzz/changed_files.h"
#include "tests/support/temporary_directory.h"
#include "trainer/files/data/hf_dataset.h"
#include "trainer/files/data/megatron/gpt_dataset.h"
#include "trainer/files/data/megatron/indexed_dataset_builder.h"
#include "trainer/files/data/text_files.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

/// Whatever bytes are in a data file, its reader answers with data or a ConfigError: no crash, no
/// other exception. Good files are made once; each program changes some bytes of one, cuts it or
/// doubles a part of it, and reads everything.
namespace trellis::fuzz {
namespace {

std::string content_of(const std::filesystem::path& file) { return read_all(file); }

TEST(Readers, MegatronData) {
  const TemporaryDirectory directory;
  const std::string prefix = (directory.path() / "data").string();
  trainer::IndexedDatasetBuilder builder(prefix, trainer::TokenType::kUint16);
  for (int i = 0; i < 20; ++i) {
    builder.add_item(std::vector<std::int32_t>(static_cast<std::size_t>(5 + i), i));
    builder.end_document();
  }
  builder.finalize();
  fuzz_files({prefix + ".idx", prefix + ".bin"}, [&] {
    const trainer::IndexedDataset data(prefix);
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < data.num_sequences(); ++i) {
      tokens.resize(static_cast<std::size_t>(data.size(i)));
      data.read(i, 0, data.size(i), tokens.data());
    }
  });
}

/// Twenty documents, and index maps that are kept in files.
struct MappedData {
  MappedData() {
    const std::string prefix = (directory.path() / "data").string();
    trainer::IndexedDatasetBuilder builder(prefix, trainer::TokenType::kUint16);
    for (int i = 0; i < 20; ++i) {
      builder.add_item(std::vector<std::int32_t>(static_cast<std::size_t>(5 + i), i));
      builder.end_document();
    }
    builder.finalize();
    data = std::make_shared<const trainer::IndexedDataset>(prefix);
    (void)trainer::GptDataset(data, request, options, "");
    maps = trainer::index_map_prefix(*data, request, "");
  }
  /// Reads every sample; throws the last error.
  void read() const {
    const trainer::GptDataset samples(data, request, options, "");
    std::exception_ptr refused;
    for (std::int64_t i = 0; i < samples.num_samples(); ++i) {
      try {
        (void)samples.item(i);
      } catch (const ConfigError&) {
        refused = std::current_exception();
      }
    }
    if (refused) std::rethrow_exception(refused);
  }

  TemporaryDirectory directory;
  trainer::IndexMapRequest request{.sequences = {0, 20}, .num_samples = 40, .sequence_length = 8};
  trainer::GptSampleOptions options{.sequence_length = 8};
  std::shared_ptr<const trainer::IndexedDataset> data;
  std::string maps;
};

TEST(Readers, IndexMaps) {
  const MappedData files;
  fuzz_files({files.maps + "_doc_idx.npy", files.maps + "_sample_idx.npy",
              files.maps + "_shuffle_idx.npy"},
             [&] { files.read(); });
}

TEST(Readers, ASampleThatBeginsAfterTheLastDocument) {
  const MappedData files;
  const std::string file = files.maps + "_sample_idx.npy";
  std::string bytes = content_of(file);
  const std::int32_t position = 1 << 20;
  std::memcpy(bytes.data() + bytes.size() - 16, &position,
              sizeof position);  // of the last border but one
  put(file, bytes);
  EXPECT_THROW(files.read(), ConfigError);
}

void write_arrow(const std::filesystem::path& file) {
  auto ids = std::make_shared<arrow::Int32Builder>();
  arrow::ListBuilder lists(arrow::default_memory_pool(), ids);
  for (int row = 0; row < 30; ++row) {
    ASSERT_TRUE(lists.Append().ok());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(ids->Append(row + i).ok());
  }
  const auto array = lists.Finish().ValueOrDie();
  const auto schema = arrow::schema(
      {arrow::field("input_ids", array->type()), arrow::field("labels", array->type())});
  const auto batch = arrow::RecordBatch::Make(
      schema, 30, std::vector<std::shared_ptr<arrow::Array>>{array, array});
  const auto stream = arrow::io::FileOutputStream::Open(file.string()).ValueOrDie();
  const auto writer = arrow::ipc::MakeStreamWriter(stream, schema).ValueOrDie();
  ASSERT_TRUE(writer->WriteRecordBatch(*batch->Slice(0, 20)).ok());
  ASSERT_TRUE(writer->WriteRecordBatch(*batch->Slice(20)).ok());
  ASSERT_TRUE(writer->Close().ok() && stream->Close().ok());
}

TEST(Readers, HuggingFaceData) {
  const TemporaryDirectory directory;
  const std::string state = directory.write(
      "state.json", R"({"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "x"})");
  const std::filesystem::path arrow_file = directory.path() / "data.arrow";
  write_arrow(arrow_file);
  fuzz_files({arrow_file, arrow_file, arrow_file, state}, [&] {
    const auto data = trainer::open_hf_dataset(directory.path().string(), 8, "data.train_dir");
    for (std::int64_t i = 0; i < data->num_samples(); ++i) (void)data->item(i);
  });
}

TEST(Readers, JsonLines) {
  const TemporaryDirectory directory;
  const std::string file = directory.write(
      "data.jsonl",
      "{\"text\": \"one \\u00e9\\ud83c\\udf31\", \"id\": [1, 2.5e3, null, true]}\n{\"text\": "
      "\"two\"}\n\n{\"id\": {\"a\": {}}, \"text\": \"three\"}\n");
  fuzz_files({file}, [&] { (void)trainer::read_text_files(file); });
}

constexpr const char* kTokenizer =
    R"({"version": "1.0", "added_tokens": [{"id": 7, "content": "<|end|>", "special": true,
    "lstrip": true}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"},
 {"type": "Replace", "pattern": {"String": "x"}, "content": "b"}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
 "pattern": {"Regex": "\\p{L}{1,3}|\\s+(?!\\S)|b+"}, "behavior": "Isolated"},
  {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]},
 "decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip",
 "content": " ", "start": 1, "stop": 0}]},
 "model": {"type": "BPE", "unk_token": "u", "byte_fallback": true, "fuse_unk": true,
 "vocab": {"a": 0, "b": 1, "u": 2, "Ġ": 3, "ab": 4, "aba": 5, "Ġa": 6},
 "merges": ["a b", ["ab", "a"], ["Ġ", "a"]]}})";

TEST(Readers, Tokenizers) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("tokenizer.json", kTokenizer);
  const std::string vocab =
      directory.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "aba": 3, "<|endoftext|>": 4})");
  const std::string merges = directory.write("merges.txt", "#version: 0.2\na b\nab a\n");
  fuzz_files({file, vocab, merges}, [&] {
    for (const trainer::TokenizerSection& section :
         {trainer::TokenizerSection{"huggingface", file, "", "", ""},
          trainer::TokenizerSection{"megatron", "GPT2BPETokenizer", "", vocab, merges}}) {
      const auto tokenizer = trainer::make_tokenizer(section);
      std::vector<std::int32_t> ids;
      tokenizer->encode(
          "abab a  xé <|end|> aba\n 12 " + std::string(40, 'a') + std::string(40, 'b'), ids);
      ids.insert(ids.end(), {-1, 1 << 30});
      (void)tokenizer->decode(ids);
    }
  });
}

/// Small models of both kinds, with bytes for what has no piece and their own normalization.
/// The package of Python makes them: the system's library has no trainer.
void write_sentencepiece(const std::string& file, const std::string& kind) {
  const std::string rules = file + ".tsv";
  put(rules, "41\t61\nE9\t65\nFB01\t66 69\n");
  const std::string script =
      "import sentencepiece; "
      "sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(['abab aba ab', 'aab baa "
      "ab']), model_writer=open('" +
      file + "', 'wb'), vocab_size=273, hard_vocab_limit=False, model_type='" + kind +
      "', byte_fallback=True, pad_id=3, user_defined_symbols=['<|end|>'], minloglevel=2, "
      "normalization_rule_tsv='" +
      rules + "')";
  const std::string command =
      std::string(TRELLIS_SOURCE_DIR) + "/.venv/bin/python -c \"" + script + "\"";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

TEST(Readers, SentencePieceModels) {
  const TemporaryDirectory directory;
  std::vector<std::filesystem::path> files;
  for (const std::string kind : {"unigram", "bpe"}) {
    files.push_back(directory.path() / (kind + ".model"));
    ASSERT_NO_FATAL_FAILURE(write_sentencepiece(files.back().string(), kind));
  }
  fuzz_files(files, [&] {
    for (const auto& file : files) {
      const auto tokenizer = trainer::make_tokenizer({"sentencepiece", "", file.string(), "", ""});
      std::vector<std::int32_t> ids;
      tokenizer->encode("abab A é <|end|> \xFF\xEF\xAC\x81 漢\n" + std::string(40, 'a'), ids);
      ids.insert(ids.end(), {-1, 1 << 30});
      for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) ids.push_back(id);
      (void)tokenizer->decode(ids);
      (void)tokenizer->eos_id();
    }
  });
}

TEST(Readers, TextsThatAreNoUtf8) {
  const TemporaryDirectory directory;
  const auto tokenizer = trainer::make_tokenizer(
      {"megatron", "GPT2BPETokenizer", "", directory.write("vocab.json", R"({"a": 0, "Ã": 1})"),
       directory.write("merges.txt", "")});
  const std::string file =
      directory.write("text", "plain é 漢字 🌱 \xC3\xA9 'll don't 12345   \n\n x");
  fuzz_files({file}, [&] {
    std::vector<std::int32_t> ids;
    tokenizer->encode(content_of(file), ids);
  });
}

}  // namespace
}  // namespace trellis::fuzz
