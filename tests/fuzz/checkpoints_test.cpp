#include <string>

#include <gtest/gtest.h>

#include "tests/fuzz/changed_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/sample_files.h"
#include "trainer/files/checkpoint/containers/pickle.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

/// Whatever bytes are in a file of a checkpoint, its reader answers with data or a ConfigError.
namespace trellis::fuzz {
namespace {

using namespace checkpoint::testing_support;

struct Checkpoints : testing::Test {
  TemporaryDirectory directory;
  std::shared_ptr<checkpoint::Storage> storage =
      checkpoint::open_storage(directory.path().string());
};

TEST_F(Checkpoints, TorchFile) {
  write_torch_sample(*storage, "model.pt");
  fuzz_files({directory.path() / "model.pt"}, [&] { (void)read_torch(*storage, "model.pt"); });
}

/// Without the archive's checksum before it.
TEST_F(Checkpoints, Pickle) {
  const checkpoint::Value sample = checkpoint::Value::dict(
      {{"a", checkpoint::Value::list({1, 2.5, "x", checkpoint::Value::size({1, 2})})},
       {2, checkpoint::Value::ordered_dict({{"b", checkpoint::Value::bytes("\xff")}})},
       {"c", checkpoint::Value::instance("argparse.Namespace",
                                         checkpoint::Value::dict({{"lr", 0.1}}))}});
  storage->write_text("value.pkl", checkpoint::write_pickle(sample));
  fuzz_files({directory.path() / "value.pkl"}, [&] {
    const std::string bytes = storage->read_text("value.pkl");
    (void)checkpoint::read_pickle(std::as_bytes(std::span(bytes)), {.where = "value.pkl"}).text();
  });
}

TEST_F(Checkpoints, Safetensors) {
  write_safetensors_sample(*storage, "model.safetensors");
  fuzz_files({directory.path() / "model.safetensors"},
             [&] { (void)read_safetensors(*storage, "model.safetensors"); });
}

TEST_F(Checkpoints, SafetensorsIndex) {
  checkpoint::write_safetensors_index(
      *storage, "index.json", {.weight_map = {{"a", "one.safetensors"}, {"b", "two.safetensors"}}});
  fuzz_files({directory.path() / "index.json"},
             [&] { (void)checkpoint::read_safetensors_index(*storage, "index.json"); });
}

TEST_F(Checkpoints, Dcp) {
  write_dcp_sample(*storage, "dcp");
  const std::filesystem::path folder = directory.path() / "dcp";
  fuzz_files({folder / ".metadata", folder / "__0_0.distcp", folder / "__1_0.distcp"},
             [&] { (void)read_dcp(storage, "dcp"); });
}

}  // namespace
}  // namespace trellis::fuzz
