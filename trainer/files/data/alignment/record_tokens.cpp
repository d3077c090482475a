#include "trainer/files/data/alignment/record_tokens.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"

namespace trellis::trainer {
namespace {

using Ids = std::vector<std::int32_t>;

/// Tokens [first, first + count) of both.
void keep(AnsweredTokens& tokens, std::int64_t first, std::int64_t count) {
  tokens.ids = Ids(tokens.ids.begin() + first, tokens.ids.begin() + first + count);
  tokens.answer =
      std::vector<bool>(tokens.answer.begin() + first, tokens.answer.begin() + first + count);
}

void truncate(AnsweredTokens& tokens, std::int64_t length, Truncation truncation) {
  const std::int64_t extra = std::ssize(tokens.ids) - length;
  if (extra > 0) keep(tokens, truncation == Truncation::kKeepEnd ? extra : 0, length);
}

std::int64_t prompt_of(const AnsweredTokens& tokens) {
  return std::ranges::find(tokens.answer, true) - tokens.answer.begin();
}

/// A pair whose prompt and answers are cut separately.
void truncate_parts(PreferenceTokens& pair, std::int64_t length, std::int64_t max_prompt,
                    Truncation truncation) {
  const auto is_too_long = [&] {
    return std::max(std::ssize(pair.chosen.ids), std::ssize(pair.rejected.ids)) > length;
  };
  if (is_too_long()) {
    for (AnsweredTokens* tokens : {&pair.chosen, &pair.rejected}) {
      const std::int64_t prompt = prompt_of(*tokens), extra = prompt - max_prompt;
      if (extra <= 0) continue;
      const std::int64_t first = truncation == Truncation::kKeepStart ? max_prompt : 0;
      tokens->ids.erase(tokens->ids.begin() + first, tokens->ids.begin() + first + extra);
      tokens->answer.erase(tokens->answer.begin() + first, tokens->answer.begin() + first + extra);
    }
  }
  if (!is_too_long()) return;
  for (AnsweredTokens* tokens : {&pair.chosen, &pair.rejected})
    keep(*tokens, 0, std::min(std::ssize(tokens->ids), prompt_of(*tokens) + length - max_prompt));
}

/// The first token is never a label.
bool has_label(const AnsweredTokens& tokens) {
  return !tokens.answer.empty() &&
         std::find(tokens.answer.begin() + 1, tokens.answer.end(), true) != tokens.answer.end();
}

bool begins_with(const Ids& ids, const Ids& first) {
  return ids.size() >= first.size() && std::equal(first.begin(), first.end(), ids.begin());
}

/// Places of a text that its answers name, in order.
std::vector<std::size_t> places_of(const AnsweredText& text) {
  std::vector<std::size_t> places;
  for (const AnswerRange& answer : text.answers)
    places.insert(places.end(), {answer.begin, answer.said, answer.end});
  std::ranges::sort(places);
  const auto repeated = std::ranges::unique(places);
  places.erase(repeated.begin(), repeated.end());
  return places;
}

/// Tokens [first, end) of one answer.
using TokenRange = std::pair<std::size_t, std::size_t>;

/// A chat as a whole; each token with a byte of an answer belongs to it.
std::vector<TokenRange> encode_chat(Tokenizer& tokenizer, const AnsweredText& text, Ids& ids) {
  const std::vector<std::size_t> places = places_of(text);
  const std::vector<TokenPlace> found = tokenizer.encode_at(text.text, places, ids);
  const auto at = [&](std::size_t place) {
    return found[static_cast<std::size_t>(std::ranges::lower_bound(places, place) -
                                          places.begin())];
  };
  std::vector<TokenRange> ranges;
  for (const AnswerRange& answer : text.answers) {
    std::size_t end = at(answer.end).begun;
    for (std::size_t i = at(answer.said).ended; answer.ends_with_special && i < end; ++i) {
      if (tokenizer.is_special(ids[i])) end = i + 1;
    }
    ranges.emplace_back(at(answer.begin).ended, end);
  }
  return ranges;
}

}  // namespace

class RecordTokens::Lease {
 public:
  explicit Lease(const RecordTokens& pool) : pool_(pool) {
    {
      const std::lock_guard lock(pool.mutex_);
      if (!pool.free_.empty()) {
        tokenizer_ = std::move(pool.free_.back());
        pool.free_.pop_back();
      }
    }
    if (tokenizer_ == nullptr) tokenizer_ = make_tokenizer(pool.section_);
  }
  ~Lease() {
    const std::lock_guard lock(pool_.mutex_);
    pool_.free_.push_back(std::move(tokenizer_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  [[nodiscard]] Tokenizer& operator*() { return *tokenizer_; }

 private:
  const RecordTokens& pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

RecordTokens::RecordTokens(std::shared_ptr<const RecordTexts> texts, TokenizerSection tokenizer)
    : texts_(std::move(texts)), section_(std::move(tokenizer)) {
  auto first = make_tokenizer(section_);
  const auto eos = first->eos_id();
  if (!eos)
    throw ConfigError(
        "data.tokenizer: it names no end-of-sequence token, which ends each answer: name it "
        "(eos_token in tokenizer_config.json)");
  eos_id_ = *eos;
  pad_id_ = first->pad_id().value_or(eos_id_);
  if (section_.special_tokens == "post_processor") {
    affixes_ = first->affixes();
  } else if (const auto bos = first->bos_id()) {
    affixes_.before.push_back(*bos);
  }
  for (const std::string& note : first->notes()) log_warning(note);
  free_.push_back(std::move(first));
}

AnsweredTokens RecordTokens::tokens_of(const AnsweredText& text, std::int64_t index) const try {
  Lease tokenizer(*this);
  AnsweredTokens tokens;
  Ids& ids = tokens.ids;
  if (text.is_chat) {
    const std::vector<TokenRange> ranges = encode_chat(*tokenizer, text, ids);
    tokens.answer.resize(ids.size(), false);
    for (const auto& [first, end] : ranges)
      std::fill(tokens.answer.begin() + static_cast<std::ptrdiff_t>(first),
                tokens.answer.begin() + static_cast<std::ptrdiff_t>(std::max(first, end)), true);
    return tokens;
  }
  const std::string_view whole = text.text;
  const std::size_t begin = text.answers[0].begin;
  (*tokenizer).encode(whole.substr(0, begin), ids);
  const auto prompt = static_cast<std::ptrdiff_t>(ids.size());
  (*tokenizer).encode(whole.substr(begin), ids);
  tokens.answer.resize(ids.size(), false);
  std::fill(tokens.answer.begin() + prompt, tokens.answer.end(), true);
  if (ids.empty() || ids.back() != eos_id_) {
    ids.push_back(eos_id_);
    tokens.answer.push_back(true);
  }
  if (!begins_with(ids, affixes_.before)) {
    ids.insert(ids.begin(), affixes_.before.begin(), affixes_.before.end());
    tokens.answer.insert(tokens.answer.begin(), affixes_.before.size(), false);
  }
  if (affixes_.after != Ids{eos_id_}) {
    ids.insert(ids.end(), affixes_.after.begin(), affixes_.after.end());
    tokens.answer.resize(ids.size(), true);
  }
  return tokens;
} catch (const ConfigError& error) {
  throw ConfigError(texts_->where(index) + ": " + error.what());
}

void RecordTokens::require_label(const AnsweredTokens& tokens, std::size_t whole,
                                 std::int64_t length, std::int64_t index) const {
  if (has_label(tokens)) return;
  throw ConfigError(texts_->where(index) + ": the record has " + std::to_string(whole) +
                    " tokens, and of its answer none is in the " + std::to_string(length) +
                    " that fit (model.encoder_seq_length): shorten the prompt, or set "
                    "model_alignment_strategy's truncation_mode to keep_end");
}

AnsweredTokens RecordTokens::answered(std::int64_t index, std::int64_t length,
                                      Truncation truncation) const {
  AnsweredTokens tokens = tokens_of(texts_->answered(index), index);
  const std::size_t whole = tokens.ids.size();
  truncate(tokens, length, truncation);
  require_label(tokens, whole, length, index);
  return tokens;
}

QuestionTokens RecordTokens::question(std::int64_t index) const {
  const AnsweredText text = texts_->answered(index);
  const auto last =
      *std::find_if(text.answers.rbegin(), text.answers.rend(),
                    [](const AnswerRange& answer) { return answer.end > answer.begin; });
  Lease tokenizer(*this);
  QuestionTokens question;
  question.prompt = text.text.substr(0, last.begin);
  question.answer = text.text.substr(last.begin, last.end - last.begin);
  (*tokenizer).encode(question.prompt, question.ids);
  if (text.is_chat) {
    Ids all;
    const auto [first, end] = encode_chat(*tokenizer, {text.text, {last}, true}, all)[0];
    const auto special = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(first),
                                      all.begin() + static_cast<std::ptrdiff_t>(end),
                                      [&](std::int32_t id) { return (*tokenizer).is_special(id); });
    const Ids said(all.begin() + static_cast<std::ptrdiff_t>(first), special);
    if (special - all.begin() < static_cast<std::ptrdiff_t>(end)) question.end = *special;
    question.answer = (*tokenizer).decode(said);
  } else if (!begins_with(question.ids, affixes_.before)) {
    question.ids.insert(question.ids.begin(), affixes_.before.begin(), affixes_.before.end());
  }
  if (question.ids.empty())
    throw ConfigError(texts_->where(index) +
                      ": there is nothing before the answer: expected a prompt, as in the columns "
                      "`prompt` and `completion`, or a tokenizer with a beginning-of-sequence "
                      "token");
  return question;
}

PreferenceTokens RecordTokens::preference(std::int64_t index, std::int64_t length,
                                          std::optional<std::int64_t> max_prompt_length,
                                          Truncation truncation) const {
  const PreferenceText text = texts_->preference(index);
  PreferenceTokens pair{tokens_of(text.chosen, index), tokens_of(text.rejected, index)};
  // A first token is never a label, and each answer's tokens are.
  if (pair.chosen.answer[0] || pair.rejected.answer[0])
    throw ConfigError(texts_->where(index) +
                      ": the prompt is empty, and so is its beginning: expected a text, or a "
                      "tokenizer with a beginning-of-sequence token");
  const std::size_t chosen = pair.chosen.ids.size(), rejected = pair.rejected.ids.size();
  if (max_prompt_length) {
    truncate_parts(pair, length, *max_prompt_length, truncation);
  } else {
    truncate(pair.chosen, length, truncation);
    truncate(pair.rejected, length, truncation);
  }
  require_label(pair.chosen, chosen, length, index);
  require_label(pair.rejected, rejected, length, index);
  return pair;
}

}  // namespace trellis::trainer
