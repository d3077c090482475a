#include "trainer/config/known_keys.h"

#include <set>

#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;

std::string dotted(const KeyGroup& group, const std::string& key) { return group.section.empty() ? key : std::string(group.section) + "." + key; }

std::set<std::string> sections() {
  std::set<std::string> names;
  for (const KeyGroup& group : key_groups()) names.emplace(group.section);
  return names;
}

/// Visits every key of the table with its group.
template <typename Visitor>
void for_each_key(KeyUse use, Visitor visit) {
  for (const std::string& section : sections()) {
    for (const KnownKey& known : known_keys_of(section)) {
      if (known.group->use == use) visit(*known.group, known.key);
    }
  }
}

TEST(KnownKeys, NameEachKeyOncePerSection) {
  for (const std::string& section : sections()) {
    std::set<std::string> seen;
    for (const KnownKey& known : known_keys_of(section)) EXPECT_TRUE(seen.insert(known.key).second) << section << "." << known.key;
  }
}

TEST(KnownKeys, SectionsAndTheirKeysBelongTogether) {
  std::set<std::string> opened = {""};
  for_each_key(KeyUse::kSection, [&](const KeyGroup& group, const std::string& key) { opened.insert(dotted(group, key)); });
  EXPECT_EQ(opened, sections());
}

TEST(KnownKeys, IgnoredKeysTakeAnyValue) {
  for_each_key(KeyUse::kIgnored, [](const KeyGroup& group, const std::string& key) {
    for (const char* value : {"anything", "null", "[1, 2]", "{a: 1}"}) EXPECT_EQ(problems_of(kBaseConfig, {dotted(group, key) + "=" + value}), "");
  });
}

TEST(KnownKeys, NeutralValuesAreAcceptedAndOthersNamed) {
  for_each_key(KeyUse::kNeutral, [](const KeyGroup& group, const std::string& key) {
    const std::string path = dotted(group, key);
    std::string neutral(group.neutral);
    const std::string preferred = neutral.substr(0, neutral.find('|'));
    for (std::size_t bar = 0; !neutral.empty(); neutral.erase(0, bar == std::string::npos ? bar : bar + 1)) {
      bar = neutral.find('|');
      EXPECT_EQ(problems_of(kBaseConfig, {path + "=" + neutral.substr(0, bar)}), "");
    }
    EXPECT_EQ(problems_of(kBaseConfig, {path + "=something_else"}),
              "command line:" + path + ": known key, not carried out in this version (got something_else); remove it or set it to its neutral value " +
                  preferred);
  });
}

TEST(KnownKeys, AbsentKeysWhoseNxdtDefaultIsNotCarriedOutMustBeWritten) {
  for_each_key(KeyUse::kNeutral, [](const KeyGroup& group, const std::string& key) {
    if (group.nxdt_default.empty()) return;
    const std::string line = "  " + key + ": " + std::string(group.neutral) + "\n";
    EXPECT_EQ(problems_of(changed(line, "")), "run.yaml:19:" + dotted(group, key) + ": missing: NxDT's default " + std::string(group.nxdt_default) +
                                                  " is not carried out in this version; write `" + key + ": " + std::string(group.neutral) + "`");
    EXPECT_EQ(problems_of(changed(line, ""), {"model_source=hf"}), "") << "a Hugging Face Llama has no other shape";
  });
}

TEST(IsNeutral, ComparesValuesNotSpellings) {
  EXPECT_TRUE(is_neutral("0.0", "0"));
  EXPECT_TRUE(is_neutral("1.", "1|null"));
  EXPECT_TRUE(is_neutral("False", "false"));
  EXPECT_TRUE(is_neutral("~", "1|null"));
  EXPECT_TRUE(is_neutral("Null", "null"));
  EXPECT_FALSE(is_neutral("0.1", "0"));
  EXPECT_FALSE(is_neutral("10", "1"));
  EXPECT_FALSE(is_neutral("", "null"));
}

}  // namespace
}  // namespace trellis::trainer
