#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/files/data/alignment/answered_text.h"
#include "trainer/files/data/chat/chat_template.h"
#include "trainer/files/data/records/record_file.h"

namespace trellis::trainer {

/// A record of preference optimization: the prompt with each of its answers.
struct PreferenceText {
  AnsweredText chosen, rejected;
};

/// Records as texts. Columns are found by their names, record by record; messages are lists of
/// {"role", "content", …}, rendered by the tokenizer's chat template with the record's `tools`.
/// Safe for several threads. Members throw ConfigError, which names file and record, when a column
/// is missing or of the wrong type, or an answer is empty.
class RecordTexts {
 public:
  /// `tokenizer`: data.tokenizer.type; its template is read when the first chat is.
  RecordTexts(std::shared_ptr<const RecordFile> records, std::string tokenizer);

  /// `messages`: every turn of the assistant is an answer, or what the template marks by {%
  /// generation %}; `prompt` and `completion`, both texts or both messages; `input` and `output`;
  /// or `text`, an answer as a whole.
  [[nodiscard]] AnsweredText answered(std::int64_t index) const;
  /// `prompt`, `chosen` and `rejected`, all texts or all messages; messages may repeat the prompt
  /// in `chosen` and `rejected` instead.
  [[nodiscard]] PreferenceText preference(std::int64_t index) const;

  [[nodiscard]] std::int64_t num_records() const { return records_->num_records(); }
  [[nodiscard]] std::string where(std::int64_t index) const { return records_->where(index); }

 private:
  using Json = nlohmann::ordered_json;
  [[nodiscard]] Json tools(const Json& record, std::int64_t index) const;
  [[nodiscard]] const ChatTemplate& chat_template(std::int64_t index) const;
  [[nodiscard]] std::string text(const Json& record, const char* column, std::int64_t index) const;
  /// The texts of two columns.
  [[nodiscard]] AnsweredText pair(const Json& record, const char* prompt, const char* answer,
                                  std::int64_t index) const;
  /// The messages of a column. Each has a role, and no answer is empty.
  [[nodiscard]] const Json& messages(const Json& record, const char* column,
                                     std::int64_t index) const;
  [[nodiscard]] AnsweredText chat_answer(const Json& record, std::int64_t index) const;
  [[nodiscard]] PreferenceText chat_preference(const Json& record, std::int64_t index) const;
  [[noreturn]] void wrong(std::int64_t index, const std::string& what) const;

  std::shared_ptr<const RecordFile> records_;
  std::string tokenizer_;
  mutable std::once_flag opened_;
  mutable std::unique_ptr<const ChatTemplate> template_;
};

}  // namespace trellis::trainer
