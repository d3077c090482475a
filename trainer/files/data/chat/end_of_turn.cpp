#include "trainer/files/data/chat/end_of_turn.h"

#include <vector>

#include "base/error.h"

namespace trellis::trainer {

std::optional<std::int32_t> end_of_turn(const ChatTemplate& chat_template, Tokenizer& tokenizer) {
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "question"}},
                                           {{"role", "assistant"}, {"content", "answer"}}};
  RenderedChat chat;
  try {
    chat = chat_template.render(messages, nullptr, {{.turns = {{0, 2}}, .marks = true}},
                                [] { return "a question and its answer"; })[0];
  } catch (const ConfigError&) {  // such as a template that needs a system's message
    return std::nullopt;
  }
  if (!chat.said[1]) return std::nullopt;
  std::vector<std::int32_t> ids;
  const std::size_t said[] = {chat.said[1]->second};
  const std::size_t first = tokenizer.encode_at(chat.text, said, ids)[0].ended;
  for (std::size_t i = first; i < ids.size(); ++i)
    if (tokenizer.is_special(ids[i])) return ids[i];
  return std::nullopt;
}

}  // namespace trellis::trainer
