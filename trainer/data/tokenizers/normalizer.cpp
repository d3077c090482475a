#include "trainer/data/tokenizers/normalizer.h"

namespace trellis::trainer {

Normalizer::Normalizer(const JsonReader& json) {
  if (!json.is_null()) add(json);
}

void Normalizer::add(const JsonReader& json) {
  const std::string& type = json["type"].text();
  if (type == "Sequence") {
    for (const JsonReader& step : json["normalizers"].elements()) add(step);
  } else if (type == "Prepend") {
    steps_.push_back({"", json["prepend"].text()});
  } else if (type == "Replace") {
    if (json["pattern"]["String"].is_null())
      json["pattern"].unsupported("a pattern that is no String");
    const std::string& from = json["pattern"]["String"].text();
    if (from.empty()) json["pattern"]["String"].wrong("a text that is not empty");
    steps_.push_back({from, json["content"].text()});
  } else {
    json["type"].unsupported("the normalizer " + type + " (known: Sequence, Prepend, Replace)");
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) {
    if (step.from.empty()) {
      if (!result.empty()) result.insert(0, step.to);
    } else {
      result = replace_all(result, step.from, step.to);
    }
  }
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
