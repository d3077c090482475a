#include "trainer/files/data/tokenizers/post_processor.h"

#include <string>
#include <vector>

namespace trellis::trainer {
namespace {

/// {"SpecialToken": {"id": "<s>", …}} or {"Sequence": {"id": "A", …}}, in order.
SpecialAffixes template_affixes(const JsonReader& json) {
  SpecialAffixes affixes;
  bool after = false;
  for (const JsonReader& piece : json["single"].elements()) {
    if (!piece["Sequence"].is_null()) {
      after = true;
      continue;
    }
    const std::string& name = piece["SpecialToken"]["id"].text();
    std::vector<std::int32_t>& ids = after ? affixes.after : affixes.before;
    for (const JsonReader& id : json["special_tokens"][name]["ids"].elements())
      ids.push_back(id.id());
  }
  return affixes;
}

/// ["[CLS]", 101]
std::int32_t second_of(const JsonReader& pair) {
  const auto parts = pair.elements();
  if (parts.size() != 2) pair.wrong("[\"token\", id]");
  return parts[1].id();
}

}  // namespace

SpecialAffixes read_affixes(const JsonReader& json) {
  if (json.is_null()) return {};
  const std::string& type = json["type"].text();
  if (type == "TemplateProcessing") return template_affixes(json);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{second_of(json["cls"])}, {second_of(json["sep"])}};
  if (type == "ByteLevel") return {};
  if (type != "Sequence")
    json["type"].unsupported("the post-processor " + type +
                             " (known: Sequence, TemplateProcessing, BertProcessing, "
                             "RobertaProcessing, ByteLevel)");
  SpecialAffixes all;
  for (const JsonReader& step : json["processors"].elements()) {
    const SpecialAffixes one = read_affixes(step);
    all.before.insert(all.before.begin(), one.before.begin(), one.before.end());
    all.after.insert(all.after.end(), one.after.begin(), one.after.end());
  }
  return all;
}

}  // namespace trellis::trainer
