// Runs models for another program, one for each two lines of its standard input, INPUT and OUTPUT,
// and answers each with a line, as JSON: null or what went wrong. (Starting LibTorch takes longer
// than most of the models.) Both files are dictionaries, readable by torch.load.
//   INPUT   config {key: number or text}, weights {name: tensor}, input_ids and labels [steps, b,
//           s], and when they matter loss_mask,
//           position_ids, attention_mask, token_type_ids of the same shape, next_sentence_labels
//             [steps, b], or pixel_values
//           [steps, b, c, h, w] in place of input_ids; optimizer {lr, beta1, beta2, eps,
//             weight_decay} to train
//           The run has the type of the weights.
//   OUTPUT  logits [s, b, v] and grads {name: tensor} of the first step, losses [steps], weights
//     {name: tensor} after the last
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/serialization/pickle.h>

#include "base/error.h"
#include "trainer/models/factory.h"
#include "trainer/optimizer/make_update_rule.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::trainer {
namespace {

using Dict = c10::Dict<c10::IValue, c10::IValue>;

Dict read(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw ConfigError("cannot read " + file);
  return torch::jit::pickle_load({std::istreambuf_iterator<char>(stream), {}}).toGenericDict();
}

void write(const std::string& file, const c10::IValue& value) {
  const std::vector<char> bytes = torch::jit::pickle_save(value);
  std::ofstream stream(file, std::ios::binary);
  if (!stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush())
    throw ConfigError("cannot write " + file);
}

using Setter = std::function<void(ModelSection&, const c10::IValue&)>;

template <typename T>
Setter number(T ModelSection::* member) {
  return [member](ModelSection& config, const c10::IValue& value) {
    config.*member = static_cast<T>(value.toScalar().toDouble());
  };
}

Setter of_image(int ImageSection::* member) {
  return [member](ModelSection& config, const c10::IValue& value) {
    if (!config.image) config.image.emplace();
    (*config.image).*member = static_cast<int>(value.toInt());
  };
}

template <typename T>
Setter of_mixture(T MoeSection::* member) {
  return [member](ModelSection& config, const c10::IValue& value) {
    if (!config.moe) config.moe.emplace();
    (*config.moe).*member = static_cast<T>(value.toScalar().toDouble());
  };
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> table{
      {"architecture",
       [](ModelSection& m, const c10::IValue& v) { m.architecture = v.toStringRef(); }},
      {"num_layers", number(&ModelSection::num_layers)},
      {"hidden_size", number(&ModelSection::hidden_size)},
      {"ffn_hidden_size", number(&ModelSection::ffn_hidden_size)},
      {"num_attention_heads", number(&ModelSection::num_attention_heads)},
      {"num_kv_heads", number(&ModelSection::num_kv_heads)},
      {"head_dim", number(&ModelSection::head_dim)},
      {"encoder_seq_length", number(&ModelSection::encoder_seq_length)},
      {"max_position_embeddings", number(&ModelSection::max_position_embeddings)},
      {"vocab_size", number(&ModelSection::vocab_size)},
      {"layernorm_epsilon", number(&ModelSection::layernorm_epsilon)},
      {"rope_theta", number(&ModelSection::rope_theta)},
      {"rotary_percentage", number(&ModelSection::rotary_percentage)},
      {"qkv_linear", number(&ModelSection::qkv_linear)},
      {"fuse_qkv", number(&ModelSection::fuse_qkv)},
      {"fuse_gate_up", number(&ModelSection::fuse_gate_up)},
      {"flash_attention", number(&ModelSection::flash_attention)},
      {"has_bias", number(&ModelSection::has_bias)},
      {"qkv_bias", number(&ModelSection::qkv_bias)},
      {"share_embeddings_and_output_weights",
       number(&ModelSection::share_embeddings_and_output_weights)},
      {"apply_query_key_layer_scaling", number(&ModelSection::apply_query_key_layer_scaling)},
      {"qk_layernorm", number(&ModelSection::qk_layernorm)},
      {"qk_layernorm_across_heads", number(&ModelSection::qk_layernorm_across_heads)},
      {"layernorm_bias", number(&ModelSection::layernorm_bias)},
      {"clip_qkv",
       [](ModelSection& m, const c10::IValue& v) { m.clip_qkv = v.toScalar().toDouble(); }},
      {"normalization", number(&ModelSection::normalization)},
      {"activation", number(&ModelSection::activation)},
      {"transformer_block_type", number(&ModelSection::transformer_block_type)},
      {"position_embedding", number(&ModelSection::position_embedding)},
      {"type_vocab_size", number(&ModelSection::type_vocab_size)},
      {"image_size", of_image(&ImageSection::size)},
      {"patch_size", of_image(&ImageSection::patch)},
      {"num_channels", of_image(&ImageSection::channels)},
      {"num_labels", of_image(&ImageSection::labels)},
      {"moe_num_experts", of_mixture(&MoeSection::num_experts)},
      {"moe_top_k", of_mixture(&MoeSection::top_k)},
      {"moe_dropless", of_mixture(&MoeSection::dropless)},
      {"moe_block_size", of_mixture(&MoeSection::block_size)},
      {"moe_capacity_factor", of_mixture(&MoeSection::capacity_factor)},
      {"moe_output_router_logits", of_mixture(&MoeSection::output_router_logits)},
      {"moe_router_aux_loss_coef", of_mixture(&MoeSection::router_aux_loss_coef)},
      {"moe_routing_algorithm",
       [](ModelSection& m, const c10::IValue& v) {
         if (!m.moe) m.moe.emplace();
         m.moe->routing_algorithm = v.toStringRef();
       }},
      {"moe_num_groups", of_mixture(&MoeSection::num_groups)},
      {"moe_top_k_groups", of_mixture(&MoeSection::top_k_groups)},
      {"moe_num_shared_experts", of_mixture(&MoeSection::num_shared_experts)},
      {"moe_routed_scaling_factor", of_mixture(&MoeSection::routed_scaling_factor)},
      {"moe_normalize_top_k_affinities", of_mixture(&MoeSection::normalize_top_k_affinities)},
      {"lora_rank",
       [](ModelSection& m, const c10::IValue& v) {
         m.lora = LoraSection{.rank = static_cast<int>(v.toInt()),
                              .alpha = 2.0 * static_cast<double>(v.toInt()),
                              .dropout = 0,
                              .targets = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}};
       }},
      {"orpo_beta",
       [](ModelSection& m, const c10::IValue& v) {
         m.orpo = OrpoSection{v.toDouble(), m.orpo && m.orpo->trl};
       }},
      {"orpo_trl",
       [](ModelSection& m, const c10::IValue& v) {
         m.orpo = OrpoSection{m.orpo.value_or(OrpoSection()).beta, v.toBool()};
       }},
      {"recompute", number(&ModelSection::recompute)},
      {"sliding_window",
       [](ModelSection& m, const c10::IValue& v) {
         m.sliding_window = static_cast<int>(v.toInt());
       }},
      {"rope_type",
       [](ModelSection& m, const c10::IValue& v) { m.rope_scaling.type = v.toStringRef(); }},
      {"rope_factor",
       [](ModelSection& m, const c10::IValue& v) { m.rope_scaling.factor = v.toDouble(); }},
      {"rope_low_freq_factor",
       [](ModelSection& m, const c10::IValue& v) {
         m.rope_scaling.low_freq_factor = v.toDouble();
       }},
      {"rope_high_freq_factor",
       [](ModelSection& m, const c10::IValue& v) {
         m.rope_scaling.high_freq_factor = v.toDouble();
       }},
      {"rope_original",
       [](ModelSection& m, const c10::IValue& v) {
         m.rope_scaling.original_max_position_embeddings = static_cast<int>(v.toInt());
       }},
  };
  return table;
}

