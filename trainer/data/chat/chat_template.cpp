#include "trainer/data/chat/chat_template.h"

#include <filesystem>

#include "base/error.h"
#include "base/escape.h"
#include "base/input_file.h"
#include "base/json_text.h"
#include "trainer/data/chat/template_child.h"

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
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const json document = read_document(directory / name);
    for (const char* token : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                              "cls_token", "mask_token"}) {
      const auto found = document.find(token);
      if (found == document.end() || special.contains(token)) continue;
      const json text = found->is_object() ? found->value("content", json()) : *found;
      if (text.is_string()) special[token] = text;
    }
  }
  return special;
}

/// UTF-8 only: parse_json has seen to it.
std::string line_of(const ordered_json& document) {
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
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
    default_ = {single.string(), read_input_file(single), nullptr};
    if (why_no_input_file(extra).empty())
      tool_use_ = {extra.string(), read_input_file(extra), nullptr};
    return;
  }
  const json document = read_document(config);
  const json entry = document.value("chat_template", json());
  if (entry.is_string()) default_ = {config.string(), entry.get<std::string>(), nullptr};
  if (entry.is_array()) {  // [{"name": "default", "template": …}, …]
    for (const json& named : entry) {
      if (!named.is_object()) continue;
      const std::string name = named.value("name", ""), text = named.value("template", "");
      if (name == "default") default_ = {config.string(), text, nullptr};
      if (name == "tool_use") tool_use_ = {config.string(), text, nullptr};
    }
  }
  if (default_.text.empty())
    throw ConfigError(
        "data.tokenizer.type: " + directory +
        ": the records are chats, and the tokenizer has no chat template: expected "
        "chat_template.jinja there, or chat_template in tokenizer_config.json; or give records "
        "with formatted texts (columns prompt and completion)");
}

void ChatTemplate::start(Variant& variant) const {
  variant.child = std::make_unique<TemplateChild>();
  ordered_json first;
  first["template"] = variant.text;
  first["special"] = special_;
  std::string answer;
  const auto end = variant.child->ask(line_of(first), TemplateChild::kStartLimit, answer);
  const json document = end == TemplateChild::End::kAnswered
                            ? json::parse(answer, nullptr, /*allow_exceptions=*/false)
                            : json();
  if (document.is_object() && document.contains("chats")) return;
  variant.child.reset();
  const std::string why = document.is_object() ? document.value("error", "") : "";
  throw ConfigError(variant.file + ": " +
                    (why.empty() ? find_python() + " did not start: it needs Python 3 with jinja2; "
                                                   "name another one in TRELLIS_PYTHON"
                                 : "the chat template does not parse: " + terminal_line(why)));
}

json ChatTemplate::ask(Variant& variant, const std::string& line,
                       const std::function<std::string()>& where) const {
  if (variant.child == nullptr) start(variant);
  std::string answer;
  const auto end = variant.child->ask(line, limit_, answer);
  if (end == TemplateChild::End::kAnswered) {
    json document = json::parse(answer, nullptr, /*allow_exceptions=*/false);
    if (document.is_object() && document.contains("chats")) return document;
    throw ConfigError(where() + ": the chat template of " + variant.file +
                      " refuses this record: " +
                      terminal_line(document.is_object() ? document.value("error", "") : answer));
  }
  variant.child.reset();
  throw ConfigError(where() + ": the chat template of " + variant.file +
                    (end == TemplateChild::End::kTooLate
                         ? " did not end within " + std::to_string(limit_.count()) +
                               " ms for this record: correct the template"
                         : " ended its process for this record, as one that takes too much memory "
                           "does: correct the template"));
}

std::vector<RenderedChat> ChatTemplate::render(const std::vector<Chat>& chats,
                                               const std::function<std::string()>& where) const {
  ordered_json request;
  bool tools = false;
  for (const Chat& chat : chats) {
    tools = tools || !chat.tools.is_null();
    request["chats"].push_back({{"messages", chat.messages},
                                {"tools", chat.tools},
                                {"add_generation_prompt", chat.add_generation_prompt}});
  }
  const std::lock_guard lock(mutex_);
  Variant& variant = tools && !tool_use_.text.empty() ? tool_use_ : default_;
  const json answer = ask(variant, line_of(request), where);
  std::vector<RenderedChat> rendered;
  for (const json& chat : answer.at("chats")) {
    rendered.push_back({chat.at("text").get<std::string>(), {}});
    for (const json& range : chat.at("generated"))
      rendered.back().generated.emplace_back(range.at(0), range.at(1));
  }
  return rendered;
}

}  // namespace trellis::trainer
