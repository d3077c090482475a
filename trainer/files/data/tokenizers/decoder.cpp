#include "trainer/files/data/tokenizers/decoder.h"

#include <utility>

#include "trainer/files/data/tokenizers/byte_alphabet.h"
#include "trainer/files/data/tokenizers/normalizer.h"
#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

void decode_bytes(std::vector<std::string>& tokens) {
  for (std::string& token : tokens) {
    if (auto bytes = bytes_of_alphabet(token)) token = std::move(*bytes);
  }
}

/// Runs of byte tokens become their text; a run that is no UTF-8 becomes one U+FFFD for each byte.
void join_fallback_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> joined;
  std::string run;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (valid_utf8_prefix(run) == run.size()) {
      joined.push_back(run);
    } else {
      for (std::size_t i = 0; i < run.size(); ++i) joined.emplace_back("\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_fallback(token)) {
      run += *byte;
      continue;
    }
    end_run();
    joined.push_back(std::move(token));
  }
  end_run();
  tokens = std::move(joined);
}

void strip(std::string& token, const std::string& content, std::int64_t start, std::int64_t stop) {
  for (; start > 0 && token.starts_with(content); --start) token.erase(0, content.size());
  for (; stop > 0 && token.ends_with(content); --stop) token.erase(token.size() - content.size());
}

void fuse(std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  tokens.assign(1, text);
}

/// A space before a token that begins a word; `cleans`: none before marks and English suffixes.
void join_word_piece(std::string& token, bool first, const std::string& prefix, bool cleans) {
  if (!first) {
    if (token.starts_with(prefix)) {
      token.erase(0, prefix.size());
    } else {
      token.insert(0, " ");
    }
  }
  if (!cleans) return;
  constexpr std::pair<const char*, const char*> kMarks[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kMarks) token = replace_all(token, from, to);
}

std::int64_t count_of(const JsonReader& json) { return json.is_null() ? 0 : json.id(); }

}  // namespace

TokenDecoder::TokenDecoder(const JsonReader& json) : joined_by_space_(json.is_null()) {
  if (!json.is_null()) add(json);
}

void TokenDecoder::add(const JsonReader& json) {
  const std::string& type = json["type"].text();
  if (type == "Sequence") {
    for (const JsonReader& step : json["decoders"].elements()) add(step);
  } else if (type == "ByteLevel") {
    steps_.emplace_back(decode_bytes);
  } else if (type == "ByteFallback") {
    steps_.emplace_back(join_fallback_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back(fuse);
  } else if (type == "Replace") {
    if (json["pattern"]["String"].is_null())
      json["pattern"].unsupported("a pattern that is no String");
    const std::string from = json["pattern"]["String"].text(), to = json["content"].text();
    if (from.empty()) json["pattern"]["String"].wrong("a text that is not empty");
    steps_.emplace_back([from, to](std::vector<std::string>& tokens) {
      for (std::string& token : tokens) token = replace_all(token, from, to);
    });
  } else if (type == "Strip") {
    const std::string content = json["content"].text();
    if (content.empty()) json["content"].wrong("a text that is not empty");
    const std::int64_t start = count_of(json["start"]), stop = count_of(json["stop"]);
    steps_.emplace_back([=](std::vector<std::string>& tokens) {
      for (std::string& token : tokens) strip(token, content, start, stop);
    });
  } else if (type == "Metaspace") {
    const std::string mark = json["replacement"].text();
    if (mark.empty()) json["replacement"].wrong("a character");
    const bool prepends = json["prepend_scheme"].text_or(
                              json["add_prefix_space"].flag(true) ? "always" : "never") != "never";
    steps_.emplace_back([mark, prepends](std::vector<std::string>& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i == 0 && prepends && tokens[i].starts_with(mark)) tokens[i].erase(0, mark.size());
        tokens[i] = replace_all(tokens[i], mark, " ");
      }
    });
  } else if (type == "WordPiece") {
    const std::string prefix = json["prefix"].text_or("##");
    const bool cleans = json["cleanup"].flag(true);
    steps_.emplace_back([prefix, cleans](std::vector<std::string>& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        join_word_piece(tokens[i], i == 0, prefix, cleans);
    });
  } else if (type == "BPEDecoder") {
    const std::string suffix = json["suffix"].text_or("</w>");
    if (suffix.empty()) json["suffix"].wrong("a text that is not empty");
    steps_.emplace_back([suffix](std::vector<std::string>& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    });
  } else {
    json["type"].unsupported(
        "the decoder " + type +
        " (known: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, "
        "WordPiece, BPEDecoder)");
  }
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) step(tokens);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (joined_by_space_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace trellis::trainer
