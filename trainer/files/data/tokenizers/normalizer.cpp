#include "trainer/files/data/tokenizers/normalizer.h"

#include <memory>

#include "trainer/files/data/tokenizers/regex.h"
#include "trainer/files/data/tokenizers/unicode_forms.h"

namespace trellis::trainer {

Normalizer::Normalizer(const JsonReader& json) {
  if (!json.is_null()) add(json);
}

void Normalizer::add(const JsonReader& json) {
  const std::string& type = json["type"].text();
  const auto form = [this](UnicodeForm which) {
    steps_.emplace_back([which](const std::string& text) { return normal_form(text, which); });
  };
  if (type == "Sequence") {
    for (const JsonReader& step : json["normalizers"].elements()) add(step);
  } else if (type == "Prepend") {
    steps_.emplace_back([to = json["prepend"].text()](const std::string& text) {
      return text.empty() ? text : to + text;
    });
  } else if (type == "Replace") {
    add_replace(json);
  } else if (type == "BertNormalizer") {
    add_bert(json);
  } else if (type == "Lowercase") {
    steps_.emplace_back(lower_case);
  } else if (type == "StripAccents") {
    steps_.emplace_back([](const std::string& text) { return without(text, CharSet::kAccents); });
  } else if (type == "Strip") {
    const bool left = json["strip_left"].flag(true), right = json["strip_right"].flag(true);
    steps_.emplace_back(
        [left, right](const std::string& text) { return stripped(text, left, right); });
  } else if (type == "Nmt") {
    steps_.emplace_back(nmt_cleaned);
  } else if (type == "NFC") {
    form(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    form(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    form(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    form(UnicodeForm::kNfkd);
  } else {
    json["type"].unsupported("the normalizer " + type +
                             " (known: Sequence, Prepend, Replace, Lowercase, Strip, "
                             "StripAccents, Nmt, NFC, NFD, NFKC, NFKD, BertNormalizer)");
  }
}

void Normalizer::add_replace(const JsonReader& json) {
  const JsonReader pattern = json["pattern"];
  const std::string to = json["content"].text();
  if (pattern["String"].is_null()) {
    const auto regex = std::make_shared<const Regex>(pattern["Regex"].text(), pattern.where());
    steps_.emplace_back([regex, to](const std::string& text) {
      std::string result;
      std::size_t place = 0;
      while (const auto match = regex->find(text, place)) {
        result.append(text, place, match->begin - place).append(to);
        place = match->end;
      }
      return result.append(text, place);
    });
    return;
  }
  const std::string from = pattern["String"].text();
  if (from.empty()) pattern["String"].wrong("a text that is not empty");
  steps_.emplace_back([from, to](const std::string& text) { return replace_all(text, from, to); });
}

void Normalizer::add_bert(const JsonReader& json) {
  const bool lower = json["lowercase"].flag(true);
  if (json["clean_text"].flag(true)) steps_.emplace_back(cleaned);
  if (json["handle_chinese_chars"].flag(true)) steps_.emplace_back(spaced_chinese);
  if (json["strip_accents"].flag(lower))
    steps_.emplace_back([](const std::string& text) {
      return without(normal_form(text, UnicodeForm::kNfd), CharSet::kBertAccents);
    });
  if (lower) steps_.emplace_back(lower_case);
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) result = step(std::move(result));
  return result;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t place = 0; place <= text.size();) {
    const std::size_t found = std::min(text.find(from, place), text.size());
    result.append(text.substr(place, found - place));
    if (found == text.size()) break;
    result.append(to);
    place = found + from.size();
  }
  return result;
}

}  // namespace trellis::trainer
