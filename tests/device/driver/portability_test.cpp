#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "device/driver/reports/portability.h"

/// The list of what a run used, and what the hardware would do with it.
namespace trellis::device {
namespace {

using nlohmann::json;

Node node(std::string op, std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs,
          Scope scope = {"forward", -1, "model.layers.0"}) {
  Node n;
  n.op = std::move(op);
  n.inputs = std::move(inputs);
  n.outputs = std::move(outputs);
  n.scope = std::move(scope);
  return n;
}

/// Values 0: matrix of `dtype`, 1: a number of it, 2: int64 indices.
Graph graph_of(DType dtype, HostType host = HostType::kSame) {
  Graph g;
  g.buffers.resize(3);
  g.values = {{0, {{4, 4}, {4, 1}, 0, dtype, host}},
              {1, {{}, {}, 0, dtype, host}},
              {2, {{4}, {1}, 0, DType::kInt64}}};
  return g;
}

json list(const Graph& graph, std::int64_t times, int core_version = 3) {
  OperatorUses uses;
  uses.add(graph, times);
  return portability(uses, "trn2.48xlarge", core_version);
}

json row(const json& document, const std::string& op, const std::string& dtype) {
  for (const json& r : document.at("operators")) {
    if (r.at("operator") == op && r.at("dtype") == dtype) return r;
  }
  return nullptr;
}

TEST(PortabilityTest, Bf16IsPortableAndFp64IsNot) {
  Graph bf16 = graph_of(DType::kBf16), fp64 = graph_of(DType::kFp64);
  bf16.nodes = fp64.nodes = {node("mm", {0, 0}, {0})};
  EXPECT_EQ(list(bf16, 3).at("lacking"), 0);
  const json document = list(fp64, 3);
  EXPECT_EQ(document.at("lacking"), 1);
  const json mm = row(document, "mm", "fp64");
  EXPECT_EQ(mm.at("count"), 3);
  EXPECT_EQ(mm.at("on_device"), "computed in fp32 there");
  EXPECT_EQ(mm.at("places"), json::array({"forward model.layers.0"}));
}

TEST(PortabilityTest, IndicesAreNarrowedAndNumbersWithoutDimensionsAreNot) {
  Graph g = graph_of(DType::kBf16);
  g.values[1].view.dtype = DType::kFp64;
  g.nodes = {node("embedding", {0, 2}, {0}), node("add.Tensor", {0, 1}, {0})};
  const json document = list(g, 1);
  EXPECT_EQ(row(document, "embedding", "int64").at("on_device"), "computed in int32 there");
  EXPECT_TRUE(row(document, "add.Tensor", "fp64").is_null());
  EXPECT_EQ(document.at("operators").at(0).at("dtype"), "int64") << "what is lacking comes first";
}

TEST(PortabilityTest, WhatHasNoLoweringRunsOnTheCpu) {
  Graph g = graph_of(DType::kFp32);
  g.nodes = {node("linalg_svd", {0}, {0}), node("normal_", {0}, {0}),
             node("_foreach_add_.List", {0}, {0}), node("_fused_adamw_", {0}, {0})};
  const json document = list(g, 1);
  EXPECT_FALSE(row(document, "linalg_svd", "fp32").at("portable"));
  EXPECT_FALSE(row(document, "normal_", "fp32").at("portable"));
  EXPECT_TRUE(row(document, "_foreach_add_.List", "fp32").at("portable"));
  EXPECT_TRUE(row(document, "_fused_adamw_", "fp32").at("portable"));
}

TEST(PortabilityTest, ComplexUnsignedAndFp8AreReportedByGeneration) {
  EXPECT_NE(lacking(DType::kFp32, HostType::kComplex, 4), "");
  EXPECT_NE(lacking(DType::kInt32, HostType::kUnsigned, 4), "");
  EXPECT_NE(lacking(DType::kFp8E4M3, HostType::kSame, 3), "");
  EXPECT_EQ(lacking(DType::kFp8E4M3, HostType::kSame, 4), "") << "NeuronCore-v4 has OCP's E4M3";
  EXPECT_EQ(lacking(DType::kFp8E5M2, HostType::kSame, 2), "");
  EXPECT_EQ(host_type_name(DType::kFp64, HostType::kComplex), "complex128");
  EXPECT_EQ(host_type_name(DType::kInt16, HostType::kUnsigned), "uint16");
}

TEST(PortabilityTest, GraphsThatNeverRanAreNotListed) {
  Graph g = graph_of(DType::kFp64);
  g.nodes = {node("mm", {0, 0}, {0})};
  EXPECT_TRUE(list(g, 0).at("operators").empty());
}

}  // namespace
}  // namespace trellis::device
