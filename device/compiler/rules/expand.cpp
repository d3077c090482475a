#include "device/compiler/rules/expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "device/compiler/graph/recipe.h"
#include "sim/collectives/stage_steps.h"

namespace trellis::device {
namespace {

using Ids = std::vector<std::uint32_t>;

class Expander {
 public:
  explicit Expander(const Graph& graph) : graph_(graph) {
    out_.graph.name = graph.name;
    out_.graph.buffers = graph.buffers;
    out_.graph.values = graph.values;
    out_.graph.comms = graph.comms;
  }

  ExpandedGraph run() {
    for (index_ = 0; index_ < graph_.nodes.size(); ++index_) expand_node(graph_.nodes[index_]);
    return std::move(out_);
  }

 private:
  void put(Node node) {
    out_.graph.nodes.push_back(std::move(node));
    out_.origin.push_back(index_);
  }

  void put(const Node& like, std::string op, std::string scalars, Ids inputs, Ids outputs) {
    Node node;
    node.op = std::move(op);
    node.scalars = std::move(scalars);
    node.inputs = std::move(inputs);
    node.outputs = std::move(outputs);
    node.scope = like.scope;
    put(std::move(node));
  }

  void expand_node(const Node& node) {
    const std::string name = node.kind == Node::Kind::kOp ? plain_name(node.op) : std::string();
    constexpr std::string_view kForeach = "_foreach_";
    if (name.starts_with(kForeach)) return expand_list(node, name.substr(kForeach.size()));
    if (name == "_fused_adamw" || name == "_fused_adam") return expand_adam(node, name);
    if (name == "_fused_sgd") return expand_sgd(node);
    if (name == "_fused_rms_norm_backward") return expand_rms_backward(node);
    if (name == "native_layer_norm_backward") return expand_layer_norm_backward(node);
    if (name == "_amp_foreach_non_finite_check_and_unscale") return expand_unscale(node);
    put(node);
  }

  [[nodiscard]] const TensorView& view(std::uint32_t value) const {
    return graph_.values[value].view;
  }
  [[nodiscard]] bool single(std::uint32_t value) const { return view(value).elements() == 1; }

  /// k lists of n tensors, then tensors that all share.
  void expand_list(const Node& node, const std::string& name) {
    const std::size_t n = node.outputs.size();
    if (n == 0) return;
    const std::size_t lists = node.inputs.size() / n, shared = node.inputs.size() % n;
    const Scalars scalars(node.scalars);
    const std::vector<std::string> numbers = split_list(scalars.text("scalars"));
    for (std::size_t i = 0; i < n; ++i) {
      Ids inputs;
      for (std::size_t l = 0; l < lists; ++l) inputs.push_back(node.inputs[l * n + i]);
      for (std::size_t s = 0; s < shared; ++s) inputs.push_back(node.inputs[lists * n + s]);
      std::string text = rename_scalar(name, node.scalars);
      if (!numbers.empty())
        text += fmt::format(" {}={}", scalar_name(name), numbers[std::min(i, numbers.size() - 1)]);
      put(node, name, text, inputs, {node.outputs[i]});
    }
  }

  /// The list forms call every number "scalar", the single forms by its meaning.
  static std::string scalar_name(const std::string& name) {
    if (name == "pow") return "exponent";
    if (name == "addcmul" || name == "addcdiv") return "value";
    if (name == "lerp") return "weight";
    if (name == "clamp_min" || name == "maximum") return "min";
    if (name == "clamp_max" || name == "minimum") return "max";
    return "other";
  }

  static std::string rename_scalar(const std::string& name, const std::string& scalars) {
    constexpr std::string_view kScalar = "scalar=";
    std::string text = scalars;
    if (const auto at = text.find(kScalar);
        at != std::string::npos && (at == 0 || text[at - 1] == ' ')) {
      text.replace(at, kScalar.size(), scalar_name(name) + "=");
    }
    return text;
  }

  static std::vector<std::string> split_list(const std::string& text) {
    std::vector<std::string> out;
    std::string word;
    for (char c : text) {
      if (c == '[' || c == ' ') continue;
      if (c != ',' && c != ']') {
        word += c;
        continue;
      }
      if (!word.empty()) out.push_back(word);
      word.clear();
    }
    return out;
  }

