// Trains a configuration on CPU ranks for another program: alignment_program CONFIG OUTPUT
// DIRECTORY [key=value …]. OUTPUT is a dictionary, readable by torch.load: weights {name: tensor}
// at the start (with one rank only), steps [{name: number}], the loss and the metrics of each step.
// DIRECTORY keeps the run's files.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"

namespace trellis::trainer {
namespace {

using Dict = c10::Dict<c10::IValue, c10::IValue>;

Dict make_dict() { return Dict(c10::StringType::get(), c10::AnyType::get()); }

Dict numbers_of(const StepResult& step) {
  Dict numbers = make_dict();
  numbers.insert("loss", step.loss);
  for (const auto& [name, value] : step.metrics) numbers.insert(name, value);
  if (step.val_loss) numbers.insert("val_loss", *step.val_loss);
  return numbers;
}

void run(const std::string& config_file, const std::string& output, const std::string& directory,
         const std::vector<std::string>& overrides) {
  const RunConfig config = load_run_config(config_file, overrides);
  const auto data = make_data_module(config);
  Dict result = make_dict(), weights = make_dict();
  c10::List<c10::IValue> steps(c10::AnyType::get());
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data, {nullptr, nullptr, nullptr, directory});
    if (world.world_size == 1) {
      for (const auto& [name, weight] : trainer.local_weights())
        weights.insert(name, weight.tensor);
    }
    trainer.fit([&](const StepResult& step) { steps.push_back(numbers_of(step)); });
  });
  result.insert("weights", weights);
  result.insert("steps", steps);
  const std::vector<char> bytes = torch::jit::pickle_save(result);
  std::ofstream(output, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace
}  // namespace trellis::trainer

int main(int count, char** arguments) {
  try {
    if (count < 4) throw trellis::ConfigError("usage: alignment_program CONFIG OUTPUT DIRECTORY …");
    trellis::trainer::run(arguments[1], arguments[2], arguments[3],
                          {arguments + 4, arguments + count});
    return 0;
  } catch (const trellis::Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
