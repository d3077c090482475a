#include "trainer/app/prepare/software_facts.h"

#include <cstdint>

#include "trainer/optimizer/optimizer_options.h"

namespace trellis::trainer {
namespace {

std::int64_t logits_at_cut_bytes(const RunConfig& config) {
  if (!reads_forward(config)) return 0;
  const std::int64_t sequences =
      std::int64_t{config.data.micro_batch_size} * sequences_per_sample(config.model);
  return sequences * config.model.encoder_seq_length * config.model.vocab_size / config.tp() *
         static_cast<std::int64_t>(c10::elementSize(model_dtype(config.precision)));
}

}  // namespace

bool reads_forward(const RunConfig& config) { return config.model.orpo && config.model.orpo->trl; }

analysis::SoftwareFacts software_facts(const RunConfig& config, bool functionalization) {
  return {config.software, functionalization, logits_at_cut_bytes(config)};
}

}  // namespace trellis::trainer