  /// params, grads, exp_avgs, exp_avg_sqs, [max_exp_avg_sqs], state_steps, then single tensors (lr,
  /// grad_scale, found_inf).
  void expand_adam(const Node& node, const std::string& name) {
    const bool amsgrad = Scalars(node.scalars).flag("amsgrad", false);
    const std::size_t lists = amsgrad ? 6 : 5;
    const std::size_t n = node.inputs.size() / lists;
    const std::size_t steps = (lists - 1) * n;
    for (std::size_t i = 0; i < n; ++i) {
      Ids inputs, outputs;
      for (std::size_t l = 0; l < lists - 1; ++l) inputs.push_back(node.inputs[l * n + i]);
      inputs.push_back(node.inputs[steps + i]);
      if (node.inputs.size() > lists * n)
        inputs.push_back(node.inputs.back());  // the learning rate, when it is a tensor
      outputs = {inputs[0], inputs[2], inputs[3]};
      if (amsgrad) outputs.push_back(inputs[4]);
      put(node, name, node.scalars, inputs, outputs);
    }
  }

  /// params, grads, [momentum buffers]
  void expand_sgd(const Node& node) {
    const bool momentum = Scalars(node.scalars).number("momentum", 0) != 0;
    const std::size_t lists = momentum ? 3 : 2;
    const std::size_t n = node.inputs.size() / lists;
    for (std::size_t i = 0; i < n; ++i) {
      Ids inputs{node.inputs[i], node.inputs[n + i]}, outputs{node.inputs[i]};
      if (momentum) {
        inputs.push_back(node.inputs[2 * n + i]);
        outputs.push_back(node.inputs[2 * n + i]);
      }
      put(node, "_fused_sgd", node.scalars, inputs, outputs);
    }
  }

  void expand_unscale(const Node& node) {
    if (node.inputs.size() < 3) return;
    const std::uint32_t inverse = node.inputs.back();
    for (std::size_t i = 0; i + 2 < node.inputs.size(); ++i)
      put(node, "mul", "", {node.inputs[i], inverse}, {node.inputs[i]});
  }

  /// grad, input, rstd, [weight] → dx, dweight as the mask says.
  void expand_rms_backward(const Node& node) {
    const Ids& in = node.inputs;
    std::size_t next = 0;
    const std::string shape = "normalized_shape=" + Scalars(node.scalars).text("normalized_shape");
    if (next < node.outputs.size() && view(node.outputs[next]).sizes == view(in[1]).sizes)
      put(node, "rms_norm_dx", shape, in, {node.outputs[next++]});
    if (next < node.outputs.size())
      put(node, "norm_dweight", shape, {in[0], in[1], in[2]}, {node.outputs[next]});
  }

  /// grad, input, mean, rstd, [weight, [bias]] → dx, dweight, dbias.
  void expand_layer_norm_backward(const Node& node) {
    const Ids& in = node.inputs;
    std::size_t next = 0;
    const std::string shape = "normalized_shape=" + Scalars(node.scalars).text("normalized_shape");
    if (next < node.outputs.size() && view(node.outputs[next]).sizes == view(in[1]).sizes) {
      Ids inputs(in.begin(),
                 in.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(in.size(), 5)));
      put(node, "layer_norm_dx", shape, inputs, {node.outputs[next++]});
    }
    if (next < node.outputs.size())
      put(node, "layer_norm_dweight", shape, {in[0], in[1], in[2], in[3]}, {node.outputs[next++]});
    if (next < node.outputs.size()) put(node, "norm_dbias", shape, {in[0]}, {node.outputs[next]});
  }

  const Graph& graph_;
  ExpandedGraph out_;
  std::uint32_t index_ = 0;
};

}  // namespace

bool is_compound(std::string_view plain_name) {
  constexpr std::array<std::string_view, 6> kNames{"_fused_adamw",
                                                   "_fused_adam",
                                                   "_fused_sgd",
                                                   "_fused_rms_norm_backward",
                                                   "native_layer_norm_backward",
                                                   "_amp_foreach_non_finite_check_and_unscale"};
  return std::find(kNames.begin(), kNames.end(), plain_name) != kNames.end();
}

ExpandedGraph expand(const Graph& graph) { return Expander(graph).run(); }

}  // namespace trellis::device
