#include "trainer/files/data/megatron/indexed_dataset.h"

#include <array>
#include <bit>

#include "base/check.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "trainer/files/data/megatron/index_format.h"

namespace trellis::trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "Megatron's files are little endian");

constexpr const char* kBuildAgain =
    "copy the files again, or build them again with `trellis data build`";

[[noreturn]] void corrupt(const MappedFile& file, std::size_t offset, const std::string& what,
                          const std::string& to_do = kBuildAgain) {
  throw ConfigError(file.path().string() + ": offset " + std::to_string(offset) + ": " + what +
                    "; " + to_do);
}

std::string expected_got(const std::string& name, std::int64_t expected, std::int64_t got) {
  return name + ": expected " + std::to_string(expected) + ", got " + std::to_string(got);
}

template <typename T>
void widen(const std::byte* from, std::int64_t count, std::int64_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    to[i] = static_cast<std::int64_t>(value);
  }
}

TokenType token_type(const MappedFile& index, std::uint8_t code) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8: return static_cast<TokenType>(code);
    case 6:
    case 7:
      corrupt(index, kTypeOffset,
              "type code " + std::to_string(code) +
                  " (floating point): expected whole numbers, because tokens are ids");
    default:
      corrupt(index, kTypeOffset,
              "type code: expected 1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) or 8 "
              "(uint16), got " +
                  std::to_string(code));
  }
}

}  // namespace

std::size_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8: return 1;
    case TokenType::kInt16:
    case TokenType::kUint16: return 2;
    case TokenType::kInt32: return 4;
    case TokenType::kInt64: return 8;
  }
  TRELLIS_CHECK(false, "unknown token type");
}

const char* name_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8: return "uint8";
    case TokenType::kInt8: return "int8";
    case TokenType::kInt16: return "int16";
    case TokenType::kUint16: return "uint16";
    case TokenType::kInt32: return "int32";
    case TokenType::kInt64: return "int64";
  }
  TRELLIS_CHECK(false, "unknown token type");
}

