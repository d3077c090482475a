#include "trainer/files/data/megatron/indexed_dataset_builder.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "trainer/files/data/megatron/index_format.h"

namespace trellis::trainer {
namespace {

template <typename T>
void put(std::ostream& stream, const T* values, std::size_t count) {
  stream.write(reinterpret_cast<const char*>(values),
               static_cast<std::streamsize>(count * sizeof(T)));
}

template <typename T>
void put(std::ostream& stream, T value) {
  put(stream, &value, 1);
}

/// Calls body with a value of the C++ type of `type`.
template <typename Body>
void with_type(TokenType type, Body body) {
  switch (type) {
    case TokenType::kUint8: return body(std::uint8_t{});
    case TokenType::kInt8: return body(std::int8_t{});
    case TokenType::kInt16: return body(std::int16_t{});
    case TokenType::kUint16: return body(std::uint16_t{});
    case TokenType::kInt32: return body(std::int32_t{});
    case TokenType::kInt64: return body(std::int64_t{});
  }
}

}  // namespace

IndexedDatasetBuilder::IndexedDatasetBuilder(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)),
      type_(type),
      tokens_(prefix_ + ".bin"),
      index_(prefix_ + ".idx") {}

template <typename T>
void IndexedDatasetBuilder::write_tokens(std::span<const std::int32_t> tokens) {
  std::vector<T> narrow(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    narrow[i] = static_cast<T>(tokens[i]);
    if (static_cast<std::int64_t>(narrow[i]) != tokens[i]) {
      throw ConfigError(
          prefix_ + ".bin: token " + std::to_string(tokens[i]) + " does not fit " + name_of(type_) +
          ", expected " + std::to_string(std::numeric_limits<T>::min()) + " … " +
          std::to_string(std::numeric_limits<T>::max()) + ": build with a wider type");
    }
  }
  put(tokens_.stream(), narrow.data(), narrow.size());
}

void IndexedDatasetBuilder::add_item(std::span<const std::int32_t> tokens) {
  with_type(type_, [&](auto type) { write_tokens<decltype(type)>(tokens); });
  add_sequence(static_cast<std::int64_t>(tokens.size()));
}

void IndexedDatasetBuilder::add_sequence(std::int64_t tokens) {
  if (tokens > std::numeric_limits<std::int32_t>::max()) {
    throw ConfigError(prefix_ + ".idx: sequence " + std::to_string(sizes_.size()) + " has " +
                      std::to_string(tokens) +
                      " tokens, the format's limit is 2147483647: split the document");
  }
  sizes_.push_back(static_cast<std::int32_t>(tokens));
  num_tokens_ += tokens;
}

void IndexedDatasetBuilder::end_document() {
  document_index_.push_back(static_cast<std::int64_t>(sizes_.size()));
}

template <typename T>
void IndexedDatasetBuilder::write_merged(const IndexedDataset& other, std::int64_t sequence) {
  std::vector<std::int64_t> wide(static_cast<std::size_t>(other.size(sequence)));
  other.read(sequence, 0, other.size(sequence), wide.data());
  const std::vector<T> narrow(wide.begin(), wide.end());
  put(tokens_.stream(), narrow.data(), narrow.size());
}

void IndexedDatasetBuilder::merge_file(const IndexedDataset& other) {
  if (other.type() != type_) {
    throw ConfigError(other.prefix() + ": holds " + name_of(other.type()) + ", expected " +
                      name_of(type_) + " as in " + prefix_ +
                      ": only data sets of one type can be merged");
  }
  const auto first = static_cast<std::int64_t>(sizes_.size());
  for (std::int64_t i = 0; i < other.num_sequences(); ++i) {
    with_type(type_, [&](auto type) { write_merged<decltype(type)>(other, i); });
    add_sequence(other.size(i));
  }
  for (std::int64_t document = 1; document <= other.num_documents(); ++document)
    document_index_.push_back(first + other.document_start(document));
}

void IndexedDatasetBuilder::finalize() {
  TRELLIS_CHECK(document_index_.back() == static_cast<std::int64_t>(sizes_.size()),
                "a document was not ended");
  std::ostream& stream = index_.stream();
  stream.write(kIndexMagic.data(), static_cast<std::streamsize>(kIndexMagic.size()));
  put(stream, kIndexVersion);
  put(stream, static_cast<std::uint8_t>(type_));
  put(stream, std::uint64_t{sizes_.size()});
  put(stream, std::uint64_t{document_index_.size()});
  put(stream, sizes_.data(), sizes_.size());
  std::int64_t pointer = 0;
  for (const std::int32_t size : sizes_) {
    put(stream, pointer);
    pointer += size * static_cast<std::int64_t>(size_of(type_));
  }
  put(stream, document_index_.data(), document_index_.size());
  tokens_.commit();  // first: an .idx file always finds its .bin
  index_.commit();
}

}  // namespace trellis::trainer
