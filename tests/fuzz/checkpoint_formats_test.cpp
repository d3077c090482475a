#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fuzz/changed_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/spread.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/checkpoint/training/write_native.h"
#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/conversion/full_writer.h"
#include "trainer/files/checkpoint/conversion/megatron_writer.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"
#include "trainer/files/checkpoint/formats/hugging_face/weight_map.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

/// Whatever bytes are in the files of a checkpoint, of whatever format, opening and reading it
/// gives tensors or a ConfigError.
namespace trellis::fuzz {
namespace {

namespace fs = std::filesystem;
using checkpoint::Box;
using checkpoint::TensorEntry;
using checkpoint::TensorSource;
using checkpoint::testing_support::config_of;

constexpr const char* kConfig = R"({"model_type": "llama", "num_hidden_layers": 2,
  "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
  "vocab_size": 64, "tie_word_embeddings": false})";

/// The first pieces of every tensor.
void read_tensors(const TensorSource& source) {
  std::vector<std::byte> bytes;
  for (const TensorEntry& entry : source.tensors()) {
    int pieces = 0;
    checkpoint::for_each_piece(entry.shape, 4096, [&](const Box& box) {
      if (++pieces > 4) throw ConfigError(source.address() + ": a larger tensor than was written");
      bytes.resize(
          static_cast<std::size_t>(box.elements() * checkpoint::element_bytes(entry.dtype)));
      source.read(entry, box, bytes);
    });
  }
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.file_size() > 1) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

struct CheckpointFormats : testing::Test {
  TemporaryDirectory directory;
  const std::string hub = (directory.path() / "hub").string();

  /// Weights of a small Llama in two files.
  void write_hub() {
    using namespace checkpoint::hugging_face;
    fs::create_directory(hub);
    put(fs::path(hub) / "config.json", kConfig);
    const WeightMap map = weight_map(read_hub_config(kConfig, "config"), "model.", true);
    std::vector<std::pair<std::string, checkpoint::TensorMeta>> parts[2];
    std::map<std::string, std::string> index;
    for (std::size_t i = 0; i < map.hub.size(); ++i) {
      parts[i % 2].emplace_back(map.hub[i].name, checkpoint::TensorMeta{.shape = map.hub[i].shape});
      index[map.hub[i].name] = "model-" + std::to_string(i % 2) + ".safetensors";
    }
    const auto storage = checkpoint::open_storage(hub);
    for (const std::size_t i : {0U, 1U}) {
      checkpoint::SafetensorsWriter writer(
          storage->create("model-" + std::to_string(i) + ".safetensors"), parts[i]);
      for (const std::size_t place : writer.data_order())
        writer.write(std::vector<std::byte>(
            static_cast<std::size_t>(parts[i][place].second.bytes()), std::byte{1}));
      writer.finish();
    }
    checkpoint::write_safetensors_index(*storage, "model.safetensors.index.json",
                                        {.weight_map = index});
  }

  static void fuzz(const fs::path& folder) {
    fuzz_files(files_in(folder),
               [&] { read_tensors(*checkpoint::open_checkpoint(folder.string())); });
  }
};

TEST_F(CheckpointFormats, HuggingFace) {
  write_hub();
  fuzz(hub);
}

TEST_F(CheckpointFormats, Megatron) {
  write_hub();
  const fs::path folder = directory.path() / "megatron";
  checkpoint::write_megatron(*checkpoint::open_checkpoint(hub),
                             checkpoint::open_place(folder.string()), {}, {4, 2}, {});
  fuzz(folder);
}

TEST_F(CheckpointFormats, Full) {
  write_hub();
  const fs::path folder = directory.path() / "full";
  checkpoint::write_full(*checkpoint::open_checkpoint(hub), checkpoint::open_place(folder.string()),
                         {}, {});
  fuzz(folder);
}

/// A training's files, with our manifest and, as NxD has them, without it.
TEST_F(CheckpointFormats, NativeAndNxd) {
  trainer::RunConfig config = config_of({{2, 1, 1, false, true}}, "fp32", 1);
  config.model.num_layers = 1;
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  (void)checkpoint::testing_support::train(config, directory.path().string());
  for (const bool xser : {false, true}) {
    const fs::path folder = directory.path() / (xser ? "xser" : "plain");
    config.exp_manager.checkpoints.save_xser = xser;
    (void)checkpoint::write_native(
        *checkpoint::open_checkpoint(
            checkpoint::testing_support::checkpoint_of(config, directory.path().string(), 1)),
        checkpoint::open_place(folder.string()), config, {}, {});
    if (!xser) fuzz(folder);
    fs::remove(folder / "manifest.json");
    fs::remove(folder / "user_content.pt");
    fuzz_files(files_in(folder),
               [&] { read_tensors(*checkpoint::open_checkpoint(folder.string(), config)); });
  }
}

/// Experts on two ranks: NxD's two optimizers in one dict, and Megatron-core's axis of experts.
TEST_F(CheckpointFormats, Mixtures) {
  trainer::RunConfig config = config_of({{1, 1, 2, false, true}}, "fp32", 1);
  config.model.num_layers = 1;
  config.model.architecture = "mixtral";
  config.model.moe = trainer::MoeSection{.num_experts = 2, .top_k = 1, .dropless = true};
  config.distributed_strategy.expert_model_parallel_size = 2;
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  (void)checkpoint::testing_support::train(config, directory.path().string());
  const auto source = checkpoint::open_checkpoint(
      checkpoint::testing_support::checkpoint_of(config, directory.path().string(), 1));
  const fs::path folder = directory.path() / "nxd";
  (void)checkpoint::write_native(*source, checkpoint::open_place(folder.string()), config,
                                 {.for_nxd = true}, {});
  fs::remove(folder / "user_content.pt");
  fuzz_files(files_in(folder),
             [&] { read_tensors(*checkpoint::open_checkpoint(folder.string(), config)); });
  const fs::path megatron = directory.path() / "megatron";
  checkpoint::write_megatron(*source, checkpoint::open_place(megatron.string()), {},
                             {config.model.num_attention_heads, config.model.num_kv_heads}, {});
  fuzz(megatron);
}

}  // namespace
}  // namespace trellis::fuzz