TokenType token_type_for(std::int64_t vocabulary_size) {
  return vocabulary_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix) {
  for (const char* extension : {".idx", ".bin"}) {
    const std::string file = prefix + extension;
    const std::string why = why_no_input_file(file);
    if (why.empty()) continue;
    const bool with_extension = prefix.ends_with(".bin") || prefix.ends_with(".idx");
    throw ConfigError(file + ": " + why +
                      "; a Megatron data set is the pair PREFIX.bin and PREFIX.idx" +
                      (with_extension ? ", and data_prefix names it without the extension: " +
                                            prefix.substr(0, prefix.size() - 4)
                                      : ": `trellis data build` makes one from text"));
  }
  index_ = MappedFile(prefix + ".idx");
  tokens_ = MappedFile(prefix + ".bin");
  read_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::read_header() {
  if (index_.size() < kHeaderBytes) {
    corrupt(index_, index_.size(),
            "the file ends: " + expected_got("bytes of the header",
                                             static_cast<std::int64_t>(kHeaderBytes),
                                             static_cast<std::int64_t>(index_.size())));
  }
  const std::string_view magic = index_.text().substr(0, kIndexMagic.size());
  if (magic.starts_with("TNTIDX")) {
    corrupt(index_, 0,
            "this is the older format TNTIDX (data_impl lazy or cached): expected MMIDIDX "
            "(data_impl mmap)",
            "build it again with `trellis data build`, or with Megatron's preprocess_data.py "
            "--dataset-impl mmap");
  }
  if (magic != kIndexMagic)
    corrupt(index_, 0,
            "magic: expected \"" + terminal_line(kIndexMagic) + "\", got \"" +
                terminal_line(magic) + '"',
            "this is no .idx file of a Megatron data set");
  if (const auto version = index_.at<std::uint64_t>(kVersionOffset); version != kIndexVersion) {
    corrupt(index_, kVersionOffset, "version: expected 1, got " + std::to_string(version));
  }
  type_ = token_type(index_, index_.at<std::uint8_t>(kTypeOffset));
  const auto sequences = index_.at<std::uint64_t>(kSequencesOffset);
  const auto documents = index_.at<std::uint64_t>(kDocumentsOffset);
  const std::uint64_t body = index_.size() - kHeaderBytes;
  // Compared by division first: the numbers may be anything.
  const bool fits = sequences <= body / kBytesPerSequence && documents <= body / kBytesPerDocument;
  if (!fits || sequences * kBytesPerSequence + documents * kBytesPerDocument != body) {
    corrupt(index_, kSequencesOffset,
            "the header states " + std::to_string(sequences) + " sequences and " +
                std::to_string(documents) + " document entries: expected " +
                std::to_string(kHeaderBytes) + " + 12 and 8 bytes for each" +
                (fits ? " = " + std::to_string(kHeaderBytes + sequences * kBytesPerSequence +
                                               documents * kBytesPerDocument)
                      : "") +
                " bytes, got a file of " + std::to_string(index_.size()));
  }
  num_sequences_ = static_cast<std::int64_t>(sequences);
  num_document_entries_ = static_cast<std::int64_t>(documents);
}

std::int32_t IndexedDataset::size(std::int64_t sequence) const {
  TRELLIS_CHECK(sequence >= 0 && sequence < num_sequences_, "sequence out of range");
  return index_.at<std::int32_t>(kHeaderBytes + static_cast<std::size_t>(sequence) * 4);
}

std::int64_t IndexedDataset::pointer(std::int64_t sequence) const {
  return index_.at<std::int64_t>(kHeaderBytes +
                                 static_cast<std::size_t>(num_sequences_ * 4 + sequence * 8));
}

std::int64_t IndexedDataset::document_start(std::int64_t document) const {
  TRELLIS_CHECK(document >= 0 && document < num_document_entries_, "document out of range");
  return index_.at<std::int64_t>(kHeaderBytes +
                                 static_cast<std::size_t>(num_sequences_ * 12 + document * 8));
}

void IndexedDataset::check_sequences() {
  const auto file_size = static_cast<std::int64_t>(tokens_.size());
  const auto token_bytes = static_cast<std::int64_t>(size_of(type_));
  for (std::int64_t i = 0; i < num_sequences_; ++i) {
    const std::int64_t tokens = size(i);
    const std::int64_t begin = pointer(i);
    if (tokens < 0)
      corrupt(index_, kHeaderBytes + static_cast<std::size_t>(i) * 4,
              "size of sequence " + std::to_string(i) + ": expected 0 or more tokens, got " +
                  std::to_string(tokens));
    const std::size_t offset = kHeaderBytes + static_cast<std::size_t>(num_sequences_ * 4 + i * 8);
    if (begin < 0 || begin % token_bytes != 0) {
      corrupt(index_, offset,
              "pointer of sequence " + std::to_string(i) + ": expected a multiple of " +
                  std::to_string(token_bytes) + " (" + name_of(type_) + "), got " +
                  std::to_string(begin));
    }
    if (begin > file_size || tokens * token_bytes > file_size - begin) {
      corrupt(index_, offset,
              "sequence " + std::to_string(i) + " (" + std::to_string(tokens) + " tokens of " +
                  name_of(type_) + " from byte " + std::to_string(begin) + ") ends after " +
                  tokens_.path().string() + ", which has " + std::to_string(file_size) +
                  " bytes: it is truncated, or belongs to another .idx");
    }
    num_tokens_ += tokens;
  }
}

void IndexedDataset::check_documents() {
  const auto offset = [&](std::int64_t document) {
    return kHeaderBytes + static_cast<std::size_t>(num_sequences_ * 12 + document * 8);
  };
  if (num_document_entries_ < 1)
    corrupt(index_, kDocumentsOffset,
            "document entries: expected at least 1 (the first is 0), got 0");
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < num_document_entries_; ++i) {
    const std::int64_t start = document_start(i);
    const bool good = i == 0 ? start == 0 : start >= last && start <= num_sequences_;
    if (!good) {
      const std::string expected =
          i == 0 ? "0" : std::to_string(last) + " … " + std::to_string(num_sequences_);
      corrupt(index_, offset(i),
              "document entry " + std::to_string(i) + ": expected " + expected + ", got " +
                  std::to_string(start));
    }
    last = start;
  }
  if (last != num_sequences_)
    corrupt(
        index_, offset(num_document_entries_ - 1),
        expected_got("the last document entry is the number of sequences", num_sequences_, last));
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::int64_t length,
                          std::int64_t* out) const {
  TRELLIS_CHECK(offset >= 0 && length >= 0 && offset <= size(sequence) - length,
                "tokens outside of a sequence");
  const std::byte* from = tokens_.bytes().data() + pointer(sequence) +
                          offset * static_cast<std::int64_t>(size_of(type_));
  switch (type_) {
    case TokenType::kUint8: return widen<std::uint8_t>(from, length, out);
    case TokenType::kInt8: return widen<std::int8_t>(from, length, out);
    case TokenType::kInt16: return widen<std::int16_t>(from, length, out);
    case TokenType::kUint16: return widen<std::uint16_t>(from, length, out);
    case TokenType::kInt32: return widen<std::int32_t>(from, length, out);
    case TokenType::kInt64: return widen<std::int64_t>(from, length, out);
  }
}

}  // namespace trellis::trainer
