#include <chrono>
#include <iostream>
#include <random>

#include <gtest/gtest.h>

#include "base/yaml/yaml.h"
#include "tests/fuzz/fuzz_clock.h"

/// Whatever bytes are in a file, the reader answers with values, problems or a ConfigError, and
/// never with a crash or another exception.
namespace trellis {
namespace {

constexpr const char* kValid = R"(name: hf_llama3_8B
trainer:
  devices: 32
  num_nodes: ${.devices}
  max_steps: 1000   # a comment
  gradient_clip_val: 1.0
  "quoted key": 'it''s'
model: &model
  sizes: [1, 2, [3, 4]]
  sbuf: 24 MiB
  clock: 1.4 GHz
  batch: ${multiply:${trainer.devices}, 4}
  text: "run_${name}_\u00e9_\n"
  block: |
    several
    lines
  folded: >-
    folded
    text
copy: *model
empty:
nothing: ~
list:
  - {a: 1, b: yes}
  - a: 2
    b: no
path: ${model.sizes.2.1}
)";

using Random = std::mt19937;

char random_byte(Random& random) {
  constexpr std::string_view kTelling = "{}[]:,-?&*!|>'\"%@`#$.\\ \n\t~0a\xff\xc3";
  return random() % 2 == 0 ? kTelling[random() % kTelling.size()] : static_cast<char>(random());
}

void mutate(std::string& text, Random& random) {
  const std::size_t at = random() % (text.size() + 1);
  const std::size_t length = 1 + random() % 12;
  switch (random() % 5) {
    case 0: text.insert(at, 1, random_byte(random)); break;
    case 1: text.erase(at, length); break;
    case 2: text.insert(at, text.substr(random() % (text.size() + 1), length)); break;
    case 3: text.insert(at, std::string(1 + random() % 40, random_byte(random))); break;
    default:
      if (at < text.size()) text[at] = random_byte(random);
  }
}

void read_everything(const YamlMap& map) {
  for (const std::string& key : map.keys()) {
    (void)map.get<std::int64_t>(key, 0);
    (void)map.get<double>(key, 0);
    (void)map.get<bool>(key, false);
    (void)map.get<std::string>(key, "");
    (void)map.get<Bytes>(key, Bytes(0));
    (void)map.get<Hertz>(key, Hertz(0));
    (void)map.get<std::vector<int>>(key, {});
    for (const YamlMap& item : map.list_of_maps(key)) read_everything(item);
    if (map.is_map(key)) read_everything(map.map(key));
  }
  map.reject_unknown();
}

/// Returns whether the text was YAML.
bool survives(const std::string& text, const std::vector<std::string>& overrides) {
  try {
    const auto document = YamlDocument::parse(text, "fuzz.yaml", overrides);
    read_everything(document.root());
    (void)document.resolved_text();
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

class YamlFuzz : public testing::Test {
 protected:
  YamlFuzz() { std::cout << "seed " << seed_ << std::endl; }  // endl: a crash must not swallow it
  [[nodiscard]] static bool goes_on(int round, int rounds,
                                    std::chrono::steady_clock::time_point start) {
    const std::int64_t seconds = fuzz::setting("TRELLIS_FUZZ_SECONDS", 0);
    return (seconds > 0 || round < rounds) && std::chrono::steady_clock::now() - start <
                                                  std::chrono::seconds(seconds > 0 ? seconds : 3);
  }
  unsigned seed_ = static_cast<unsigned>(
      fuzz::setting("TRELLIS_FUZZ_SEED", static_cast<std::int64_t>(std::random_device()())));
  Random random_{seed_};
};

TEST_F(YamlFuzz, MutatedFiles) {
  ASSERT_TRUE(survives(kValid, {}));
  int readable = 0, rounds = 0;
  const auto start = std::chrono::steady_clock::now();
  for (; goes_on(rounds, 10'000, start); ++rounds) {
    std::string text = kValid;
    for (unsigned n = 1 + random_() % 6; n > 0; --n) mutate(text, random_);
    SCOPED_TRACE(text);
    ASSERT_NO_THROW(readable += survives(text, {}) ? 1 : 0);
  }
  EXPECT_GT(readable, rounds / 20) << "mutations that never parse test only the parser";
  EXPECT_LT(readable, rounds);
  std::cout << rounds << " files, " << readable << " of them YAML\n";
}

TEST_F(YamlFuzz, MutatedOverrides) {
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; goes_on(round, 5'000, start); ++round) {
    std::string text = "model.sizes.2=${multiply:${trainer.devices}, 2}";
    for (unsigned n = random_() % 6; n > 0; --n) mutate(text, random_);
    SCOPED_TRACE(text);
    ASSERT_NO_THROW(survives(kValid, {text, "trainer.devices=" + text}));
  }
}

TEST_F(YamlFuzz, DeepNesting) {
  for (const char* unit : {"[", "{a: ", "- ", "? ", "a: {b: ["}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += unit;
    ASSERT_NO_THROW(survives("x: " + text, {}));
    ASSERT_NO_THROW(survives(text, {}));
  }
}

}  // namespace
}  // namespace trellis
