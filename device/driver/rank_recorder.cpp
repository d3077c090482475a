#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "device/driver/rank_stream.h"

namespace trellis::device {

namespace {

constexpr std::string_view kPhase = "phase=";
constexpr std::string_view kMicrobatch = "microbatch=";
constexpr std::string_view kLayer = "layer=";
constexpr std::string_view kInitPhase = "init";

bool is_ours(std::string_view text) {
  return text.starts_with(kPhase) || text.starts_with(kMicrobatch) || text.starts_with(kLayer);
}

/// A change of phase or micro-batch is where Neuron's tracer would end one graph and begin another.
bool ends_graph(std::string_view text) { return text.starts_with(kPhase) || text.starts_with(kMicrobatch); }

std::int32_t number(std::string_view text) {
  std::int32_t n = -1;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

}  // namespace

RankRecorder::RankRecorder(int rank, Bytes hbm, bool record)
    : rank_(rank), record_(record), memory_(rank, hbm), impl_(std::make_unique<Impl>()) {}

RankRecorder::~RankRecorder() = default;

void RankRecorder::push_scope(std::string_view text) {
  if (!is_ours(text)) return;
  if (ends_graph(text)) cut("phase border");
  impl_->frames.push_back({std::string(text), scope_});
  if (text.starts_with(kPhase)) scope_.phase = text.substr(kPhase.size());
  if (text.starts_with(kMicrobatch)) scope_.microbatch = number(text.substr(kMicrobatch.size()));
  if (text.starts_with(kLayer)) scope_.layer = text.substr(kLayer.size());
  impl_->scoped_layer = scope_.layer;
  impl_->scope_id = 0;
}

void RankRecorder::pop_scope(std::string_view text) {
  if (!is_ours(text)) return;
  TRELLIS_CHECK(!impl_->frames.empty() && impl_->frames.back().text == text, "scopes must nest: closing " + std::string(text));
  if (ends_graph(text)) cut("phase border");
  scope_ = std::move(impl_->frames.back().saved);
  impl_->frames.pop_back();
  impl_->scoped_layer = scope_.layer;
  impl_->scope_id = 0;
}

void RankRecorder::note_sequence(std::int64_t next_sequence) {
  auto& from = impl_->layer_from;
  if (!from.empty() && from.back().first == next_sequence) {
    from.back().second = scope_.layer;
  } else {
    from.emplace_back(next_sequence, scope_.layer);
  }
}

void RankRecorder::set_backward_sequence(std::int64_t sequence) {
  if (sequence < 0) {
    if (scope_.layer != impl_->scoped_layer) {
      scope_.layer = impl_->scoped_layer;
      impl_->scope_id = 0;
    }
    return;
  }
  const auto& from = impl_->layer_from;
  const auto after = std::upper_bound(from.begin(), from.end(), sequence,
                                      [](std::int64_t s, const auto& entry) { return s < entry.first; });
  const std::string& layer = after == from.begin() ? std::string() : std::prev(after)->second;
  if (layer == scope_.layer) return;
  scope_.layer = layer;
  impl_->scope_id = 0;
}

std::uint64_t RankRecorder::new_buffer() { return impl_->next_buffer++; }

void RankRecorder::release_buffer(std::uint64_t buffer) {
  if (record_ && buffer >= impl_->first_new_buffer) impl_->released.push_back(buffer);
}

void RankRecorder::record(std::string_view schema, std::string_view scalars, std::span<const Operand> inputs,
                          std::span<const Operand> outputs, std::span<const std::int64_t> bytes) {
  if (!record_) return;
  Impl& s = *impl_;
  if (s.scope_id == 0) {
    // Scopes of equal graphs must be equal ids: the micro-batch is a property of the instance, not of the graph.
    const auto [it, fresh] = s.scope_ids.try_emplace({scope_.phase, 0, scope_.layer}, 0);
    if (fresh) it->second = interned_.scope(Scope{scope_.phase, -1, scope_.layer});
    s.scope_id = it->second;
  }
  if (s.ops.empty()) s.memory_before = memory_.current();
  OpRecord op;
  op.schema = interned_.text(schema);
  op.scope = s.scope_id;
  op.scalars = scalars.empty() ? 0 : interned_.text(scalars);
  op.first_operand = static_cast<std::uint32_t>(s.operands.size());
  op.num_inputs = static_cast<std::uint16_t>(inputs.size());
  op.num_outputs = static_cast<std::uint16_t>(outputs.size());
  s.operands.insert(s.operands.end(), inputs.begin(), inputs.end());
  s.operands.insert(s.operands.end(), outputs.begin(), outputs.end());
  s.operand_bytes.insert(s.operand_bytes.end(), bytes.begin(), bytes.end());
  s.ops.push_back(op);
}

std::int64_t RankRecorder::comm_start(const CommRequest& request, std::span<const Operand> inputs, std::span<const Operand> outputs,
                                      std::span<const std::int64_t> bytes) {
  const std::size_t index = impl_->step.comms.size();
  impl_->step.comms.push_back(request);
  record(kCommStartSchema, std::to_string(index), inputs, outputs, bytes);
  return static_cast<std::int64_t>(index);
}

void RankRecorder::comm_wait(std::int64_t handle) {
  TRELLIS_CHECK(handle >= 0 && static_cast<std::size_t>(handle) < impl_->step.comms.size(), "wait for an unknown communication");
  record(kCommWaitSchema, std::to_string(handle), {}, {}, {});
}

void RankRecorder::cut(std::string_view reason) {
  Impl& s = *impl_;
  // Building the model is not part of any step.
  if (!s.ops.empty() && scope_.phase != kInitPhase) {
    GraphInstance instance;
    instance.microbatch = scope_.microbatch;
    instance.memory_before = s.memory_before;
    instance.memory_after = memory_.current();
    Graph graph = build_graph(s, interned_, rank_, reason, instance.comms);
    const ContentHash hash = graph.hash();
    std::string key(reinterpret_cast<const char*>(&hash), sizeof hash);
    for (const Node& node : graph.nodes) key += node.scope.layer + '\n';
    const auto [it, fresh] = s.graph_by_content.try_emplace(std::move(key), static_cast<std::uint32_t>(s.graphs.size()));
    if (fresh) s.graphs.push_back(std::move(graph));
    instance.graph = it->second;
    s.step.instances.push_back(std::move(instance));
  }
  s.ops.clear();
  s.operands.clear();
  s.operand_bytes.clear();
  s.released.clear();
  s.first_new_buffer = s.next_buffer;
}

}  // namespace trellis::device
