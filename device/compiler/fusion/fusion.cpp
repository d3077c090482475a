#include "device/compiler/fusion/fusion.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "device/compiler/emit/hbm_view.h"

namespace trellis::device {

using isa::Activation;
using isa::AluOp;
using isa::Opcode;

namespace {

// Longer chains would spread SBUF over too many tiles to keep them wide.
constexpr std::size_t kMostSteps = 64;
constexpr std::size_t kMostInputs = 24;

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

bool any_reduced(const std::vector<bool>& mask) {
  return std::find(mask.begin(), mask.end(), true) != mask.end();
}

std::vector<bool> refine_mask(const std::vector<std::int64_t>& sizes, const std::vector<bool>& mask,
                              const std::vector<std::int64_t>& refined) {
  std::vector<bool> out;
  std::size_t r = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    for (std::int64_t rest = sizes[d]; rest > 1; rest /= refined[r], ++r)
      out.push_back(!mask.empty() && mask[d]);
  }
  return out;
}

double fold(AluOp op, double a, double b) {
  switch (op) {
    case AluOp::kAdd: return a + b;
    case AluOp::kSubtract: return a - b;
    case AluOp::kMultiply: return a * b;
    case AluOp::kDivide: return a / b;
    case AluOp::kMax: return std::max(a, b);
    case AluOp::kMin: return std::min(a, b);
    case AluOp::kPower: return std::pow(a, b);
    case AluOp::kEqual: return a == b;
    case AluOp::kNotEqual: return a != b;
    case AluOp::kGreater: return a > b;
    case AluOp::kGreaterEqual: return a >= b;
    case AluOp::kLess: return a < b;
    case AluOp::kLessEqual: return a <= b;
    default: return a;
  }
}

}  // namespace

// ── building steps ──

int FusedGroup::new_value(DType dtype) {
  Chain::Value v;
  v.dtype = dtype;
  chain_.values.push_back(v);
  return static_cast<int>(chain_.values.size()) - 1;
}

int FusedGroup::step(Chain::Step s) {
  s.dst = new_value(DType::kFp32);
  chain_.steps.push_back(s);
  return s.dst;
}

Term FusedGroup::alu(AluOp op, Term a, Term b) {
  if (a.constant && b.constant) return fold(op, a.number, b.number);
  Chain::Step s;
  if (op == AluOp::kBypass) {
    s.opcode = Opcode::kTensorCopy;
    s.a = a.value;
    return Term::of(step(s));
  }
  if (a.constant) {
    const AluOp swapped = exchanged(op);
    if (swapped != AluOp::kNone) {
      s.opcode = Opcode::kTensorScalar;
      s.alu = swapped;
      s.imm0 = a.number;
      s.a = b.value;
      return Term::of(step(s));
    }
    if (op == AluOp::kPower) return activation(Activation::kExp, b, std::log(a.number), 0);
    const Term inverse = activation(Activation::kReciprocal, b, 1, 0);
    return a.number == 1 ? inverse : alu(AluOp::kMultiply, inverse, a);
  }
  s.a = a.value;
  s.alu = op;
  if (b.constant) {
    s.opcode = Opcode::kTensorScalar;
    s.imm0 = b.number;
  } else {
    s.opcode = Opcode::kTensorTensor;
    s.b = b.value;
  }
  return Term::of(step(s));
}

Term FusedGroup::activation(Activation fn, Term a, double scale, double bias) {
  Chain::Step s;
  s.opcode = Opcode::kActivation;
  s.activation = fn;
  s.imm0 = scale;
  s.imm1 = bias;
  s.a = a.value;
  return Term::of(step(s));
}

Term FusedGroup::select(Term then, Term predicate, double otherwise) {
  Chain::Step s;
  s.opcode = Opcode::kSelect;
  s.a = then.value;
  s.b = predicate.value;
  s.imm0 = otherwise;
  return Term::of(step(s));
}

