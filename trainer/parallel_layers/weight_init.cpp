#include "trainer/parallel_layers/weight_init.h"

#include <cmath>

namespace trellis::trainer {

WeightInit::WeightInit() {
  method_ = [](const at::Tensor& full, const at::Generator& generator) {
    const double bound = 1 / std::sqrt(static_cast<double>(full.size(-1)));
    full.uniform_(-bound, bound, generator);
  };
}

WeightInit::WeightInit(double standard_deviation) {
  method_ = [standard_deviation](const at::Tensor& full, const at::Generator& generator) {
    full.normal_(0, standard_deviation, generator);
  };
}

WeightInit WeightInit::constant(double value) {
  return WeightInit([value](const at::Tensor& full, const at::Generator&) { full.fill_(value); });
}

}  // namespace trellis::trainer
