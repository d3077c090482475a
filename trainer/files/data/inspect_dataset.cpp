#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/escape.h"
#include "trainer/files/data/build_dataset.h"
#include "trainer/files/data/megatron/indexed_dataset.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kExcerptTokens = 64;

DatasetFacts::Excerpt excerpt_of(const IndexedDataset& data, std::int64_t sequence,
                                 const Tokenizer* tokenizer) {
  DatasetFacts::Excerpt excerpt;
  excerpt.sequence = sequence;
  excerpt.tokens = data.size(sequence);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(excerpt.tokens, kExcerptTokens)));
  data.read(sequence, 0, static_cast<std::int64_t>(ids.size()), ids.data());
  excerpt.ids.assign(ids.begin(), ids.end());
  if (tokenizer != nullptr) excerpt.text = tokenizer->decode(excerpt.ids);
  return excerpt;
}

/// In pieces: a document may be as long as the file.
std::int64_t largest_id(const IndexedDataset& data, std::int64_t sequence, std::int64_t& unreleased,
                        std::vector<std::int64_t>& ids) {
  constexpr std::int64_t kPiece = 1 << 18, kReleased = 1 << 25;  // tokens
  std::int64_t largest = 0;
  for (std::int64_t first = 0; first < data.size(sequence); first += kPiece) {
    const std::int64_t count = std::min(kPiece, data.size(sequence) - first);
    ids.resize(static_cast<std::size_t>(count));
    data.read(sequence, first, count, ids.data());
    for (const std::int64_t id : ids) largest = std::max(largest, id);
    if ((unreleased += count) < kReleased) continue;
    data.release();
    unreleased = 0;
  }
  return largest;
}

}  // namespace

DatasetFacts inspect_dataset(const std::string& prefix, const TokenizerSection* tokenizer,
                             std::int64_t excerpts) {
  const IndexedDataset data(prefix);
  const std::unique_ptr<Tokenizer> decoder =
      tokenizer != nullptr ? make_tokenizer(*tokenizer) : nullptr;
  DatasetFacts facts;
  facts.prefix = prefix;
  facts.type = name_of(data.type());
  facts.sequences = data.num_sequences();
  facts.documents = data.num_documents();
  facts.tokens = data.num_tokens();
  facts.shortest = facts.sequences > 0 ? data.size(0) : 0;
  std::vector<std::int64_t> ids;
  std::int64_t unreleased = 0;
  for (std::int64_t i = 0; i < facts.sequences; ++i) {
    facts.shortest = std::min<std::int64_t>(facts.shortest, data.size(i));
    facts.longest = std::max<std::int64_t>(facts.longest, data.size(i));
    facts.largest_id = std::max(facts.largest_id, largest_id(data, i, unreleased, ids));
    if (i < excerpts) facts.excerpts.push_back(excerpt_of(data, i, decoder.get()));
  }
  return facts;
}

nlohmann::json DatasetFacts::json() const {
  nlohmann::json document = {{"schema", "trellis.dataset_facts/1"},
                             {"prefix", prefix},
                             {"type", type},
                             {"sequences", sequences},
                             {"documents", documents},
                             {"tokens", tokens},
                             {"shortest", shortest},
                             {"longest", longest},
                             {"largest_id", largest_id}};
  for (const Excerpt& excerpt : excerpts) {
    document["excerpts"].push_back({{"sequence", excerpt.sequence},
                                    {"tokens", excerpt.tokens},
                                    {"ids", excerpt.ids},
                                    {"text", terminal_line(excerpt.text)}});
  }
  return document;
}

std::string DatasetFacts::text() const {
  std::string lines = terminal_line(prefix) + ": " + std::to_string(sequences) + " sequences of " +
                      std::to_string(shortest) + " … " + std::to_string(longest) + " tokens, " +
                      std::to_string(documents) + " documents, " + std::to_string(tokens) +
                      " tokens of " + type + ", largest id " + std::to_string(largest_id);
  for (const Excerpt& excerpt : excerpts) {
    lines += "\nsequence " + std::to_string(excerpt.sequence) + ", " +
             std::to_string(excerpt.tokens) + " tokens:";
    for (const std::int32_t id : excerpt.ids) lines += " " + std::to_string(id);
    if (excerpt.tokens > static_cast<std::int64_t>(excerpt.ids.size())) lines += " …";
    if (!excerpt.text.empty()) lines += "\n  \"" + terminal_line(excerpt.text) + "\"";
  }
  return lines;
}

}  // namespace trellis::trainer