Term FusedGroup::reduce(AluOp op, Term a) {
  Chain::Step s;
  s.opcode = Opcode::kTensorReduce;
  s.alu = op;
  s.a = a.value;
  const int result = step(s);
  if (closed_) chain_.split = chain_.steps.size();
  return Term::of(result);
}

Term FusedGroup::random() {
  Chain::Step s;
  s.opcode = Opcode::kRandom;
  const int result = step(s);
  chain_.values[static_cast<std::size_t>(result)].dtype = DType::kInt32;
  return Term::of(result);
}

// ── joining ──

std::optional<FusedGroup::Fit> FusedGroup::fit(const ChainNode& node) const {
  Fit f;
  f.inputs = node.inputs;
  f.outputs = node.outputs;
  const auto restride = [&](const std::vector<std::int64_t>& sizes,
                            const std::vector<std::int64_t>& refined) {
    for (auto* list : {&f.inputs, &f.outputs}) {
      for (Access& a : *list) a.strides = refine_strides(sizes, a.strides, refined);
    }
  };
  if (nodes_.empty()) {
    f.sizes = node.sizes;
    f.reduced = node.reduced;
    return f;
  }
  const bool reduces = any_reduced(node.reduced), group_reduces = any_reduced(chain_.reduced);
  if (product(node.sizes) == product(chain_.sizes)) {
    if (!common_refinement(chain_.sizes, node.sizes, f.sizes)) return std::nullopt;
    f.reduced = refine_mask(chain_.sizes, chain_.reduced, f.sizes);
    if (reduces) {
      const auto mine = refine_mask(node.sizes, node.reduced, f.sizes);
      if (group_reduces && mine != f.reduced) return std::nullopt;
      f.reduced = mine;
    }
    restride(node.sizes, f.sizes);
    return f;
  }
  if (!group_reduces || reduces) return std::nullopt;
  // One element per row: the node's dimensions against the kept ones.
  std::vector<std::int64_t> kept;
  for (std::size_t d = 0; d < chain_.sizes.size(); ++d) {
    if (!chain_.reduced[d]) kept.push_back(chain_.sizes[d]);
  }
  if (product(kept) != product(node.sizes)) return std::nullopt;
  std::vector<std::int64_t> refined;
  if (!common_refinement(kept, node.sizes, refined)) return std::nullopt;
  restride(node.sizes, refined);
  f.rows_only = true;
  std::size_t r = 0;
  for (std::size_t d = 0; d < chain_.sizes.size(); ++d) {
    if (chain_.reduced[d]) {
      f.sizes.push_back(chain_.sizes[d]);
      f.reduced.push_back(true);
      continue;
    }
    for (std::int64_t rest = chain_.sizes[d]; rest > 1; rest /= refined[r], ++r) {
      f.sizes.push_back(refined[r]);
      f.reduced.push_back(false);
    }
  }
  for (auto* list : {&f.inputs, &f.outputs}) {
    for (Access& a : *list) {
      std::vector<std::int64_t> wide;
      std::size_t k = 0;
      for (bool reduced : f.reduced) wide.push_back(reduced ? 0 : a.strides[k++]);
      a.strides = wide;
    }
  }
  return f;
}

bool FusedGroup::operands_fit(const Fit& f) const {
  const auto refined = [&](const Access& a) {
    Access out = a;
    out.strides = refine_strides(chain_.sizes, a.strides, f.sizes);
    return out;
  };
  for (const auto& [access, value] : written_) {
    const Access mine = refined(access);
    for (const auto* list : {&f.inputs, &f.outputs}) {
      for (const Access& a : *list) {
        if (a.buffer == mine.buffer && a != mine) return false;
      }
    }
  }
  for (const auto& [access, value] : current_) {
    const Access mine = refined(access);
    for (const Access& a : f.outputs) {
      if (a.buffer == mine.buffer && a != mine) return false;
    }
  }
  // An output over an input of the same operation that is seen through another view would be read
  // after it is written.
  for (const Access& o : f.outputs) {
    for (const Access& i : f.inputs) {
      if (o.buffer == i.buffer && o != i && !nodes_.empty()) return false;
    }
  }
  return true;
}

