#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "trainer/files/data/tokenizers/byte_alphabet.h"
#include "trainer/files/data/tokenizers/piece_models.h"
#include "trainer/files/data/tokenizers/unicode.h"
#include "trainer/files/data/tokenizers/vocabulary.h"
#include "trainer/files/data/tokenizers/word_cache.h"

namespace trellis::trainer {
namespace {

constexpr double kUnknownPenalty = 10;  ///< below the smallest score; SentencePiece's number

/// A score as `tokenizers` has it: serde_json rounds the digits and the power of ten each, so the
/// last bit may differ from the nearest double, and it decides between cuts of equal score.
double as_serde_json_reads(double score) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, score, std::chars_format::scientific);
  std::uint64_t digits = 0;
  int exponent = 0;
  const char* at = text + (text[0] == '-' ? 1 : 0);
  for (bool fraction = false; at != end.ptr && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    digits = digits * 10 + static_cast<std::uint64_t>(*at - '0');
    if (fraction) --exponent;
  }
  int power = 0;
  if (at != end.ptr) std::from_chars(at + (at[1] == '+' ? 2 : 1), end.ptr, power);
  exponent += power;
  constexpr int kLargest = 308;  // of the powers of ten that a double holds
  if (exponent < -kLargest || exponent > kLargest) return score;
  const double scale = std::pow(10.0, std::abs(exponent));
  const double rounded = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? rounded / scale : rounded * scale, score);
}

class Unigram : public WordModel {
 public:
  explicit Unigram(const JsonReader& model) : byte_fallback_(model["byte_fallback"].flag(false)) {
    const JsonReader list = model["vocab"];
    if (!list.value().is_array() || list.value().empty())
      list.wrong("a list of [\"piece\", score] that is not empty");
    for (std::size_t i = 0; i < list.value().size(); ++i) {
      const nlohmann::json& pair = list.value()[i];
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number())
        JsonReader(pair, list.where() + "[" + std::to_string(i) + "]").wrong("[\"piece\", score]");
      pieces_.append(pair[0].get_ref<const std::string&>());
      scores_.push_back(as_serde_json_reads(pair[1].get<double>()));
      longest_ = std::max(longest_, pair[0].get_ref<const std::string&>().size());
    }
    unknown_score_ = std::ranges::min(scores_) - kUnknownPenalty;
    if (!model["unk_id"].is_null()) {
      unknown_ = model["unk_id"].id();
      if (unknown_ >= pieces_.size()) model["unk_id"].wrong("an id of the vocabulary");
    }
    where_ = model["unk_id"].where();
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) override {
    cache_.encode(word, ids, [this](std::string_view fresh, std::vector<std::int32_t>& result) {
      encode_new_word(fresh, result);
    });
  }
  std::int32_t vocab_size() const override { return pieces_.size(); }
  const std::string& token(std::int32_t id) const override { return pieces_.token(id); }
  std::optional<std::int32_t> id_of(const std::string& token) const override {
    return pieces_.id_of(token);
  }

  std::string text_in_word(std::int32_t id) const override {
    if (id == unknown_) return "";
    const auto byte = byte_fallback_ ? byte_of_fallback(token(id)) : std::nullopt;
    return byte ? std::string(1, *byte) : token(id);
  }

 private:
  /// The best way to cut what is before a place.
  struct Best {
    double score = 0;
    std::size_t begin = std::string::npos;  ///< of its last piece; npos: no way is known
    std::int32_t id = -1;
  };

  static void offer(Best& best, const Best& other) {
    if (best.begin == std::string::npos || other.score > best.score) best = other;
  }

  void find_best(std::string_view word) {
    best_.assign(word.size() + 1, {});
    for (std::size_t begin = 0; begin < word.size();) {
      const double before = best_[begin].score;
      const std::size_t character = utf8_at(word, begin).length;
      bool has_single = false;
      for (std::size_t end = begin; end < word.size();) {
        end += utf8_at(word, end).length;
        if (end - begin > longest_) break;
        const auto id = pieces_.id_of(std::string(word.substr(begin, end - begin)));
        if (!id) continue;
        offer(best_[end], {before + scores_[static_cast<std::size_t>(*id)], begin, *id});
        has_single = has_single || end - begin == character;
      }
      if (!has_single) offer(best_[begin + character], {before + unknown_score_, begin, unknown_});
      begin += character;
    }
  }

  void encode_new_word(std::string_view word, std::vector<std::int32_t>& ids) {
    find_best(word);
    std::vector<std::string_view> cut;
    for (std::size_t end = word.size(); end > 0;) {
      std::size_t begin = best_[end].begin;
      if (best_[end].id == unknown_) {  // neighbours are one
        while (begin > 0 && best_[begin].id == unknown_) begin = best_[begin].begin;
      }
      cut.push_back(word.substr(begin, end - begin));
      end = begin;
    }
    for (auto piece = cut.rbegin(); piece != cut.rend(); ++piece) add(*piece, ids);
  }

  void add(std::string_view piece, std::vector<std::int32_t>& ids) const {
    if (const auto id = pieces_.id_of(std::string(piece))) {
      ids.push_back(*id);
    } else if (!byte_fallback_ || !add_bytes(piece, ids)) {
      if (unknown_ < 0)
        throw ConfigError(where_ + ": missing: expected a piece for \"" + std::string(piece) +
                          "\", which the vocabulary does not have");
      ids.push_back(unknown_);
    }
  }

  bool add_bytes(std::string_view piece, std::vector<std::int32_t>& ids) const {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::vector<std::int32_t> bytes;
    for (const char c : piece) {
      const auto byte = static_cast<unsigned char>(c);
      const auto id = pieces_.id_of({'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'});
      if (!id) return false;
      bytes.push_back(*id);
    }
    ids.insert(ids.end(), bytes.begin(), bytes.end());
    return true;
  }

  Vocabulary pieces_;
  std::vector<double> scores_;
  std::size_t longest_ = 0;  ///< piece, in bytes
  double unknown_score_ = 0;
  std::int32_t unknown_ = -1;
  bool byte_fallback_;
  std::string where_;
  WordCache cache_;
  std::vector<Best> best_;
};

}  // namespace

std::unique_ptr<WordModel> make_unigram(const JsonReader& model) {
  return std::make_unique<Unigram>(model);
}

}  // namespace trellis::trainer
