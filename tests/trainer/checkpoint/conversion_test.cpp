// Opens, compares and converts checkpoints: boxes, types, formats.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "trainer/files/checkpoint/containers/convert.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/conversion/compare.h"
#include "trainer/files/checkpoint/conversion/converted_source.h"
#include "trainer/files/checkpoint/conversion/megatron_writer.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/conversion/verify.h"
#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/files/checkpoint/storage/fault_points.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::conversion_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

TEST(Boxes, RandomOnesMoveTheSameElementsAsALoopOverIndices) {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  for (int round = 0; round < 300; ++round) {
    BoxCopy copy;
    const std::int64_t axes = below(5);
    for (std::int64_t axis = 0; axis < axes; ++axis) {
      const std::int64_t size = 1 + below(4), before_a = below(3), before_b = below(3);
      copy.shape.push_back(size);
      copy.from_offset.push_back(before_a);
      copy.from_shape.push_back(before_a + size + below(2));
      copy.into_offset.push_back(before_b);
      copy.into_shape.push_back(before_b + size + below(2));
    }
    std::vector<std::int32_t> from(static_cast<std::size_t>(elements_of(copy.from_shape))),
        got(static_cast<std::size_t>(elements_of(copy.into_shape)), -1), expected = got;
    std::iota(from.begin(), from.end(), 0);
    for (std::int64_t i = 0; i < elements_of(copy.shape); ++i) {
      std::int64_t rest = i, a = 0, b = 0, step_a = 1, step_b = 1;
      for (std::size_t axis = copy.shape.size(); axis-- > 0; rest /= copy.shape[axis]) {
        a += (copy.from_offset[axis] + rest % copy.shape[axis]) * step_a;
        b += (copy.into_offset[axis] + rest % copy.shape[axis]) * step_b;
        step_a *= copy.from_shape[axis];
        step_b *= copy.into_shape[axis];
      }
      expected[static_cast<std::size_t>(b)] = from[static_cast<std::size_t>(a)];
    }
    const std::span<const std::byte> source = bytes_of(from);
    read_box(
        copy, 4,
        [&](std::int64_t first, std::span<std::byte> into) {
          std::memcpy(into.data(), source.data() + first, into.size());
        },
        bytes_of(got));
    EXPECT_EQ(got, expected);
  }
}

TEST(Boxes, PiecesFollowEachOtherAndAreSmall) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{5, 3}, Shape{2, 3, 4}, Shape{3, 0, 2}}) {
    for (const std::int64_t most : {1, 2, 5, 12, 100}) {
      std::int64_t next = 0;
      for_each_piece(shape, most, [&](const Box& piece) {
        EXPECT_LE(piece.elements(), most);
        for_each_run({shape, piece.offset, piece.shape, Shape(shape.size(), 0), piece.shape},
                     [&](std::int64_t from, std::int64_t, std::int64_t count) {
                       EXPECT_EQ(from, next);
                       next += count;
                     });
      });
      EXPECT_EQ(next, elements_of(shape));
    }
  }
}

