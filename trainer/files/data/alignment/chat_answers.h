#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/files/data/alignment/answered_text.h"
#include "trainer/files/data/chat/chat_template.h"

namespace trellis::trainer {

/// The messages of a record and what renders them.
struct ChatRecord {
  const ChatTemplate& chat_template;
  const nlohmann::ordered_json& messages;
  const nlohmann::ordered_json& tools;
  std::function<std::string()> where;
};

/// The answers in a chat. The model reads the chat as the template writes it. An answer begins
/// after what the template writes to ask for it, and ends where it ends as the last one. Templates
/// that write an answer differently once other turns follow (Qwen 3 leaves thoughts out), or that
/// ask for an answer at the end of every chat (Llama 3's first release): what the assistant said is
/// found in the chat; the answer begins at the template's request before it, and ends with what
/// follows it as the last one, where that is the same, else with the next special token. Throws
/// ConfigError when what was said is not in the chat.

/// Every turn of the assistant, or what {% generation %} marks.
[[nodiscard]] AnsweredText answers_of_turns(const ChatRecord& record);

/// `prompt` and what follows it: all of it is one answer. Both are ranges of messages.
using Turns = std::pair<std::size_t, std::size_t>;
[[nodiscard]] std::vector<AnsweredText> answers_after_prompt(const ChatRecord& record, Turns prompt,
                                                             const std::vector<Turns>& answers);

}  // namespace trellis::trainer