void FusedGroup::refine(const Fit& f) {
  const std::vector<std::int64_t> old = chain_.sizes;
  const auto remap = [&](auto& map) {
    auto copy = std::move(map);
    map.clear();
    for (auto& [access, value] : copy) {
      Access a = access;
      a.strides = refine_strides(old, a.strides, f.sizes);
      map.emplace(std::move(a), value);
    }
  };
  if (!nodes_.empty() && old != f.sizes) {
    remap(current_);
    remap(written_);
    remap(written_at_);
    for (auto& v : chain_.values) {
      if (v.input) v.strides = refine_strides(old, v.strides, f.sizes);
    }
  }
  chain_.sizes = f.sizes;
  chain_.reduced = f.reduced;
}

int FusedGroup::input(const Access& access, DType dtype) {
  const auto found = current_.find(access);
  if (found != current_.end()) return found->second;
  const int id = new_value(dtype);
  auto& v = chain_.values.back();
  v.input = true;
  v.buffer = access.buffer;
  v.offset = access.offset;
  v.strides = access.strides;
  current_.emplace(access, id);
  return id;
}

/// Sums are kept in fp32 while they grow.
bool FusedGroup::is_reduction(int value) const {
  return std::any_of(chain_.steps.begin(), chain_.steps.end(), [&](const auto& s) {
    return s.dst == value && s.opcode == Opcode::kTensorReduce;
  });
}

void FusedGroup::finish_output(const ChainNode& node, std::size_t i, const Access& access,
                               Term term) {
  const DType dtype = node.output_dtypes[i];
  int value = term.value;
  if (term.constant) {
    Chain::Step s;
    s.opcode = Opcode::kMemset;
    s.imm0 = term.number;
    value = step(s);
  } else if (value < first_new_value_ ||
             std::any_of(
                 written_.begin(), written_.end(),
                 [&](const auto& w) { return w.second == value; }) ||
             chain_.values[static_cast<std::size_t>(value)].input ||
             (dtype != DType::kFp32 && is_reduction(value))) {
    // The value belongs to someone else: this result gets its own.
    value = alu(AluOp::kBypass, term, 0.0).value;
  }
  chain_.values[static_cast<std::size_t>(value)].dtype = dtype;
  current_[access] = value;
  written_[access] = value;
  written_at_[access] = node.index;
}

void FusedGroup::apply(const ChainNode& node, const Fit& f) {
  refine(f);
  nodes_.push_back(node.index);
  names_.push_back(plain_name(node.node->op));
  std::vector<Term> terms;
  for (std::size_t i = 0; i < f.inputs.size(); ++i)
    terms.push_back(Term::of(input(f.inputs[i], node.input_dtypes[i])));
  first_new_value_ = static_cast<int>(chain_.values.size());
  const std::size_t first_tail = closed_ ? chain_.split : 0, first_step = chain_.steps.size();
  if (node.terminal) {
    columns_ = node.op->reduces == Reduces::kLeadingDims;
    closed_ = true;
    chain_.terminal = true;
  }
  Recipe recipe(*this, *graph_, *node.node, terms);
  double count = 1;
  for (std::size_t d = 0; d < node.sizes.size(); ++d)
    count *= node.reduced[d] ? static_cast<double>(node.sizes[d]) : 1;
  recipe.set_reduced_count(count);
  node.op->recipe(recipe);
  mark_narrow(node, f, terms, first_step);
  if (first_tail > 0) {
    // The steps that followed the earlier sums follow the new ones.
    std::rotate(chain_.steps.begin() + static_cast<std::ptrdiff_t>(first_tail),
                chain_.steps.begin() + static_cast<std::ptrdiff_t>(first_step), chain_.steps.end());
    chain_.split -= first_step - first_tail;
  }
  for (std::size_t i = 0; i < f.outputs.size(); ++i)
    finish_output(node, i, f.outputs[i], recipe.results()[i]);
}

