#include "sim/storage/checkpoint_plan.h"

#include <numeric>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trellis::sim {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "trellis.checkpoint_plan/1";

json to_json(const RankFiles& rank) {
  return {{"file_bytes", rank.files},
          {"tensors", rank.tensors},
          {"largest_tensor_bytes", rank.largest_tensor},
          {"read_bytes", rank.read_bytes},
          {"read_files", rank.read_files},
          {"state_bytes", rank.state_bytes},
          {"state_tensors", rank.state_tensors}};
}

RankFiles rank_of(const json& row) {
  return {row.at("file_bytes"),   row.at("tensors"),    row.at("largest_tensor_bytes"),
          row.at("read_bytes"),   row.at("read_files"), row.at("state_bytes"),
          row.at("state_tensors")};
}

CheckpointPlan plan_of(const json& document) {
  if (document.at("schema") != kSchema)
    throw ConfigError(std::string("checkpoint plan: expected schema ") + kSchema + ", got " +
                      document.at("schema").dump());
  CheckpointPlan plan;
  plan.every_n_steps = document.at("every_n_steps");
  plan.every_s = document.at("every_s");
  plan.asynchronous = document.at("asynchronous");
  plan.fully_parallel = document.at("fully_parallel");
  plan.storage = document.at("storage");
  plan.overrides = document.at("overrides");
  plan.buffer = Bytes(document.at("buffer_bytes").get<std::int64_t>());
  for (const json& row : document.at("classes")) plan.classes.push_back(rank_of(row));
  plan.class_of = document.at("class_of_rank").get<std::vector<int>>();
  for (const int index : plan.class_of) {
    if (index < 0 || static_cast<std::size_t>(index) >= plan.classes.size())
      throw ConfigError("checkpoint plan: class_of_rank: expected 0 to " +
                        std::to_string(plan.classes.size()) + " exclusive, got " +
                        std::to_string(index));
  }
  return plan;
}

}  // namespace

std::int64_t RankFiles::bytes() const {
  return std::accumulate(files.begin(), files.end(), std::int64_t{0});
}

std::int64_t CheckpointPlan::bytes() const {
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < class_of.size(); ++rank) sum += of(rank).bytes();
  return sum;
}

std::int64_t CheckpointPlan::files() const {
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < class_of.size(); ++rank)
    sum += static_cast<std::int64_t>(of(rank).files.size());
  return sum;
}

std::string CheckpointPlan::to_json() const {
  json rows = json::array();
  for (const RankFiles& rank : classes) rows.push_back(sim::to_json(rank));
  return json({{"schema", kSchema},
               {"every_n_steps", every_n_steps},
               {"every_s", every_s},
               {"asynchronous", asynchronous},
               {"fully_parallel", fully_parallel},
               {"storage", storage},
               {"overrides", overrides},
               {"buffer_bytes", buffer.value},
               {"classes", std::move(rows)},
               {"class_of_rank", class_of}})
      .dump();
}

CheckpointPlan CheckpointPlan::from_json(const std::string& text) {
  try {
    return plan_of(json::parse(text));
  } catch (const json::exception& error) {
    throw ConfigError(std::string("checkpoint plan: ") + error.what());
  }
}

}  // namespace trellis::sim