ModelSection model_section(const Dict& values) {
  ModelSection config;
  config.save_logits = true;
  for (const auto& entry : values) {
    const auto setter = setters().find(entry.key().toStringRef());
    if (setter == setters().end())
      throw ConfigError("unknown key of config: " + entry.key().toStringRef());
    setter->second(config, entry.value());
  }
  return config;
}

/// Every weight must be given, and nothing else.
void set_weights(ParameterList& parameters, const Dict& weights) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters) {
    if (!weights.contains(parameter.name))
      throw ConfigError("no weight was given for " + parameter.name);
    const at::Tensor value = weights.at(parameter.name).toTensor();
    if (value.sizes() != parameter.tensor.sizes()) {
      throw ConfigError(c10::str(parameter.name, ": expected the shape ", parameter.tensor.sizes(),
                                 ", got ", value.sizes()));
    }
    parameter.tensor.copy_(value);
  }
  if (weights.size() != parameters.size())
    throw ConfigError(c10::str("expected ", parameters.size(), " weights, got ", weights.size()));
}

/// Labels of every token that is not padding, as TRL's ORPO has them.
at::Tensor next_tokens(const MicroBatch& batch) {
  at::Tensor tokens = batch.input_ids;
  if (batch.attention_mask.defined()) tokens = tokens.masked_fill(batch.attention_mask.eq(0), -100);
  return at::constant_pad_nd(tokens.narrow(1, 1, tokens.size(1) - 1), {0, 1}, -100);
}

