#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "device/compiler/graph/graph.h"
#include "device/compiler/graph/scalars.h"
#include "sim/isa/types.h"

namespace trellis::device {

/// A value inside a recipe: a number known now, or a tensor.
struct Term {
  bool constant = true;
  double number = 0;
  int value = -1;
  Term() = default;
  Term(double n) : number(n) {}  // NOLINT: a number is a term
  static Term of(int v) {
    Term t;
    t.constant = false;
    t.value = v;
    return t;
  }
};

/// Receives the steps of a recipe: a chain under construction.
class StepSink {
 public:
  virtual ~StepSink() = default;
  virtual Term alu(sim::isa::AluOp op, Term a, Term b) = 0;
  virtual Term activation(sim::isa::Activation fn, Term a, double scale, double bias) = 0;
  virtual Term select(Term then, Term predicate, double otherwise) = 0;
  virtual Term reduce(sim::isa::AluOp op, Term a) = 0;
  virtual Term random() = 0;
};

/// One operation as element-wise steps and reductions over its iteration space.
class Recipe {
 public:
  Recipe(StepSink& sink, const Graph& graph, const Node& node, std::vector<Term> inputs)
      : scalars(node.scalars),
        graph_(graph),
        node_(node),
        sink_(sink),
        inputs_(std::move(inputs)),
        outputs_(node.outputs.size()) {}

  const Scalars scalars;

  [[nodiscard]] std::size_t num_inputs() const { return inputs_.size(); }
  [[nodiscard]] std::size_t num_outputs() const { return outputs_.size(); }
  [[nodiscard]] Term in(std::size_t i) const { return inputs_.at(i); }
  /// Input i, or the number that represents it: `other` of add.Scalar, or a number that was wrapped
  /// into a host tensor.
  [[nodiscard]] Term in_or(std::size_t i, std::string_view scalar, double otherwise) const {
    return i < inputs_.size() ? inputs_[i] : Term(scalars.number(scalar, otherwise));
  }
  [[nodiscard]] const TensorView& in_view(std::size_t i) const {
    return graph_.values[node_.inputs[i]].view;
  }
  [[nodiscard]] const TensorView& out_view(std::size_t i) const {
    return graph_.values[node_.outputs[i]].view;
  }
  void out(std::size_t i, Term t) { outputs_.at(i) = t; }
  [[nodiscard]] const std::vector<Term>& results() const { return outputs_; }
  /// Elements that one result of a reduction represents.
  [[nodiscard]] double reduced_count() const { return reduced_count_; }
  void set_reduced_count(double n) { reduced_count_ = n; }

  Term add(Term a, Term b) { return sink_.alu(sim::isa::AluOp::kAdd, a, b); }
  Term sub(Term a, Term b) { return sink_.alu(sim::isa::AluOp::kSubtract, a, b); }
  Term mul(Term a, Term b) { return sink_.alu(sim::isa::AluOp::kMultiply, a, b); }
  Term div(Term a, Term b) { return sink_.alu(sim::isa::AluOp::kDivide, a, b); }
  Term alu(sim::isa::AluOp op, Term a, Term b) { return sink_.alu(op, a, b); }
  Term act(sim::isa::Activation fn, Term a, double scale = 1, double bias = 0) {
    return sink_.activation(fn, a, scale, bias);
  }
  Term select(Term then, Term predicate, double otherwise) {
    return sink_.select(then, predicate, otherwise);
  }
  /// predicate ? a : b without spreading infinities.
  Term where(Term predicate, Term a, Term b);
  Term reduce(sim::isa::AluOp op, Term a) { return sink_.reduce(op, a); }
  /// Every bit of an int32 is drawn.
  Term random() { return sink_.random(); }
  /// A tensor like `like` that holds `number` everywhere.
  Term copy_of(Term like, double number);
  [[nodiscard]] bool is_in_place() const {
    return !node_.outputs.empty() && !node_.inputs.empty() && node_.inputs[0] == node_.outputs[0];
  }
  Term copy(Term a) { return sink_.alu(sim::isa::AluOp::kBypass, a, 0.0); }

 private:
  const Graph& graph_;
  const Node& node_;
  StepSink& sink_;
  std::vector<Term> inputs_;
  std::vector<Term> outputs_;
  double reduced_count_ = 1;
};

using RecipeFunction = void (*)(Recipe&);

/// The dimensions of its iteration space that an operation reduces.
enum class Reduces : std::uint8_t { kNothing, kDims, kLastDims, kLeadingDims };

struct ChainOp {
  RecipeFunction recipe = nullptr;
  Reduces reduces = Reduces::kNothing;
};

/// The element-wise or reducing operation of this (plain) name; nullptr when it is none.
[[nodiscard]] const ChainOp* find_chain_op(std::string_view name);
[[nodiscard]] const ChainOp* find_training_op(
    std::string_view name);  ///< the part of it in recipe_training.cpp

/// "aten::add_.Tensor" → "add", "mm.out" → "mm".
[[nodiscard]] std::string plain_name(std::string_view op);

}  // namespace trellis::device
