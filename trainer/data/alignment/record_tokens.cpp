#include "trainer/data/alignment/record_tokens.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trellis::trainer {
namespace {

using Ids = std::vector<std::int32_t>;

Ids first_of(const Ids& ids, std::int64_t count) {
  return {ids.begin(), ids.begin() + std::min<std::ptrdiff_t>(count, std::ssize(ids))};
}
Ids last_of(const Ids& ids, std::int64_t count) {
  return {ids.end() - std::min<std::ptrdiff_t>(count, std::ssize(ids)), ids.end()};
}

void truncate(AnsweredTokens& tokens, std::int64_t length, Truncation truncation) {
  const std::int64_t extra = std::ssize(tokens.ids) - length;
  if (extra <= 0) return;
  if (truncation == Truncation::kKeepEnd) {
    tokens.ids.erase(tokens.ids.begin(), tokens.ids.begin() + extra);
    tokens.answer.erase(tokens.answer.begin(), tokens.answer.begin() + extra);
  }
  tokens.ids.resize(static_cast<std::size_t>(length));
  tokens.answer.resize(static_cast<std::size_t>(length));
}

/// The first token is never a label.
bool has_label(const AnsweredTokens& tokens) {
  return std::find(tokens.answer.begin() + 1, tokens.answer.end(), true) != tokens.answer.end();
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

  /// Errors name the record.
  void encode(const std::string& text, std::int64_t index, Ids& ids) {
    try {
      tokenizer_->encode(text, ids);
    } catch (const ConfigError& error) {
      throw ConfigError(pool_.texts_->where(index) + ": " + error.what());
    }
  }
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
  free_.push_back(std::move(first));
}

AnsweredTokens RecordTokens::answered(std::int64_t index, std::int64_t length,
                                      Truncation truncation) const {
  const AnsweredText text = texts_->answered(index);
  Lease tokenizer(*this);
  AnsweredTokens tokens;
  if (!text.is_chat) {
    if (const auto bos = (*tokenizer).bos_id()) tokens.ids.push_back(*bos);
    tokens.answer.resize(tokens.ids.size(), false);
  }
  for (const Segment& segment : text.segments) {
    tokenizer.encode(segment.text, index, tokens.ids);
    tokens.answer.resize(tokens.ids.size(), segment.answer);
  }
  if (!text.is_chat) {
    tokens.ids.push_back(eos_id_);
    tokens.answer.push_back(true);
  }
  const std::size_t whole = tokens.ids.size();
  truncate(tokens, length, truncation);
  if (!has_label(tokens))
    throw ConfigError(texts_->where(index) + ": the record has " + std::to_string(whole) +
                      " tokens, and of its answer none is in the " + std::to_string(length) +
                      " that fit (model.encoder_seq_length): shorten the prompt, or set "
                      "model_alignment_strategy.sft.truncation_mode to keep_end");
  return tokens;
}

QuestionTokens RecordTokens::question(std::int64_t index) const {
  const AnsweredText text = texts_->answered(index);
  const auto last = std::find_if(text.segments.rbegin(), text.segments.rend(),
                                 [](const Segment& segment) { return segment.answer; });
  Lease tokenizer(*this);
  QuestionTokens question;
  question.answer = last->text;
  if (!text.is_chat) {
    if (const auto bos = (*tokenizer).bos_id()) question.ids.push_back(*bos);
  }
  for (auto segment = text.segments.begin(); segment != last.base() - 1; ++segment) {
    tokenizer.encode(segment->text, index, question.ids);
    question.prompt += segment->text;
  }
  if (question.ids.empty())
    throw ConfigError(texts_->where(index) +
                      ": there is nothing before the answer: expected a prompt, as in the columns "
                      "`prompt` and `completion`, or a tokenizer with a beginning-of-sequence "
                      "token");
  return question;
}

PreferenceTokens RecordTokens::preference(std::int64_t index, std::int64_t length,
                                          std::int64_t max_prompt_length,
                                          Truncation truncation) const {
  const PreferenceText text = texts_->preference(index);
  Lease tokenizer(*this);
  PreferenceTokens tokens;
  if (!text.is_chat) {
    if (const auto bos = (*tokenizer).bos_id()) tokens.prompt.push_back(*bos);
  }
  tokenizer.encode(text.prompt, index, tokens.prompt);
  for (const auto& [answer, ids] :
       {std::pair{&text.chosen, &tokens.chosen}, std::pair{&text.rejected, &tokens.rejected}}) {
    tokenizer.encode(*answer, index, *ids);
    if (!text.is_chat) ids->push_back(eos_id_);
  }
  const std::int64_t longer = std::max(std::ssize(tokens.chosen), std::ssize(tokens.rejected));
  const auto is_too_long = [&] { return std::ssize(tokens.prompt) + longer > length; };
  if (is_too_long())
    tokens.prompt = truncation == Truncation::kKeepStart
                        ? first_of(tokens.prompt, max_prompt_length)
                        : last_of(tokens.prompt, max_prompt_length);
  if (is_too_long()) {
    tokens.chosen = first_of(tokens.chosen, length - max_prompt_length);
    tokens.rejected = first_of(tokens.rejected, length - max_prompt_length);
  }
  if (tokens.prompt.empty())  // a first token is never a label, and each answer's tokens are
    throw ConfigError(texts_->where(index) +
                      ": the prompt is empty, and so is its beginning: "
                      "expected a text, or a tokenizer with a "
                      "beginning-of-sequence token");
  return tokens;
}

}  // namespace trellis::trainer