std::uint16_t narrow_bits(float value, DType type) {
  std::uint16_t bits = 0;
  convert_elements(DType::kFloat32, std::as_bytes(std::span(&value, 1)), type,
                   std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}

TEST(Convert, EveryHalfPrecisionNumberComesBackFromFp32) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      float wide = 0;
      convert_elements(type, std::as_bytes(std::span(&bits, 1)), DType::kFloat32,
                       std::as_writable_bytes(std::span(&wide, 1)));
      if (std::isnan(wide)) continue;
      ASSERT_EQ(narrow_bits(wide, type), bits) << name(type) << " " << wide;
      // Half-way to the next number: to the even one; a little more: to the next one.
      const std::uint16_t next = bits + 1;
      float above = 0;
      convert_elements(type, std::as_bytes(std::span(&next, 1)), DType::kFloat32,
                       std::as_writable_bytes(std::span(&above, 1)));
      if (!std::isfinite(above) || !std::isfinite(wide) || bits == 0x8000) continue;
      const float half = static_cast<float>((static_cast<double>(wide) + above) / 2);
      if (half == wide || half == above) continue;  // smaller than the numbers of fp32
      EXPECT_EQ(narrow_bits(half, type), bits % 2 == 0 ? bits : next) << name(type) << " " << half;
      EXPECT_EQ(narrow_bits(std::nextafter(half, above), type), next);
    }
    EXPECT_EQ(narrow_bits(std::numeric_limits<float>::max(), type),
              type == DType::kFloat16 ? 0x7C00 : 0x7F80);
  }
  EXPECT_EQ(narrow_bits(65520.0F, DType::kFloat16), 0x7C00);
  EXPECT_EQ(narrow_bits(65519.0F, DType::kFloat16), 0x7BFF);
  EXPECT_FALSE(is_convertible(DType::kInt64, DType::kFloat32));
}

TEST(StateKeys, ComeFromMastersAndWeightsButMomentsFromNothingElse) {
  std::map<std::string, DType> all{{"w", DType::kBFloat16},
                                   {"optimizer.state.fp32_param.w", DType::kFloat32},
                                   {"v", DType::kFloat32}};
  const StoredType stored = [&](const std::string& key) -> std::optional<DType> {
    const auto found = all.find(key);
    return found == all.end() ? std::nullopt : std::optional(found->second);
  };
  EXPECT_EQ(source_key("w", DType::kBFloat16, stored), "w");
  EXPECT_EQ(source_key("w", DType::kFloat32, stored), "optimizer.state.fp32_param.w");
  EXPECT_EQ(source_key("optimizer.state.fp32_param.v", DType::kFloat32, stored), "v");
  EXPECT_EQ(source_key("optimizer.state.ema.w", DType::kFloat32, stored),
            "optimizer.state.fp32_param.w");
  EXPECT_EQ(source_key("optimizer.state.exp_avg.w", DType::kFloat32, stored), "");
  all.erase("w");
  EXPECT_EQ(source_key("w", DType::kBFloat16, stored), "optimizer.state.fp32_param.w");
  EXPECT_EQ(parse_state_key("optimizer.state.exp_avg.a.b"), (StateKey{"exp_avg", "a.b"}));
  EXPECT_EQ(parse_state_key("optimizer.state.exp_avg.a.b").text(), "optimizer.state.exp_avg.a.b");
}

TEST(OpenPlace, SplitsAddresses) {
  const TemporaryDirectory folder;
  const std::string root = folder.path().string();
  for (const char* end : {"/a.ckpt", "/a.ckpt/", "/b/../a.ckpt"}) {
    const Place place = open_place(root + end);
    EXPECT_EQ(place.path, "a.ckpt");
    EXPECT_EQ(place.storage->address(), root);
  }
}

/// A file of whole tensors.
void write_full(const std::string& folder, const std::vector<std::pair<std::string, float>>& values,
                DType dtype = DType::kFloat32) {
  const auto storage = open_storage(folder);
  TorchFileWriter writer(storage->create("checkpoint.pt"));
  Value root = Value::dict();
  for (const auto& [key, value] : values) {
    std::vector<float> numbers(6, value);
    std::vector<std::byte> bytes(6 * static_cast<std::size_t>(element_bytes(dtype)));
    convert_elements(DType::kFloat32, bytes_of(numbers), dtype, bytes);
    root.set(key, Value::tensor(writer.add_tensor({.dtype = dtype, .shape = {2, 3}}, bytes)));
  }
  writer.finish(root);
}

Comparison compared(const TemporaryDirectory& folder, const CompareOptions& options = {}) {
  return compare(*open_checkpoint((folder.path() / "a").string()),
                 *open_checkpoint((folder.path() / "b").string()), options,
                 [](std::int64_t, std::int64_t) {});
}

