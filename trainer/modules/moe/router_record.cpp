#include "trainer/modules/moe/router_record.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "trainer/config/parameter_count.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

using RecordPtr = std::shared_ptr<RouterRecord>;

at::ScalarType sums_dtype(at::ScalarType hidden) {
  return hidden == at::kDouble ? at::kDouble : at::kFloat;
}

/// `numbers` after `hidden`, in hidden's type: the same bits where that is narrower.
at::Tensor packed(const at::Tensor& hidden, const at::Tensor& numbers) {
  const at::Tensor flat = numbers.reshape(-1).contiguous();
  return at::cat({hidden.reshape(-1), flat.view(hidden.scalar_type())});
}

struct Unpacked {
  at::Tensor hidden, numbers;
};

Unpacked unpacked(const at::Tensor& all, at::IntArrayRef sizes) {
  const std::int64_t elements = c10::multiply_integers(sizes);
  const at::Tensor rest = all.narrow(0, elements, all.size(0) - elements).clone();
  return {all.narrow(0, 0, elements).view(sizes), rest.view(sums_dtype(all.scalar_type()))};
}

/// Derivative of the softmax, whose value is saved, from the gradient of its mean over tokens.
class AuxiliaryGradient final : public Derivative {
 public:
  AuxiliaryGradient(const at::Tensor& probabilities, RecordPtr record, int ranks)
      : record_(std::move(record)), ranks_(ranks) {
    save(probabilities);
  }

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor p = saved(0);
    TORCH_INTERNAL_ASSERT(record_->gradient.defined(),
                          "the auxiliary loss took no part in the loss");
    const at::Tensor v = record_->gradient.to(p.scalar_type());
    const at::Tensor mean = p.matmul(v).unsqueeze(1);
    const double scale = 1.0 / static_cast<double>(p.size(0) * ranks_);
    return {(p * (v - mean)).mul_(scale).to(grads[0].scalar_type()).add_(grads[0])};
  }
  RecordPtr record_;
  int ranks_;
};

class AuxiliaryLossBackward final : public Derivative {
 public:
  AuxiliaryLossBackward(const at::Tensor& by_probability, RecordPtr record)
      : record_(std::move(record)) {
    save(by_probability);
  }

 private:
  Tensors backward(Tensors grads) override {
    record_->gradient = saved(0) * grads[0].select(0, 0);
    return grads;
  }
  RecordPtr record_;
};

/// Sums over the whole sequences: probabilities are means over their tokens. `weight`: the mean
/// over their parts, by which each part's loss depends on its probabilities.
struct WholeSums {
  at::Tensor assigned, probabilities, weight;
};

WholeSums of_whole_sequences(const at::Tensor& own, const at::Tensor& weight,
                             const ParallelGroup& context) {
  if (context.size == 1) return {own.select(0, 0), own.select(0, 1), weight};
  const at::Tensor all = all_reduce(at::cat({own.reshape(-1), weight.reshape({1})}), context);
  const std::int64_t experts = own.size(1);
  return {all.narrow(0, 0, experts), all.narrow(0, experts, experts) / context.size,
          all[2 * experts] / context.size};
}

class PackBackward final : public Derivative {
 public:
  PackBackward(std::vector<std::int64_t> sizes, RecordPtr record)
      : sizes_(std::move(sizes)), record_(std::move(record)) {}

 private:
  Tensors backward(Tensors grads) override {
    Unpacked gradient = unpacked(grads[0], sizes_);
    record_->gradient = gradient.numbers.view({2, -1}).select(0, 1);
    return {gradient.hidden};
  }
  std::vector<std::int64_t> sizes_;
  RecordPtr record_;
};

/// The sums of earlier layers have the gradient that this stage's own have.
class UnpackBackward final : public Derivative {
 public:
  explicit UnpackBackward(RecordPtr record) : record_(std::move(record)) {}

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor& gradient = record_->gradient;
    return {packed(grads[0], at::stack({at::zeros_like(gradient), gradient}))};
  }
  RecordPtr record_;
};

}  // namespace