/// In XLA's graph every value has its operation's dtype, those inside a softmax too. Sums, and what
/// is made of them alone, stay fp32. So do norms: NxD's RMS norm is one kernel that computes in
/// fp32, and a layer norm of bf16 takes as long as if it did (xpu-perf H100-vs-Trn2: 259 GB/s).
void FusedGroup::mark_narrow(const ChainNode& node, const Fit& f, const std::vector<Term>& terms,
                             std::size_t first_step) {
  const auto of_rows = [&](const Access& access) {
    bool row = any_reduced(chain_.reduced);
    for (std::size_t d = 0; d < access.strides.size(); ++d)
      row = row && (!chain_.reduced[d] || access.strides[d] == 0);
    return row;
  };
  row_.resize(chain_.values.size(), false);
  const bool norm = node.node->op.find("rms_norm") != std::string::npos ||
                    node.node->op.find("layer_norm") != std::string::npos;
  bool narrow = !norm && !node.output_dtypes.empty() && node.output_dtypes[0] == DType::kBf16;
  for (std::size_t i = 0; i < f.inputs.size(); ++i) {
    const bool row = of_rows(f.inputs[i]);
    row_[static_cast<std::size_t>(terms[i].value)] = row;
    narrow = narrow &&
             (row || node.input_dtypes[i] == DType::kBf16 || node.input_dtypes[i] == DType::kBool);
  }
  for (std::size_t s = first_step; s < chain_.steps.size(); ++s) {
    const auto& step = chain_.steps[s];
    const auto row = [&](int v) { return v < 0 || row_[static_cast<std::size_t>(v)]; };
    const bool sum = step.opcode == Opcode::kTensorReduce,
               alone = step.a >= 0 && row(step.a) && row(step.b);
    row_[static_cast<std::size_t>(step.dst)] = sum || alone;
    chain_.values[static_cast<std::size_t>(step.dst)].narrow =
        narrow && !sum && !alone && step.opcode != Opcode::kRandom;
  }
}

bool FusedGroup::try_join(const ChainNode& node) {
  const bool more_sums = closed_ && columns_ && node.op->reduces == Reduces::kLeadingDims;
  if ((closed_ && !more_sums) || chain_.steps.size() > kMostSteps ||
      chain_.values.size() - chain_.steps.size() > kMostInputs)
    return false;
  if (node.terminal && any_reduced(chain_.reduced) && !more_sums) return false;
  const auto f = fit(node);
  if (!f || (node.terminal && f->rows_only) || !operands_fit(*f)) return false;
  if (more_sums && std::any_of(f->inputs.begin(), f->inputs.end(),
                               [&](const Access& a) { return written_.contains(a); }))
    return false;
  apply(node, *f);
  return true;
}

bool FusedGroup::shares_input(const ChainNode& node) const {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](const Access& a) {
    return std::any_of(current_.begin(), current_.end(),
                       [&](const auto& c) { return c.first.buffer == a.buffer; });
  });
}

// ── finishing ──

Chain FusedGroup::finish(const std::vector<std::vector<std::uint32_t>>& readers, bool narrow) {
  Chain chain = chain_;
  chain.names = names_;
  for (const auto& [access, value] : written_) {
    const bool survives = graph_->buffers[access.buffer].role != BufferRole::kTemporary;
    const auto& reads = readers[access.buffer];
    const bool read = std::any_of(reads.begin(), reads.end(), [&](std::uint32_t n) {
      return n > written_at_.at(access) &&
             std::find(nodes_.begin(), nodes_.end(), n) == nodes_.end();
    });
    if (!survives && !read) continue;
    chain.outputs.push_back({value, access.buffer,
                             chain.values[static_cast<std::size_t>(value)].dtype, access.offset,
                             access.strides});
  }
  prune(chain);
  merge_scalar_pairs(chain);
  for (auto& value : chain.values) {
    if (narrow && value.narrow && value.dtype == DType::kFp32) value.dtype = DType::kBf16;
  }
  return chain;
}

