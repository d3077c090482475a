#include "trainer/files/data/chat/chat_template.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "trainer/config/sections/hub_tokens.h"
#include "trainer/files/data/chat/template_child.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

/// A document of a tokenizer's folder; an empty object when there is no such file.
json read_document(const fs::path& file) {
  if (!why_no_input_file(file).empty()) return json::object();
  json document = parse_json(read_input_file(file), file.string(), "an object");
  if (!document.is_object())
    throw ConfigError(file.string() + ": expected an object, got " + document.type_name());
  return document;
}

/// Texts of special tokens: "<s>", or {"content": "<s>", …}.
json special_tokens(const fs::path& directory) {
  json special = json::object();
  const ordered_json named = named_special_tokens(directory);
  for (const auto& [name, token] : named.items()) {
    const json text =
        token.is_object() ? json(token.value("content", ordered_json())) : json(token);
    if (text.is_string()) special[name] = text;
  }
  return special;
}

/// UTF-8 only: parse_json has seen to it.
std::string text_of(const ordered_json& document) {
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// Seconds since 1970 that templates take for now, null for the clock's, and the offset from UTC:
/// their process does not see the environment. Builds that must repeat name their day.
ordered_json clock_of_templates() {
  if (const char* day = std::getenv("SOURCE_DATE_EPOCH"); day != nullptr && *day != '\0')
    return {std::strtoll(day, nullptr, 10), 0};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return {nullptr, local.tm_gmtoff};
}

/// The line of JSON with which the answer of a template's process begins; null: it has none.
json document_of(const std::string& answer) {
  json document = json::parse(answer.begin(), std::ranges::find(answer, '\n'), nullptr,
                              /*allow_exceptions=*/false);
  return document.is_object() ? document : json();
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& tokenizer, std::chrono::milliseconds limit)
    : limit_(limit) {
  std::error_code ignored;
  const fs::path directory = fs::is_directory(tokenizer, ignored)
                                 ? fs::path(tokenizer)
                                 : fs::path(tokenizer).parent_path();
  read(directory.string());
  special_ = special_tokens(directory);
}

ChatTemplate::~ChatTemplate() = default;

void ChatTemplate::read(const std::string& directory) {
  const fs::path folder = directory, single = folder / "chat_template.jinja",
                 config = folder / "tokenizer_config.json",
                 extra = folder / "additional_chat_templates" / "tool_use.jinja";
  if (why_no_input_file(single).empty()) {
    default_ = {single.string(), read_input_file(single), {}};
    if (why_no_input_file(extra).empty()) tool_use_ = {extra.string(), read_input_file(extra), {}};
    return;
  }
  const json document = read_document(config);
  const json entry = document.value("chat_template", json());
  if (entry.is_string()) default_ = {config.string(), entry.get<std::string>(), {}};
  if (entry.is_array()) {  // [{"name": "default", "template": …}, …]
    for (const json& named : entry) {
      if (!named.is_object()) continue;
      const std::string name = named.value("name", ""), text = named.value("template", "");
      if (name == "default") default_ = {config.string(), text, {}};
      if (name == "tool_use") tool_use_ = {config.string(), text, {}};
    }
  }
  if (default_.text.empty())
    throw ConfigError(
        "data.tokenizer.type: " + directory +
        ": the records are chats, and the tokenizer has no chat template: expected "
        "chat_template.jinja there, or chat_template in tokenizer_config.json; or give records "
        "with formatted texts (columns prompt and completion)");
}

std::unique_ptr<TemplateChild> ChatTemplate::start(const Variant& variant) const {
  auto child = std::make_unique<TemplateChild>();
  child->await_ready();
  const ordered_json first = {
      {"template", variant.text}, {"special", special_}, {"now", clock_of_templates()}};
  std::string answer;
  const auto end = child->ask(text_of(first) + "\n", limit_, answer);
  const json document = end == TemplateChild::End::kAnswered ? document_of(answer) : json();
  if (document.contains("chats")) return child;
  const std::string why = document.is_object() ? document.value("error", "") : "";
  throw ConfigError(variant.file + ": the chat template does not parse: " +
                    (!why.empty() ? terminal_line(why)
                     : end == TemplateChild::End::kTooLate
                         ? "its parser did not end within " + std::to_string(limit_.count()) + " ms"
                         : "it ended the process, as one that takes too much memory does"));
}

std::unique_ptr<TemplateChild> ChatTemplate::take(Variant& variant) const {
  {
    std::unique_lock lock(mutex_);
    auto& others = (&variant == &default_ ? tool_use_ : default_).free;
    changed_.wait(lock, [&] {
      return !variant.free.empty() || children_ < kMostChildren || !others.empty();
    });
    if (!variant.free.empty()) {
      auto child = std::move(variant.free.back());
      variant.free.pop_back();
      return child;
    }
    if (children_ < kMostChildren) {
      ++children_;
    } else {
      others.pop_back();  // which has nothing to do
    }
  }
  try {
    return start(variant);
  } catch (...) {
    give_back(variant, nullptr);
    throw;
  }
}

void ChatTemplate::give_back(Variant& variant, std::unique_ptr<TemplateChild> child) const {
  {
    const std::lock_guard lock(mutex_);
    if (child != nullptr) {
      variant.free.push_back(std::move(child));
    } else {
      --children_;
    }
  }
  changed_.notify_all();
}

std::string ChatTemplate::ask(Variant& variant, const std::string& line,
                              const std::function<std::string()>& where) const {
  auto child = take(variant);
  std::string answer;
  const auto end = child->ask(line, limit_, answer);
  const bool answered = end == TemplateChild::End::kAnswered;
  give_back(variant, answered ? std::move(child) : nullptr);
  if (answered) return answer;
  throw ConfigError(where() + ": the chat template of " + variant.file +
                    (end == TemplateChild::End::kTooLate
                         ? " did not end within " + std::to_string(limit_.count()) +
                               " ms for this record: correct the template"
                         : " ended its process for this record, as one that takes too much memory "
                           "does: correct the template"));
}

const ChatTemplate::GenerationPrompt& ChatTemplate::generation_prompt() const {
  std::call_once(probed_, [this] {
    const ordered_json messages = {{{"role", "user"}, {"content", "question"}},
                                   {{"role", "assistant"}, {"content", "answer"}}};
    try {
      const auto chats = render(messages, nullptr,
                                {{{{0, 1}}}, {{{0, 1}}, true}, {.turns = {{0, 2}}, .marks = true}},
                                [] { return ""; });
      const std::string &asked = chats[0].text, &prompted = chats[1].text, &whole = chats[2].text;
      if (prompted.starts_with(asked)) prompt_.text = prompted.substr(asked.size());
      if (!prompt_.text.empty() || !chats[2].said[1]) return;
      // Asked for or not: what ends a question that is to be answered also ends an answer.
      const auto [begin, end] = *chats[2].said[1];
      prompt_.always = begin == asked.size() && whole.starts_with(asked) && end < whole.size() &&
                       asked.ends_with(std::string_view(whole).substr(end));
    } catch (const ConfigError&) {  // such as a template that needs a system's message
    }
  });
  return prompt_;
}

std::vector<RenderedChat> ChatTemplate::render(const ordered_json& messages,
                                               const ordered_json& tools,
                                               const std::vector<Chat>& chats,
                                               const std::function<std::string()>& where) const {
  ordered_json listed;
  for (const Chat& chat : chats)
    listed.push_back({{"turns", chat.turns},
                      {"add_generation_prompt", chat.add_generation_prompt},
                      {"marks", chat.marks}});
  // Put together as texts: the messages are long, and a document would copy them.
  const std::string line = "{\"messages\":" + text_of(messages) + ",\"tools\":" + text_of(tools) +
                           ",\"chats\":" + text_of(listed) + "}\n";
  Variant& variant = !tools.is_null() && !tool_use_.text.empty() ? tool_use_ : default_;
  const std::string answer = ask(variant, line, where);
  const json document = document_of(answer);
  if (!document.contains("chats"))
    throw ConfigError(where() + ": the chat template of " + variant.file +
                      " refuses this record: " +
                      terminal_line(document.is_object() ? document.value("error", "") : answer));
  const std::size_t texts = answer.find('\n') + 1;
  std::vector<RenderedChat> rendered;
  for (const json& chat : document.at("chats")) {
    const std::size_t begin = chat.at(0), end = chat.at(1);
    rendered.push_back({answer.substr(texts + begin, end - begin), chat.at(2), {}});
    for (const json& range : chat.at(3)) {
      rendered.back().said.emplace_back();
      if (!range.is_null()) rendered.back().said.back() = {range.at(0), range.at(1)};
    }
  }
  return rendered;
}

}  // namespace trellis::trainer