TEST(Compare, SaysWhatDiffersAndByHowMuch) {
  const TemporaryDirectory folder;
  const std::string a = folder.path() / "a", b = folder.path() / "b";
  write_full(a, {{"same", 1}, {"w", 2}, {"only", 3}, {"optimizer.state.exp_avg.w", 4}});
  write_full(b, {{"same", 1}, {"w", 2.5}, {"more", 3}, {"optimizer.state.exp_avg.w", 5}});
  const Comparison all = compared(folder);
  EXPECT_EQ(all.tensors, 5);
  std::vector<std::string> rows;
  for (const TensorDifference& each : all.differences)
    rows.push_back(each.key + " " + name(each.kind) + " " + std::to_string(each.elements));
  EXPECT_THAT(rows, ElementsAre("more only in B 0", "only only in A 0",
                                "optimizer.state.exp_avg.w values 6", "w values 6"));
  EXPECT_EQ(all.differences.back().max_abs, 0.5);
  EXPECT_EQ(all.differences.back().max_rel, 0.2);
  EXPECT_DOUBLE_EQ(all.differences.back().l2, std::sqrt(6 * 0.25));
  EXPECT_EQ(compared(folder, {.weights_only = true}).tensors, 4);
  EXPECT_EQ(compared(folder, {.tolerance = 0.2}).differences.size(), 2U);
}

TEST(Compare, TypesCountUnlessTheyAreIgnored) {
  const TemporaryDirectory folder;
  write_full(folder.path() / "a", {{"w", 1.5}});
  write_full(folder.path() / "b", {{"w", 1.5}}, DType::kBFloat16);
  const Comparison strict = compared(folder);
  ASSERT_EQ(strict.differences.size(), 1U);
  EXPECT_EQ(strict.differences[0].kind, TensorDifference::Kind::kDType);
  EXPECT_EQ(strict.differences[0].elements, 0);
  EXPECT_TRUE(compared(folder, {.ignore_dtypes = true}).differences.empty());
}

TEST(Compare, NotANumberEqualsItselfAndNothingElse) {
  const TemporaryDirectory folder;
  write_full(folder.path() / "a", {{"w", NAN}, {"z", 0.0F}});
  write_full(folder.path() / "b", {{"w", -NAN}, {"z", -0.0F}});
  EXPECT_TRUE(compared(folder).differences.empty());
  const Comparison bits = compared(folder, {.every_bit = true});
  ASSERT_EQ(bits.differences.size(), 2U);
  EXPECT_EQ(bits.differences[1].elements, 6);
  EXPECT_EQ(bits.differences[1].max_abs, 0);
  write_full(folder.path() / "b", {{"w", 1}, {"z", NAN}});
  const Comparison result = compared(folder, {.tolerance = 1e9});
  ASSERT_EQ(result.differences.size(), 2U);
  EXPECT_EQ(result.differences[0].elements, 6);
  EXPECT_EQ(result.differences[0].max_abs, INFINITY);
}

/// One layer; the source's tables have three rows more than the vocabulary.
constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 5, "hidden_size": 4,
  "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "architectures": ["LlamaForCausalLM"]})";

/// A file of bf16 weights of such a model, as a source.
std::unique_ptr<TensorSource> llama_source(const std::string& folder) {
  const auto map =
      hugging_face::weight_map(hugging_face::read_hub_config(kLlama, "config.json"), "model.",
                               /*with_head=*/false);
  TorchFileWriter writer(open_storage(folder)->create("checkpoint.pt"));
  std::mt19937 random(5);
  Value root = Value::dict();
  for (const hugging_face::NamedTensor& native : map.native) {
    TensorMeta meta{.dtype = DType::kBFloat16, .shape = native.shape};
    if (native.is_table) meta.shape[0] += 3;
    std::vector<float> numbers(static_cast<std::size_t>(elements_of(meta.shape)));
    for (float& number : numbers) number = std::normal_distribution<float>()(random);
    std::vector<std::byte> bytes(2 * numbers.size());
    convert_elements(DType::kFloat32, bytes_of(numbers), meta.dtype, bytes);
    root.set(native.name, Value::tensor(writer.add_tensor(meta, bytes)));
  }
  writer.finish(root);
  return open_checkpoint(folder);
}

