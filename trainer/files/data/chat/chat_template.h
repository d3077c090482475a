#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace trellis::trainer {

class TemplateChild;

/// Messages of a record that are one chat, as ranges of their numbers.
struct Chat {
  std::vector<std::pair<std::size_t, std::size_t>> turns;
  bool add_generation_prompt = false;
  bool marks = false;  ///< RenderedChat::said is asked for
};

struct RenderedChat {
  std::string text;
  /// Bytes between {% generation %} and {% endgeneration %}: what the assistant wrote. Empty when
  /// the template does not say.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
  /// With Chat::marks, for each message of the chat: the bytes that its content, or else its last
  /// call of a tool, became. Nothing for messages of others than the assistant, for what the
  /// template did not write, and where it changed what was marked.
  std::vector<std::optional<std::pair<std::size_t, std::size_t>>> said;
};

/// The chat template of a Hugging Face tokenizer. Rendered by Jinja in a sandbox, in a process that
/// is ended when it takes longer than the limit. For several threads, of which each has a process
/// for itself.
class ChatTemplate {
 public:
  static constexpr std::chrono::milliseconds kLimit{5000};  ///< of the chats of one record

  /// `tokenizer`: a directory with chat_template.jinja, or with the member "chat_template" in its
  /// tokenizer_config.json; or a file next to them. Throws ConfigError when there is none.
  explicit ChatTemplate(const std::string& tokenizer, std::chrono::milliseconds limit = kLimit);
  ~ChatTemplate();

  /// The text that the template writes where the assistant's answer begins; "" where it writes
  /// none.
  struct GenerationPrompt {
    std::string text;
    bool always = false;  ///< at the end of every chat, whether or not it is asked for
  };
  [[nodiscard]] const GenerationPrompt& generation_prompt() const;

  /// The texts of several chats of one record: `messages` is [{"role": …, "content": …}, …],
  /// `tools` as apply_chat_template takes them, or null. Ordered: templates print them as JSON.
  /// `where` names the record in errors, and is asked only then. Throws ConfigError: the template
  /// does not parse, raises an error for these messages, or does not end within the limit.
  [[nodiscard]] std::vector<RenderedChat> render(const nlohmann::ordered_json& messages,
                                                 const nlohmann::ordered_json& tools,
                                                 const std::vector<Chat>& chats,
                                                 const std::function<std::string()>& where) const;

 private:
  /// A template, and the processes that render it and have nothing to do now.
  struct Variant {
    std::string file, text;
    std::vector<std::unique_ptr<TemplateChild>> free;
  };
  void read(const std::string& directory);
  [[nodiscard]] std::unique_ptr<TemplateChild> take(Variant& variant) const;
  /// null: it is no more.
  void give_back(Variant& variant, std::unique_ptr<TemplateChild> child) const;
  [[nodiscard]] std::unique_ptr<TemplateChild> start(const Variant& variant) const;
  [[nodiscard]] std::string ask(Variant& variant, const std::string& line,
                                const std::function<std::string()>& where) const;

  static constexpr int kMostChildren = 16;  ///< each with its memory; more threads wait

  std::chrono::milliseconds limit_;
  nlohmann::json special_;  ///< {"bos_token": "<s>", …}
  mutable std::once_flag probed_;
  mutable GenerationPrompt prompt_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int children_ = 0;  ///< of both variants
  mutable Variant default_;
  mutable Variant tool_use_;  ///< a separate template for chats with tools; no text: there is none
};

}  // namespace trellis::trainer
