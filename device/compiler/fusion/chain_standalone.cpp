// A chain whose steps are separate kernels, as a graph of single operations is executed that
// is not fused: what a step makes lies in HBM until its readers have run.
#include <algorithm>
#include <map>

#include "device/compiler/fusion/chain.h"
#include "device/compiler/fusion/lower_chain.h"

namespace trellis::device {
namespace {

using isa::Opcode;

class StandaloneChain {
 public:
  StandaloneChain(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain)
      : builder_(builder), kernel_(kernel), chain_(chain), whole_(chain.values.size(), false) {
    for (const std::int64_t size : chain.sizes) elements_ *= size;
    for (std::size_t v = 0; v < whole_.size(); ++v)
      whole_[v] = chain.values[v].input && !is_number(chain.values[v].strides);
    for (const auto& step : chain.steps)
      whole_[at(step.dst)] = is_whole(step.a) || is_whole(step.b) || step.a < 0;
  }

  void run() {
    for (std::size_t s = 0; s < chain_.steps.size(); ++s) {
      if (whole_[at(chain_.steps[s].dst)]) step(s);
    }
    // These outputs could not be written in place while other steps needed the old contents.
    for (const auto& [value, place] : late_) copy(place, *output_of(value));
  }

 private:
  static std::size_t at(int value) { return static_cast<std::size_t>(value); }
  [[nodiscard]] bool is_whole(int value) const { return value >= 0 && whole_[at(value)]; }
  [[nodiscard]] bool is_number(const std::vector<std::int64_t>& strides) const {
    for (std::size_t d = 0; d < strides.size(); ++d) {
      if (chain_.sizes[d] > 1 && strides[d] != 0) return false;
    }
    return true;
  }

  [[nodiscard]] const Chain::Output* output_of(int value) const {
    const auto found = std::find_if(chain_.outputs.begin(), chain_.outputs.end(),
                                    [&](const auto& o) { return o.value == value; });
    return found == chain_.outputs.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::size_t last_reader(int value) const {
    std::size_t last = 0;
    for (std::size_t s = 0; s < chain_.steps.size(); ++s) {
      if (chain_.steps[s].a == value || chain_.steps[s].b == value) last = s;
    }
    return last;
  }
  /// A step after s reads an input that lies where `output` will.
  [[nodiscard]] bool covers_an_input(std::size_t s, const Chain::Output& output) const {
    for (std::size_t v = 0; v < chain_.values.size(); ++v) {
      const auto& value = chain_.values[v];
      if (value.input && value.buffer == output.buffer && last_reader(static_cast<int>(v)) > s)
        return true;
    }
    return false;
  }

  Chain::Output place_of(int value, std::size_t s) {
    const isa::DType dtype = chain_.values[at(value)].dtype;
    const Chain::Output* output = output_of(value);
    if (output != nullptr && !covers_an_input(s, *output)) return *output;
    std::vector<std::uint32_t>& free = free_[isa::size_bytes(dtype)];
    if (free.empty()) free.push_back(builder_.scratch(elements_ * isa::size_bytes(dtype)));
    const Chain::Output place{value, free.back(), dtype, 0,
                              contiguous(0, dtype, chain_.sizes).strides};
    free.pop_back();
    if (output != nullptr) late_[value] = place;
    return place;
  }

  void step(std::size_t s) {
    Chain one;
    one.sizes = chain_.sizes;
    one.reduced.assign(one.sizes.size(), false);
    one.names = chain_.names;
    std::map<int, int> renamed;
    Chain::Step last = chain_.steps[s];
    last.a = operand(one, renamed, last.a);
    last.b = operand(one, renamed, last.b);
    last.dst = add(one, chain_.values[at(chain_.steps[s].dst)]);
    one.steps.push_back(last);
    const Chain::Output place = place_of(chain_.steps[s].dst, s);
    places_[chain_.steps[s].dst] = place;
    one.outputs = {place};
    one.outputs[0].value = last.dst;
    lower_chain(builder_, kernel_, std::move(one));
    for (const int v :
         {chain_.steps[s].a, chain_.steps[s].b == chain_.steps[s].a ? -1 : chain_.steps[s].b}) {
      if (is_whole(v) && places_.contains(v) && last_reader(v) == s && output_of(v) == nullptr)
        free_[isa::size_bytes(chain_.values[at(v)].dtype)].push_back(places_.at(v).buffer);
    }
  }

  static int add(Chain& chain, const Chain::Value& value) {
    return chain.values.push_back(value), static_cast<int>(chain.values.size()) - 1;
  }

  /// A value as the step's chain has it: from HBM, or made again when it is one number.
  int operand(Chain& one, std::map<int, int>& renamed, int value) {
    if (value < 0) return -1;
    if (const auto found = renamed.find(value); found != renamed.end()) return found->second;
    Chain::Value v = chain_.values[at(value)];
    const auto made = std::find_if(chain_.steps.begin(), chain_.steps.end(),
                                   [&](const auto& step) { return step.dst == value; });
    if (made != chain_.steps.end() && is_whole(value)) {
      const Chain::Output& place = places_.at(value);
      v.input = true, v.buffer = place.buffer, v.offset = place.offset, v.strides = place.strides;
    } else if (made != chain_.steps.end()) {
      Chain::Step again = *made;
      again.a = operand(one, renamed, again.a);
      again.b = operand(one, renamed, again.b);
      again.dst = add(one, v);
      one.steps.push_back(again);
      return renamed[value] = again.dst;
    }
    return renamed[value] = add(one, v);
  }

  void copy(const Chain::Output& from, const Chain::Output& to) {
    Chain one;
    one.sizes = chain_.sizes;
    one.reduced.assign(one.sizes.size(), false);
    one.names = chain_.names;
    Chain::Value source;
    source.dtype = from.dtype, source.input = true, source.buffer = from.buffer,
    source.offset = from.offset, source.strides = from.strides;
    Chain::Value target;
    target.dtype = to.dtype;
    Chain::Step step;
    step.a = add(one, source), step.dst = add(one, target);
    one.steps = {step};
    one.outputs = {to};
    one.outputs[0].value = step.dst;
    lower_chain(builder_, kernel_, std::move(one));
  }

  ProgramBuilder& builder_;
  std::uint32_t kernel_;
  const Chain& chain_;
  std::int64_t elements_ = 1;
  std::vector<bool> whole_;                         ///< value has more than one number
  std::map<int, Chain::Output> places_;             ///< of whole values that steps have made
  std::map<int, Chain::Output> late_;               ///< outputs that wait in scratch
  std::map<int, std::vector<std::uint32_t>> free_;  ///< scratch buffers, by bytes of an element
};

}  // namespace

bool lower_chain_standalone(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain) {
  const auto reduces = [](const Chain::Step& s) { return s.opcode == Opcode::kTensorReduce; };
  const auto makes = [&](const Chain::Output& o) {
    return std::any_of(chain.steps.begin(), chain.steps.end(),
                       [&](const auto& s) { return s.dst == o.value; });
  };
  std::int64_t elements = 1;
  for (const std::int64_t size : chain.sizes) elements *= size;
  if (chain.terminal || elements == 1 ||
      std::any_of(chain.steps.begin(), chain.steps.end(), reduces) ||
      !std::all_of(chain.outputs.begin(), chain.outputs.end(), makes))
    return false;
  StandaloneChain(builder, kernel, chain).run();
  return true;
}

}  // namespace trellis::device