TEST(VerifyExport, NamesWhatIsNotWhatWasWritten) {
  const TemporaryDirectory folder;
  const auto source = llama_source(folder.path() / "a");
  const Place out = open_place(folder.path() / "b");
  const hugging_face::SideFiles files{{"config.json", kLlama}, {"tokenizer.json", "{}"}};
  const auto plan = hugging_face::plan_export(*source, {.config_text = kLlama,
                                                        .config_place = "config.json",
                                                        .dtype = DType::kFloat32,
                                                        .max_shard_bytes = 200});
  hugging_face::write_export(*source, plan, files, out);
  const auto verified = [&] {
    return verify_export(*source, plan, files, out, [](std::int64_t, std::int64_t) {});
  };
  const Comparison good = verified();
  EXPECT_EQ(good.tensors, static_cast<std::int64_t>(plan.map.native.size()));
  EXPECT_EQ(good.bytes, plan.bytes);
  EXPECT_TRUE(good.differences.empty());
  // The sign of the last weight of the last file, in which tensors are by name.
  const std::string path = join_path(out.path, plan.shards.back().file);
  std::string text = out.storage->read_text(path);
  text.back() = static_cast<char>(text.back() ^ 0x80);
  out.storage->write_text(path, text);
  const Comparison bad = verified();
  ASSERT_EQ(bad.differences.size(), 1U);
  EXPECT_EQ(bad.differences[0].key, "model.norm.weight");
  EXPECT_EQ(bad.differences[0].elements, 1);
  EXPECT_GT(bad.differences[0].l2, 0);
  out.storage->write_text(join_path(out.path, "tokenizer.json"), "[]");
  EXPECT_THROW((void)verified(), ConfigError);
}

/// All tensors of a source as bf16.
ConvertedSource in_bf16(const TensorSource& source) {
  std::vector<ConvertedSource::Tensor> tensors;
  for (const TensorEntry& entry : source.tensors()) {
    tensors.push_back({entry, entry});
    tensors.back().as.dtype = DType::kBFloat16;
  }
  return {source, tensors};
}

TEST(VerifyImport, ComparesInTheTypesThatWereWritten) {
  const TemporaryDirectory folder;
  write_full(folder.path() / "a", {{"w", 1.0F / 3}, {"z", 0.001F}});
  write_full(folder.path() / "b", {{"w", 1.0F / 3}, {"z", 0.00101F}});
  const auto a = open_checkpoint(folder.path() / "a"), b = open_checkpoint(folder.path() / "b");
  const auto differences = [&](const TensorSource& written) {
    std::vector<std::string> keys;
    for (const TensorDifference& each :
         verify_import(*a, written, [](std::int64_t, std::int64_t) {}).differences)
      keys.push_back(each.key);
    return keys;
  };
  EXPECT_THAT(differences(in_bf16(*a)), testing::IsEmpty()) << "rounding is what was asked for";
  EXPECT_THAT(differences(in_bf16(*b)), ElementsAre("z")) << "small numbers count, too";
  EXPECT_THAT(differences(ConvertedSource(*a, {{a->tensors()[0], a->tensors()[0]}})),
              ElementsAre("z"));
}

/// Path → content.
std::map<std::string, std::string> files_of(Storage& storage, const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const Entry& entry : storage.list(folder, /*recursive=*/true)) {
    if (!entry.is_directory)
      files[entry.path.substr(folder.size())] = storage.read_text(entry.path);
  }
  return files;
}

