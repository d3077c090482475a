#include "trainer/data/alignment/record_texts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/escape.h"

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

/// A text cut at the ranges of its answers.
std::vector<Segment> cut(const std::string& text,
                         const std::vector<std::pair<std::size_t, std::size_t>>& answers) {
  std::vector<Segment> segments;
  std::size_t begin = 0;
  const auto add = [&](std::size_t end, bool answer) {
    if (end > begin) segments.push_back({text.substr(begin, end - begin), answer});
    begin = std::max(begin, end);
  };
  for (const auto& [first, end] : answers) {
    add(first, false);
    add(end, true);
  }
  add(text.size(), false);
  return segments;
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

std::vector<RenderedChat> RecordTexts::render(const Json& messages, const Json& tools,
                                              const std::vector<Chat>& chats,
                                              std::int64_t index) const {
  return chat_template(index).render(messages, tools, chats, [&] { return where(index); });
}

std::string RecordTexts::text(const Json& record, const char* column, std::int64_t index) const {
  const auto found = record.find(column);
  if (found == record.end())
    wrong(index,
          std::string("there is no column `") + column + "`; the record has " + columns_of(record));
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

AnsweredText RecordTexts::turns(const Json& messages, const Json& tools, std::int64_t index) const {
  const std::size_t size = messages.size();
  std::vector<Chat> chats = {{{{0, size}}}};
  for (std::size_t i = 0; i < size; ++i) {
    if (messages[i].at("role") != "assistant") continue;
    chats.push_back({{{0, i}}, true});
    if (i + 1 < size) chats.push_back({{{0, i + 1}}});  // else the whole chat
  }
  if (chats.size() == 1) wrong(index, "column messages: no turn is of the assistant");
  auto rendered = render(messages, tools, chats, index);
  const std::string whole = rendered[0].text;
  // A template that marks the answers itself may write earlier turns differently.
  if (!rendered[0].generated.empty()) return {cut(whole, rendered[0].generated), true};
  if (rendered.size() % 2 == 0) rendered.push_back(rendered[0]);
  std::vector<std::pair<std::size_t, std::size_t>> answers;
  for (std::size_t i = 1; i < rendered.size(); i += 2) {
    const std::string &before = rendered[i].text, &after = rendered[i + 1].text;
    if (!after.starts_with(before) || !whole.starts_with(after))
      wrong(index,
            "the chat template writes answer " + std::to_string(i / 2 + 1) +
                " differently when more turns follow, so that its place is unknown: mark answers "
                "in the template by {% generation %}, or give `prompt` and `completion`");
    answers.emplace_back(before.size(), after.size());
  }
  return {cut(whole, answers), true};
}

AnsweredText RecordTexts::answered(std::int64_t index) const {
  const Json record = records_->record(index);
  AnsweredText result;
  if (has(record, "messages")) {
    result = turns(messages(record, "messages", index), tools(record, index), index);
  } else if (has(record, "prompt") && record.at("prompt").is_array()) {
    if (!has(record, "completion") || !record.at("completion").is_array())
      wrong(index, "column prompt is a list of messages: expected one in column completion");
    const Json &prompt = messages(record, "prompt", index),
               &completion = messages(record, "completion", index);
    Json all = prompt;
    append(all, completion);
    const auto chats = render(all, tools(record, index),
                              {{{{0, all.size()}}}, {{{0, prompt.size()}}, true}}, index);
    const std::string &whole = chats[0].text, &before = chats[1].text;
    if (!whole.starts_with(before))
      wrong(index, "the chat template writes the prompt differently when the completion follows");
    result = {{{before, false}, {whole.substr(before.size()), true}}, true};
  } else if (has(record, "completion") || (has(record, "prompt") && !has(record, "output"))) {
    result.segments = {{text(record, "prompt", index), false},
                       {text(record, "completion", index), true}};
  } else if (has(record, "input") || has(record, "output")) {
    result.segments = {{text(record, "input", index), false},
                       {text(record, "output", index), true}};
  } else if (has(record, "text")) {
    result.segments = {{text(record, "text", index), true}};
  } else {
    wrong(index,
          "expected the columns `input` and `output`, `prompt` and `completion`, `messages` or "
          "`text`; the record has " +
              columns_of(record));
  }
  const bool answers = std::ranges::any_of(
      result.segments, [](const Segment& part) { return part.answer && !part.text.empty(); });
  if (!answers) wrong(index, "the answer is empty, so that nothing would be learned from it");
  return result;
}

PreferenceText RecordTexts::preference(std::int64_t index) const {
  const Json record = records_->record(index);
  PreferenceText result;
  if (has(record, "chosen") && record.at("chosen").is_array()) {
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
    const auto chats =
        render(all, tools(record, index),
               {{{{0, prompt}}, true}, {{{0, end}}}, {{{0, prompt}, {end, all.size()}}}}, index);
    const std::string& before = chats[0].text;
    if (!chats[1].text.starts_with(before) || !chats[2].text.starts_with(before))
      wrong(index, "the chat template writes the prompt differently when an answer follows");
    result = {before, chats[1].text.substr(before.size()), chats[2].text.substr(before.size()),
              true};
  } else {
    result = {text(record, "prompt", index), text(record, "chosen", index),
              text(record, "rejected", index), false};
  }
  for (const auto& [name, answer] :
       {std::pair{"chosen", &result.chosen}, std::pair{"rejected", &result.rejected}}) {
    if (answer->empty()) wrong(index, std::string("the answer in column ") + name + " is empty");
  }
  return result;
}

}  // namespace trellis::trainer
