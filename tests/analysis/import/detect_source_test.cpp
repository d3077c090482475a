#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/import/sources.h"
#include "base/error.h"
#include "tests/support/temporary_directory.h"

namespace trellis::analysis {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DetectSource : public testing::Test {
 protected:
  TemporaryDirectory directory_;

  std::string detect(const std::string& name, const std::string& text) {
    return detect_source(directory_.write(name, text));
  }
  std::string error_of(const std::string& path) {
    try {
      return "no error: " + detect_source(path);
    } catch (const ConfigError& error) {
      return error.what();
    }
  }
};

TEST_F(DetectSource, ContentDecidesNotTheName) {
  EXPECT_EQ(detect("a.txt", "distributed_strategy:\n  zero1: true\n"), "nxdt");
  EXPECT_EQ(detect("b.yaml", "# --num-layers of Megatron\nmodel_source: hf\n"), "nxdt");
  EXPECT_EQ(detect("c.yaml", "trainer: {devices: 8}\nmodel:\n  tensor_model_parallel_size: 8\n"),
            "nemo");
  EXPECT_EQ(detect("d.yaml", "trainer: {}\nmodel: {pipeline_model_parallel_size: 2}\n"), "nemo");
  EXPECT_EQ(detect("e.sh", "#!/bin/bash\nARGS=\"--num-layers 32\"\ntorchrun x.py $ARGS\n"),
            "megatron");
  EXPECT_EQ(detect("f", "python pretrain_gpt.py --lr 1\n"), "megatron");
  EXPECT_EQ(detect("g.sh", "--num-layers=32 \\\n  --hidden-size 64"), "megatron");
  EXPECT_EQ(detect("k.txt", "# pretrain_gpt.py\n[job]\n[training]  \nsteps = 1\n"), "torchtitan");
  EXPECT_EQ(detect("l.toml", "  [model]  # of Meta\n  flavor = \"8B\"\n\t[training]\n"),
            "torchtitan");
  EXPECT_EQ(detect("m.json", R"({"model_spec": {}, "parallelism": {}})"), "torchtitan");
  EXPECT_EQ(detect("h.json", R"({"model_type": "llama"})"), "hf");
  EXPECT_EQ(detect("i", R"({"architectures": null})"), "hf");
  EXPECT_EQ(detect("j.json", R"({"model_source": "hf", "trainer": {}})"), "nxdt");
}

TEST_F(DetectSource, AFolderIsAModel) {
  const std::string config = directory_.write("model/config.json", "{}");
  EXPECT_EQ(detect_source((directory_.path() / "model").string()), "hf");
  std::filesystem::remove(config);
  const std::string folder = (directory_.path() / "model").string();
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr(folder), HasSubstr("no config.json")));
}

TEST_F(DetectSource, AnythingElseIsRefusedWithWhatWasExpected) {
  for (const std::string& text :
       {std::string(), std::string("seed: 1\n"), std::string("- 1\n- 2\n"), std::string("[1, 2"),
        std::string("# --num-layers 3\n# pretrain_gpt.py\n"), std::string("{\"a\": NaN}"),
        std::string("--num-layers-per-stage 2\n"), std::string("pretrain_gpt.pyc"),
        std::string("[job]\na = 1\n"), std::string("trainer: {}\nmodel: 3\n"),
        std::string("\0\xff\x1b[2J", 7), std::string(100000, '['), std::string(100000, '{')}) {
    const std::string file = directory_.write("file", text);
    EXPECT_THAT(error_of(file),
                AllOf(HasSubstr(file), HasSubstr("nxdt:"), HasSubstr("nemo:"),
                      HasSubstr("megatron:"), HasSubstr("torchtitan:"), HasSubstr("hf:")));
  }
}

TEST_F(DetectSource, ArgumentsWithoutAModelGetAdvice) {
  const std::string file = directory_.write("args.json", R"({"output_dir": "x"})");
  EXPECT_THAT(error_of(file), AllOf(HasSubstr(file), HasSubstr("training_args.json")));
  EXPECT_THAT(error_of((directory_.path() / "none").string()), HasSubstr("none"));
}

}  // namespace
}  // namespace trellis::analysis
