#include "trainer/files/data/alignment/chat_answers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace trellis::trainer {
namespace {

using Range = std::pair<std::size_t, std::size_t>;

[[noreturn]] void not_found(const ChatRecord& record, const std::string& what) {
  throw ConfigError(record.where() + ": the chat template writes " + what +
                    " differently when more turns follow, and what it says is not there: mark "
                    "answers in the template by {% generation %}, or give `prompt` and "
                    "`completion`");
}

/// Where an answer begins whose words begin at `said`: after the template's request, the last one
/// before them, or with the words.
std::size_t begin_of(const std::string& whole, std::size_t from, std::size_t said,
                     const std::string& request) {
  if (request.empty()) return said;
  const std::size_t found = whole.rfind(request, said);
  const bool is_between =
      found != std::string::npos && found >= from && found + request.size() <= said;
  return is_between ? found + request.size() : said;
}

/// An answer that was found by its words. `tail`: what follows them where it is the last one.
AnswerRange found_answer(const std::string& whole, std::size_t begin, std::size_t said,
                         std::string_view tail, bool always_prompts) {
  const std::string_view rest = std::string_view(whole).substr(said);
  const bool same = !always_prompts && rest.starts_with(tail);
  const auto equal = std::ranges::mismatch(rest, tail);
  const auto shared = static_cast<std::size_t>(equal.in1 - rest.begin());
  return {begin, said + (same ? tail.size() : shared), said, !same};
}

/// The chat up to each answer, with a request for it, and with the answer.
struct Turn {
  std::size_t message = 0;
  std::string before, after;
};

/// The answers of a chat, one by one, by their words.
std::vector<AnswerRange> found_answers(const ChatRecord& record, const std::string& whole,
                                       const std::vector<Turn>& turns) {
  std::vector<Chat> chats = {{.turns = {{0, record.messages.size()}}, .marks = true}};
  for (const Turn& turn : turns) chats.push_back({.turns = {{0, turn.message + 1}}, .marks = true});
  const auto marked =
      record.chat_template.render(record.messages, record.tools, chats, record.where);
  const ChatTemplate::GenerationPrompt& request = record.chat_template.generation_prompt();
  std::vector<AnswerRange> answers;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::string name = "answer " + std::to_string(i + 1);
    const auto& said = marked[0].said[turns[i].message];
    const auto& alone = marked[i + 1].said[turns[i].message];
    if (!said || !alone || marked[0].text != whole || marked[i + 1].text != turns[i].after)
      not_found(record, name);
    const std::size_t from = answers.empty() ? 0 : answers.back().end;
    const bool asked = whole.starts_with(turns[i].before) && turns[i].before.size() <= said->first;
    const std::size_t begin =
        asked ? turns[i].before.size() : begin_of(whole, from, said->first, request.text);
    answers.push_back(found_answer(whole, begin, said->second,
                                   std::string_view(turns[i].after).substr(alone->second),
                                   request.always));
  }
  return answers;
}

bool is_kept(const std::string& whole, const std::vector<Turn>& turns) {
  return std::ranges::all_of(turns, [&](const Turn& turn) {
    return turn.after.starts_with(turn.before) && whole.starts_with(turn.after);
  });
}

/// One answer after a prompt, in a chat whose last message of the assistant is `message`.
AnswerRange found_after(const ChatRecord& record, const Chat& chat, const std::string& whole,
                        const std::string& before, std::size_t first) {
  const auto marked =
      record.chat_template.render(record.messages, record.tools, {chat}, record.where);
  std::optional<Range> words, last;
  for (std::size_t i = first; i < marked[0].said.size(); ++i) {
    if (!marked[0].said[i]) continue;
    last = marked[0].said[i];
    if (!words) words = last;
  }
  if (!words || marked[0].text != whole) not_found(record, "the answer");
  const ChatTemplate::GenerationPrompt& request = record.chat_template.generation_prompt();
  const bool asked = whole.starts_with(before) && before.size() <= words->first;
  const std::size_t begin = asked ? before.size() : begin_of(whole, 0, words->first, request.text);
  return found_answer(whole, begin, last->second, std::string_view(whole).substr(last->second),
                      request.always);
}

AnswerRange plain(std::size_t begin, std::size_t end) { return {begin, end, end, false}; }

}  // namespace

AnsweredText answers_of_turns(const ChatRecord& record) {
  const std::size_t size = record.messages.size();
  std::vector<Chat> chats = {{{{0, size}}}};
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < size; ++i) {
    if (record.messages[i].at("role") != "assistant") continue;
    turns.push_back({i, "", ""});
    chats.push_back({{{0, i}}, true});
    if (i + 1 < size) chats.push_back({{{0, i + 1}}});  // else the whole chat
  }
  if (turns.empty())
    throw ConfigError(record.where() + ": column messages: no turn is of the assistant");
  auto rendered = record.chat_template.render(record.messages, record.tools, chats, record.where);
  AnsweredText result{rendered[0].text, {}, true};
  // A template that marks the answers itself may write earlier turns differently.
  for (const auto& [begin, end] : rendered[0].generated)
    result.answers.push_back(plain(begin, end));
  if (!result.answers.empty()) return result;
  if (rendered.size() % 2 == 0) rendered.push_back(rendered[0]);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    turns[i].before = std::move(rendered[2 * i + 1].text);
    turns[i].after = std::move(rendered[2 * i + 2].text);
  }
  if (!is_kept(result.text, turns) || record.chat_template.generation_prompt().always) {
    result.answers = found_answers(record, result.text, turns);
    return result;
  }
  for (const Turn& turn : turns)
    result.answers.push_back(plain(turn.before.size(), turn.after.size()));
  return result;
}

std::vector<AnsweredText> answers_after_prompt(const ChatRecord& record, Turns prompt,
                                               const std::vector<Turns>& answers) {
  std::vector<Chat> chats = {{{prompt}, true}};
  for (const Turns& answer : answers) chats.push_back({{prompt, answer}});
  const auto rendered =
      record.chat_template.render(record.messages, record.tools, chats, record.where);
  const std::string& before = rendered[0].text;
  const bool always = record.chat_template.generation_prompt().always;
  std::vector<AnsweredText> results;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::string& whole = rendered[i + 1].text;
    AnsweredText result{whole, {plain(before.size(), whole.size())}, true};
    if (always || !whole.starts_with(before)) {
      Chat chat = chats[i + 1];
      chat.marks = true;
      result.answers = {found_after(record, chat, whole, before, prompt.second - prompt.first)};
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace trellis::trainer
