#include "trainer/files/data/alignment/record_texts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/data/alignment/chat_answers.h"

namespace trellis::trainer {
namespace {

using Json = nlohmann::ordered_json;

std::string columns_of(const Json& record) {
  std::string names;
  for (const auto& member : record.items())
    names += (names.empty() ? "" : ", ") + terminal_line(member.key()).substr(0, 60);
  return names.empty() ? "none" : names.substr(0, 300);
}

bool has(const Json& record, const char* column) {
  const auto found = record.find(column);
  return found != record.end() && !found->is_null();
}

/// Adds the messages of `more` from number `first` on.
void append(Json& messages, const Json& more, std::size_t first = 0) {
  for (std::size_t i = first; i < more.size(); ++i) messages.push_back(more[i]);
}

/// A turn of the assistant without a text, a call or a thought.
bool says_nothing(const Json& message) {
  const auto empty = [](const Json& value) {
    return value.is_null() || value == "" || value.empty();
  };
  return std::ranges::all_of(message.items(), [&](const auto& member) {
    return member.key() == "role" || empty(member.value());
  });
}

std::size_t common_messages(const Json& a, const Json& b) {
  std::size_t count = 0;
  while (count < a.size() && count < b.size() && a[count] == b[count]) ++count;
  return count;
}

/// A text whose answer is its end.
AnsweredText with_answer(std::string prompt, const std::string& answer) {
  const std::size_t begin = prompt.size(), end = begin + answer.size();
  return {std::move(prompt) + answer, {{begin, end, end, false}}, false};
}

}  // namespace

RecordTexts::RecordTexts(std::shared_ptr<const RecordFile> records, std::string tokenizer)
    : records_(std::move(records)), tokenizer_(std::move(tokenizer)) {}

void RecordTexts::wrong(std::int64_t index, const std::string& what) const {
  throw ConfigError(where(index) + ": " + what);
}

const ChatTemplate& RecordTexts::chat_template(std::int64_t index) const {
  if (tokenizer_.empty())
    wrong(index,
          "the record is a chat, and data.tokenizer has no chat template: expected the folder of a "
          "Hugging Face tokenizer in data.tokenizer.type, or formatted texts (columns `prompt` and "
          "`completion`; of preferences `prompt`, `chosen` and `rejected`)");
  try {
    std::call_once(opened_,
                   [this] { template_ = std::make_unique<const ChatTemplate>(tokenizer_); });
  } catch (const ConfigError& error) {
    wrong(index, std::string("the record is a chat: ") + error.what());
  }
  return *template_;
}

std::string RecordTexts::text(const Json& record, const char* column, std::int64_t index) const {
  const auto found = record.find(column);
  if (found == record.end()) {
    const std::string why = records_->why_absent(column);
    wrong(index, why.empty() ? std::string("there is no column `") + column + "`; the record has " +
                                   columns_of(record)
                             : std::string("column ") + column + ": " + why);
  }
  if (!found->is_string())
    wrong(index, std::string("column ") + column + ": expected a text, got " + found->type_name());
  return found->get<std::string>();
}

const Json& RecordTexts::messages(const Json& record, const char* column,
                                  std::int64_t index) const {
  const Json& messages = record.at(column);
  const std::string name = std::string("column ") + column;
  if (!messages.is_array()) wrong(index, name + ": expected a list of {role, content}");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string turn = name + ": turn " + std::to_string(i + 1);
    if (!message.is_object() || !has(message, "role"))
      wrong(index, turn + ": expected {role, content}, got " + terminal_line(message.dump()));
    if (message.at("role") == "assistant" && says_nothing(message))
      wrong(index, turn + ": the answer is empty, so that nothing would be learned from it");
  }
  return messages;
}

/// `tools`: a list, or its JSON as a text, for columns of one type.
Json RecordTexts::tools(const Json& record, std::int64_t index) const {
  if (!has(record, "tools") || record.at("tools") == "") return nullptr;
  Json tools = record.at("tools");
  if (tools.is_string()) tools = Json::parse(tools.get<std::string>(), nullptr, false);
  if (!tools.is_array() && !tools.is_null())
    wrong(index, std::string("column tools: expected a list, or the JSON of one as a text, got ") +
                     (tools.is_discarded() ? "no JSON" : tools.type_name()));
  return tools;
}