AuxiliaryLoss auxiliary_loss_of(const ModelSection& model) {
  if (!model.moe || !model.moe->output_router_logits || model.orpo) return {};
  AuxiliaryLoss loss{model.moe->router_aux_loss_coef, model.moe->num_experts, model.moe->top_k, 0};
  for (int layer = 0; layer < model.num_layers; ++layer)
    loss.layers += is_moe_layer(model, layer) ? 1 : 0;
  return loss.layers > 0 ? loss : AuxiliaryLoss{};
}

at::Tensor router_sums(const RouterRecord& record) {
  std::vector<at::Tensor> assigned, probabilities;
  for (const auto& [index, layer] : record.layers) {
    assigned.push_back(layer.assigned.to(layer.probabilities.scalar_type()));
    probabilities.push_back(layer.probabilities);
  }
  if (assigned.empty()) return record.sums_before;
  const at::Tensor sums = at::stack({at::stack(assigned).sum(0), at::stack(probabilities).sum(0)});
  return record.sums_before.defined() ? sums + record.sums_before : sums;
}

at::Tensor with_auxiliary_gradient(const at::Tensor& logits, const at::Tensor& probabilities,
                                   RecordPtr record, int ranks) {
  if (!needs_derivative({logits})) return logits;
  at::Tensor output;
  {
    BelowAutograd below;
    output = logits.alias();
  }
  attach(c10::make_intrusive<AuxiliaryGradient>(probabilities.detach(), std::move(record), ranks),
         {logits}, {output});
  return output;
}

at::Tensor with_auxiliary_loss(const at::Tensor& sums, const AuxiliaryLoss& loss,
                               std::int64_t tokens, RecordPtr record,
                               const ParallelGroup& context) {
  at::Tensor output, by_probability;
  {
    BelowAutograd below;
    const auto layers = static_cast<double>(loss.layers);
    const at::Tensor weight = sums.select(0, 1);
    const WholeSums whole =
        of_whole_sequences(router_sums(*record).to(sums.scalar_type()), weight, context);
    const double scale = loss.coefficient * static_cast<double>(loss.experts) /
                         static_cast<double>(loss.top_k * tokens * context.size) /
                         (layers * layers);
    by_probability = whole.assigned * (whole.weight * scale);
    const at::Tensor value = (whole.assigned * (weight * scale) * whole.probabilities).sum();
    output = at::stack({sums.select(0, 0) + value, weight});
  }
  if (needs_derivative({sums}))
    attach(c10::make_intrusive<AuxiliaryLossBackward>(by_probability, std::move(record)), {sums},
           {output});
  return output;
}

std::int64_t packed_elements(const AuxiliaryLoss& loss, at::ScalarType dtype) {
  if (!loss.is_on()) return 0;
  return 2 * loss.experts *
         static_cast<std::int64_t>(c10::elementSize(sums_dtype(dtype)) / c10::elementSize(dtype));
}

at::Tensor pack_border(const at::Tensor& hidden, RecordPtr record) {
  at::Tensor output;
  {
    BelowAutograd below;
    output = packed(hidden, router_sums(*record).to(sums_dtype(hidden.scalar_type())));
  }
  if (needs_derivative({hidden}))
    attach(c10::make_intrusive<PackBackward>(hidden.sizes().vec(), std::move(record)), {hidden},
           {output});
  return output;
}

at::Tensor unpack_border(const at::Tensor& all, const std::vector<std::int64_t>& sizes,
                         std::int64_t experts, RecordPtr record) {
  at::Tensor output;
  {
    BelowAutograd below;
    Unpacked parts = unpacked(all, sizes);
    record->sums_before = parts.numbers.view({2, experts});
    output = parts.hidden.alias();
  }
  if (needs_derivative({all}))
    attach(c10::make_intrusive<UnpackBackward>(std::move(record)), {all}, {output});
  return output;
}

}  // namespace trellis::trainer