/// Takes out steps and inputs that no output needs, and numbers the values again.
void FusedGroup::prune(Chain& chain) const {
  std::vector<bool> needed(chain.values.size(), false);
  for (const auto& o : chain.outputs) needed[static_cast<std::size_t>(o.value)] = true;
  std::vector<Chain::Step> steps;
  std::size_t after_split = 0;
  for (std::size_t s = chain.steps.size(); s-- > 0;) {
    const auto& step = chain.steps[s];
    if (!needed[static_cast<std::size_t>(step.dst)]) continue;
    for (int v : {step.a, step.b}) {
      if (v >= 0) needed[static_cast<std::size_t>(v)] = true;
    }
    steps.push_back(step);
    if (chain.terminal && s >= chain.split) ++after_split;
  }
  std::reverse(steps.begin(), steps.end());
  std::vector<int> renamed(chain.values.size(), -1);
  std::vector<Chain::Value> values;
  for (std::size_t v = 0; v < chain.values.size(); ++v) {
    if (!needed[v]) continue;
    renamed[v] = static_cast<int>(values.size());
    values.push_back(chain.values[v]);
  }
  const auto rename = [&](int& v) { v = v < 0 ? v : renamed[static_cast<std::size_t>(v)]; };
  for (auto& step : steps) {
    rename(step.dst);
    rename(step.a);
    rename(step.b);
  }
  for (auto& o : chain.outputs) rename(o.value);
  chain.steps = std::move(steps);
  chain.values = std::move(values);
  chain.split = chain.terminal ? chain.steps.size() - after_split : 0;
  const bool reduces = std::any_of(chain.steps.begin(), chain.steps.end(),
                                   [](const auto& s) { return s.opcode == Opcode::kTensorReduce; });
  if (chain.terminal && !reduces) chain.terminal = false;
  if (!reduces) chain.reduced.assign(chain.sizes.size(), false);
}

/// (x ⊕ a) ⊗ b is one instruction when nothing else reads x ⊕ a.
void FusedGroup::merge_scalar_pairs(Chain& chain) const {
  std::vector<int> uses(chain.values.size(), 0), producer(chain.values.size(), -1);
  for (std::size_t s = 0; s < chain.steps.size(); ++s) {
    producer[static_cast<std::size_t>(chain.steps[s].dst)] = static_cast<int>(s);
    for (int v : {chain.steps[s].a, chain.steps[s].b}) {
      if (v >= 0) ++uses[static_cast<std::size_t>(v)];
    }
  }
  for (const auto& o : chain.outputs) ++uses[static_cast<std::size_t>(o.value)];
  std::vector<bool> gone(chain.steps.size(), false);
  for (std::size_t s = 0; s < chain.steps.size(); ++s) {
    auto& second = chain.steps[s];
    if (second.opcode != Opcode::kTensorScalar || second.alu2 != AluOp::kNone) continue;
    const auto a = static_cast<std::size_t>(second.a);
    if (uses[a] != 1 || producer[a] < 0 || chain.values[a].dtype != DType::kFp32) continue;
    const auto p = static_cast<std::size_t>(producer[a]);
    const auto& first = chain.steps[p];
    const bool across_split = chain.terminal && (p < chain.split) != (s < chain.split);
    if (gone[p] || across_split || first.opcode != Opcode::kTensorScalar ||
        first.alu2 != AluOp::kNone)
      continue;
    second.alu2 = second.alu;
    second.imm1 = second.imm0;
    second.alu = first.alu;
    second.imm0 = first.imm0;
    second.a = first.a;
    gone[p] = true;
  }
  std::vector<Chain::Step> steps;
  std::size_t split = 0;
  for (std::size_t s = 0; s < chain.steps.size(); ++s) {
    if (gone[s]) continue;
    steps.push_back(chain.steps[s]);
    if (s < chain.split) ++split;
  }
  chain.steps = std::move(steps);
  chain.split = split;
}