AnsweredText RecordTexts::pair(const Json& record, const char* prompt, const char* answer,
                               std::int64_t index) const {
  return with_answer(text(record, prompt, index), text(record, answer, index));
}

AnsweredText RecordTexts::chat_answer(const Json& record, std::int64_t index) const {
  const auto where_it_is = [&] { return where(index); };
  const Json tools = this->tools(record, index);
  if (has(record, "messages")) {
    const Json& all = messages(record, "messages", index);
    return answers_of_turns({chat_template(index), all, tools, where_it_is});
  }
  if (!has(record, "completion") || !record.at("completion").is_array())
    wrong(index, "column prompt is a list of messages: expected one in column completion");
  Json all = messages(record, "prompt", index);
  const std::size_t prompt = all.size();
  append(all, messages(record, "completion", index));
  return answers_after_prompt({chat_template(index), all, tools, where_it_is}, {0, prompt},
                              {{prompt, all.size()}})[0];
}

AnsweredText RecordTexts::answered(std::int64_t index) const {
  const Json record = records_->record(index);
  AnsweredText result;
  if (has(record, "messages") || (has(record, "prompt") && record.at("prompt").is_array())) {
    result = chat_answer(record, index);
  } else if (has(record, "completion") || (has(record, "prompt") && !has(record, "output"))) {
    result = pair(record, "prompt", "completion", index);
  } else if (has(record, "input") || has(record, "output")) {
    result = pair(record, "input", "output", index);
  } else if (has(record, "text")) {
    result = with_answer("", text(record, "text", index));
  } else {
    for (const char* column : {"messages", "prompt", "completion", "input", "output", "text"})
      if (const std::string why = records_->why_absent(column); !why.empty())
        wrong(index, std::string("column ") + column + ": " + why);
    wrong(index,
          "expected the columns `input` and `output`, `prompt` and `completion`, `messages` or "
          "`text`; the record has " +
              columns_of(record));
  }
  const bool answers = std::ranges::any_of(
      result.answers, [](const AnswerRange& answer) { return answer.end > answer.begin; });
  if (!answers) wrong(index, "the answer is empty, so that nothing would be learned from it");
  return result;
}

PreferenceText RecordTexts::chat_preference(const Json& record, std::int64_t index) const {
  if (!has(record, "rejected") || !record.at("rejected").is_array())
    wrong(index, "column chosen is a list of messages: expected one in column rejected");
  const Json &chosen = messages(record, "chosen", index),
             &rejected = messages(record, "rejected", index);
  const bool has_prompt = has(record, "prompt");
  const std::size_t shared = has_prompt ? 0 : common_messages(chosen, rejected);
  Json all = has_prompt ? messages(record, "prompt", index) : Json::array();
  append(all, chosen);
  const std::size_t prompt = all.size() - chosen.size() + shared, end = all.size();
  append(all, rejected, shared);
  const Json tools = this->tools(record, index);
  auto both = answers_after_prompt({chat_template(index), all, tools, [&] { return where(index); }},
                                   {0, prompt}, {{prompt, end}, {end, all.size()}});
  return {std::move(both[0]), std::move(both[1])};
}

PreferenceText RecordTexts::preference(std::int64_t index) const {
  const Json record = records_->record(index);
  PreferenceText result;
  if (has(record, "chosen") && record.at("chosen").is_array()) {
    result = chat_preference(record, index);
  } else {
    result = {pair(record, "prompt", "chosen", index), pair(record, "prompt", "rejected", index)};
  }
  for (const auto& [name, text] :
       {std::pair{"chosen", &result.chosen}, std::pair{"rejected", &result.rejected}}) {
    if (text->answers[0].end <= text->answers[0].begin)
      wrong(index, std::string("the answer in column ") + name + " is empty");
  }
  return result;
}

}  // namespace trellis::trainer