/// Stops `write` at each of its changes, one after the other. Until it is complete the folder does
/// not open; the same call then gives the bytes of one that nothing stopped.
void stop_at_every_change(const std::string& root,
                          const std::function<void(const Place& place)>& write) {
  const auto storage = open_storage(root);
  write({storage, "whole"});
  const auto expected = files_of(*storage, "whole");
  bool stopped = true;
  int incomplete = 0;
  for (std::int64_t last = 1; stopped; ++last) {
    const Place place{storage, "cut" + std::to_string(last)};
    stopped = false;
    storage->faults().set_hook([&](const FaultPoint& point) {
      stopped = point.number >= last;
      if (stopped) throw StorageStopped();
    });
    try {
      write(place);
    } catch (const StorageStopped&) {}
    storage->faults().set_hook({});
    const bool is_whole = storage->exists(place.path) && files_of(*storage, place.path) == expected;
    if (!is_whole) {
      ++incomplete;
      EXPECT_THROW((void)open_checkpoint(place.address()), ConfigError) << "change " << last;
    }
    if (stopped && !is_whole) write(place);
    EXPECT_EQ(files_of(*storage, place.path), expected) << "change " << last;
  }
  EXPECT_GT(incomplete, 5);
}

/// As transformer_engine names the weights of grouped experts: without one of the usual ends.
TEST(MegatronNames, AKeyOfALayerThatTheMapDoesNotKnowKeepsItsName) {
  const megatron::ShapeOf shapes = {{"decoder.layers.0.mlp.experts.linear_fc1.weight0", {4, 2}},
                                    {"decoder.layers.0.mlp.linear_fc1.layer_norm", {4}},
                                    {"decoder.layers.0.", {4}},
                                    {"decoder.layers.0.scale", {}}};
  const auto weights = megatron::from_megatron(shapes, {.heads = 2}, "here");
  ASSERT_EQ(weights.size(), shapes.size());
  for (const megatron::MegatronWeight& weight : weights) {
    ASSERT_EQ(weight.blocks.size(), 1U) << weight.key;
    EXPECT_EQ(weight.blocks[0].key, "decoder.layers.0." + weight.key);
  }
}

TEST(MegatronNames, AWeightWithoutRowsIsNamed) {
  EXPECT_THAT(
      [] {
        (void)megatron::to_megatron({{"model.layers.0.mlp.gate_proj.weight", {}}}, {.heads = 2},
                                    "here");
      },
      testing::ThrowsMessage<ConfigError>(
          HasSubstr("gate_proj.weight: expected rows, got a single number")));
}

TEST(Restart, AFolderOfMegatronBeginsAgainAfterAStopAtAnyChange) {
  const TemporaryDirectory folder;
  const auto source = llama_source(folder.path() / "a");
  stop_at_every_change(folder.path(), [&](const Place& place) {
    write_megatron(*source, place, {}, {.heads = 2, .kv_heads = 1}, {});
  });
}

TEST(OpenCheckpoint, NamesTheFormatsAndWhatIsThere) {
  const TemporaryDirectory folder;
  const auto storage = open_storage(folder.path().string());
  storage->write_text("x/readme.txt", "no checkpoint");
  try {
    (void)open_checkpoint((folder.path() / "x").string());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("manifest.json"));
    EXPECT_THAT(error.what(), HasSubstr("checkpoint.pt"));
    EXPECT_THAT(error.what(), HasSubstr("found readme.txt"));
  }
  EXPECT_THROW((void)open_checkpoint((folder.path() / "nothing").string()), ConfigError);
  storage->write_text("y/checkpoint.pt", "no torch file");
  EXPECT_THROW((void)open_checkpoint((folder.path() / "y").string()), ConfigError);
  storage->write_text("z/checkpoint", "1");  // a save that was interrupted
  EXPECT_THROW((void)open_checkpoint((folder.path() / "z").string()), ConfigError);
}

}  // namespace
}  // namespace trellis::checkpoint::conversion_test