MicroBatch batch_of(const Dict& input, std::int64_t step) {
  const auto part = [&](const char* key) {
    return input.contains(key) ? input.at(key).toTensor()[step] : at::Tensor();
  };
  MicroBatch batch{part("input_ids"),      part("labels"),
                   part("loss_mask"),      part("position_ids"),
                   part("attention_mask"), {},
                   part("token_type_ids"), part("next_sentence_labels"),
                   part("pixel_values")};
  batch.reference_log_probs = part("reference_log_probs");
  if (batch.input_ids.defined()) batch.next_tokens = next_tokens(batch);
  return batch;
}

OptimizerOptions adamw_options(const Dict& values) {
  OptimSection optim;
  optim.name = "adamw";
  optim.beta1 = values.at("beta1").toDouble();
  optim.beta2 = values.at("beta2").toDouble();
  optim.eps = values.at("eps").toDouble();
  OptimizerOptions options;
  options.rule = make_update_rule(optim);
  options.weight_decay = values.at("weight_decay").toDouble();
  return options;
}

Dict make_dict() { return Dict(c10::StringType::get(), c10::AnyType::get()); }

Dict gradients(const ParameterList& parameters) {
  Dict grads = make_dict();
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.requires_grad()) grads.insert(parameter.name, parameter.tensor.grad());
  }
  return grads;
}

void run(const std::string& input_file, const std::string& output_file) {
  const Dict input = read(input_file);
  const ModelSection config = model_section(input.at("config").toGenericDict());
  const ParallelState parallel;
  ParameterList parameters;
  ModuleContext context;
  context.parallel = &parallel;
  context.parameters = &parameters;
  context.backward = std::make_shared<BackwardLayer>();
  const Dict weights = input.at("weights").toGenericDict();
  context.dtype = context.reduce_dtype = weights.begin()->value().toTensor().scalar_type();
  const auto model = make_pipeline_stage(config, context, {0, 1, {0, config.num_layers}});
  set_weights(parameters, weights);

  Dict output = make_dict();
  std::optional<NeuronZero1Optimizer> optimizer;
  double lr = 0;
  if (input.contains("optimizer")) {
    const Dict values = input.at("optimizer").toGenericDict();
    optimizer.emplace(parameters, parallel, adamw_options(values));
    lr = values.at("lr").toDouble();
  }
  std::vector<at::Tensor> losses;
  for (std::int64_t step = 0; step < input.at("labels").toTensor().size(0); ++step) {
    const at::Tensor returned = model->forward({}, batch_of(input, step));
    const at::Tensor loss = model->weighs_its_loss() ? weighted_mean(returned) : returned;
    losses.push_back(loss.detach());
    if (step == 0) output.insert("logits", model->logits());
    loss.backward();
    if (!optimizer) {
      output.insert("grads", gradients(parameters));
      break;
    }
    optimizer->reduce_gradients();
    optimizer->step(lr);
  }
  output.insert("losses", at::stack(losses));
  Dict after = make_dict();
  for (const Parameter& parameter : parameters)
    after.insert(parameter.name, parameter.tensor.detach());
  output.insert("weights", after);
  write(output_file, output);
}

}  // namespace
}  // namespace trellis::trainer

int main() {
  at::set_num_threads(1);  // as a rank has; and two threads that make the math library's first
                           // call at once may get an exp of fewer bits
  for (std::string input, output;
       std::getline(std::cin, input) && std::getline(std::cin, output);) {
    nlohmann::json problem;
    try {
      trellis::trainer::run(input, output);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    std::cout << problem.dump() << std::endl;
  }
}