/// Random numbers come from nowhere: they are drawn next to what precedes them, which is what
/// they will mask.
static bool draws(const ChainNode& node) {
  return node.inputs.empty() && node.node->op == "random_mask";
}

void Fuser::add(const ChainNode& node) {
  int after = -1;
  for (const Access& a : node.inputs) after = std::max(after, last(last_writer_, a.buffer));
  for (const Access& a : node.outputs)
    after = std::max({after, last(last_writer_, a.buffer), last(last_reader_, a.buffer)});
  int home = -1;
  if (after >= 0 && groups_[static_cast<std::size_t>(after)].try_join(node)) {
    home = after;
  } else if (!groups_.empty() && after < static_cast<int>(groups_.size()) - 1 &&
             (groups_.back().shares_input(node) || draws(node)) && groups_.back().try_join(node)) {
    home = static_cast<int>(groups_.size()) - 1;
  } else if (joins_moved(node, after)) {
    home = static_cast<int>(groups_.size()) - 1;
  } else {
    open_group(node);
  }
  if (home < 0) home = static_cast<int>(groups_.size()) - 1;
  for (const Access& a : node.inputs) {
    last(last_reader_, a.buffer) = std::max(last(last_reader_, a.buffer), home);
    reads_[static_cast<std::size_t>(home)].insert(a.buffer);
  }
  for (const Access& a : node.outputs) {
    last(last_writer_, a.buffer) = std::max(last(last_writer_, a.buffer), home);
    writes_[static_cast<std::size_t>(home)].insert(a.buffer);
  }
}

void Fuser::open_group(const ChainNode& node) {
  groups_.emplace_back(graph_);
  reads_.emplace_back();
  writes_.emplace_back();
  TRELLIS_CHECK(groups_.back().try_join(node),
                "an operation does not fit into an empty group: " + node.node->op);
}

/// After all later groups, where none of them has to do with what it reads and writes.
bool Fuser::move_to_end(int group) {
  const auto g = static_cast<std::size_t>(group);
  const auto meet = [](const std::set<std::uint32_t>& a, const std::set<std::uint32_t>& b) {
    return std::any_of(a.begin(), a.end(),
                       [&](std::uint32_t buffer) { return b.contains(buffer); });
  };
  for (std::size_t k = g + 1; k < groups_.size(); ++k) {
    if (meet(writes_[g], reads_[k]) || meet(writes_[g], writes_[k]) || meet(reads_[g], writes_[k]))
      return false;
  }
  const auto move_back = [&](auto& list) {
    std::rotate(list.begin() + group, list.begin() + group + 1, list.end());
  };
  move_back(groups_), move_back(reads_), move_back(writes_);
  for (auto* map : {&last_writer_, &last_reader_}) {
    map->clear();
    for (std::size_t k = 0; k < groups_.size(); ++k) {
      for (const std::uint32_t buffer : map == &last_writer_ ? writes_[k] : reads_[k])
        last(*map, buffer) = static_cast<int>(k);
    }
  }
  return true;
}

/// A group that makes an operand of the node joins it from further up: what lies between (the
/// mask that a score meets) is ready before.
bool Fuser::joins_moved(const ChainNode& node, int after) {
  for (const Access& a : node.inputs) {
    const int writer = last(last_writer_, a.buffer);
    if (writer < 0 || writer >= after || after + 1 != static_cast<int>(groups_.size())) continue;
    FusedGroup tried = groups_[static_cast<std::size_t>(writer)];
    if (!tried.try_join(node) || !move_to_end(writer)) continue;
    groups_.back() = std::move(tried);
    return true;
  }
  return false;
}

std::vector<FusedGroup> Fuser::take() {
  last_writer_.clear();
  last_reader_.clear();
  reads_.clear();
  writes_.clear();
  return std::exchange(groups_, {});
}

}  // namespace trellis::device
