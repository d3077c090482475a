#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/log.h"
#include "base/training_phase.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/timing/rank_clock.h"

namespace trellis::device {

namespace {

constexpr std::string_view kPhase = "phase=";
constexpr std::string_view kMicrobatch = "microbatch=";
constexpr std::string_view kLayer = "layer=";
constexpr std::string_view kCounter = "counter=";
constexpr std::string_view kInitPhase = "init";

bool is_ours(std::string_view text) {
  return text.starts_with(kPhase) || text.starts_with(kMicrobatch) || text.starts_with(kLayer);
}

/// A change of phase or micro-batch is where Neuron's tracer would end one graph and begin another.
bool ends_graph(std::string_view text) {
  return text.starts_with(kPhase) || text.starts_with(kMicrobatch);
}

std::int32_t number(std::string_view text) {
  std::int32_t n = -1;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

}  // namespace

void RankRecorder::Impl::add_operands(std::span<const Operand> added,
                                      std::span<const std::int64_t> bytes,
                                      const InternTable& interned) {
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (bytes[i] == interned.view_bytes(static_cast<std::uint32_t>(added[i].view))) continue;
    partial.push_back(static_cast<std::uint32_t>(operands.size() + i));
    partial_bytes.push_back(bytes[i]);
  }
  operands.insert(operands.end(), added.begin(), added.end());
}

std::int64_t RankRecorder::Impl::bytes_of(std::uint32_t place, const InternTable& interned) const {
  const auto found = std::lower_bound(partial.begin(), partial.end(), place);
  if (found == partial.end() || *found != place)
    return interned.view_bytes(static_cast<std::uint32_t>(operands[place].view));
  return partial_bytes[static_cast<std::size_t>(found - partial.begin())];
}

void RankRecorder::Impl::release(std::uint64_t buffer) {
  if (buffer >= next_buffer) {
    released_elsewhere.push_back(buffer);
    return;
  }
  const std::size_t index = buffer - first_new_buffer;
  if (index >= released.size()) released.resize(next_buffer - first_new_buffer);
  released[index] = true;
}

bool RankRecorder::Impl::is_released(std::uint64_t buffer) const {
  if (buffer >= next_buffer)
    return std::find(released_elsewhere.begin(), released_elsewhere.end(), buffer) !=
           released_elsewhere.end();
  return buffer >= first_new_buffer && buffer - first_new_buffer < released.size() &&
         released[buffer - first_new_buffer];
}

std::uint32_t RankRecorder::Impl::stream_of(const CommRequest& request) {
  CommStream stream{request.kind == sim::CollectiveKind::kSendRecv, request.axis, request.ranks,
                    request.sequence >> 32, 0};
  const auto same = [&](const CommStream& other) {
    return other.transfer == stream.transfer && other.instance == stream.instance &&
           other.axis == stream.axis && other.ranks == stream.ranks;
  };
  const auto known = std::find_if(comm_streams.begin(), comm_streams.end(), same);
  if (known != comm_streams.end()) return static_cast<std::uint32_t>(known - comm_streams.begin());
  comm_streams.push_back(std::move(stream));
  return static_cast<std::uint32_t>(comm_streams.size() - 1);
}

void RankRecorder::Impl::forget_open_graph() {
  if (ops.size() > largest_graph.operations) largest_graph = {ops.size(), host_bytes()};
  ops.clear();
  operands.clear();
  partial.clear();
  partial_bytes.clear();
  released.clear();
  released_elsewhere.clear();
  correlations.clear();
  counters.clear();
  first_new_buffer = next_buffer;
}

/// "expert 3=120"
void RankRecorder::Impl::add_counter(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  std::int64_t value = 0;
  if (equals == std::string_view::npos ||
      std::from_chars(text.data() + equals + 1, text.data() + text.size(), value).ec != std::errc())
    return;  // another program's words
  counters.push_back(
      {static_cast<std::uint32_t>(ops.size()), std::string(text.substr(0, equals)), value});
}

std::size_t RankRecorder::Impl::host_bytes() const {
  return ops.size() * sizeof(OpRecord) + operands.size() * sizeof(Operand) +
         partial.size() * (sizeof(std::uint32_t) + sizeof(std::int64_t)) + released.size() / 8 +
         (released_elsewhere.size() + correlations.size()) * sizeof(std::uint64_t);
}

RankRecorder::RankRecorder(int rank, int world_rank, Bytes hbm, bool record, bool unlimited_memory)
    : rank_(rank),
      world_rank_(world_rank),
      record_(record),
      memory_(rank, hbm, unlimited_memory),
      impl_(std::make_unique<Impl>()),
      clock_(std::make_unique<RankClock>(impl_->graphs)) {}

RankRecorder::~RankRecorder() = default;

void RankRecorder::push_scope(std::string_view text) {
  if (text.starts_with(kCounter)) return impl_->add_counter(text.substr(kCounter.size()));
  if (!is_ours(text)) return;
  if (text.starts_with(kPhase)) phases_are_announced();
  if (ends_graph(text)) cut("phase border");
  impl_->frames.push_back({std::string(text), scope_});
  if (text.starts_with(kPhase)) scope_.phase = text.substr(kPhase.size());
  if (text.starts_with(kMicrobatch)) scope_.microbatch = number(text.substr(kMicrobatch.size()));
  if (text.starts_with(kLayer)) scope_.layer = text.substr(kLayer.size());
  impl_->scoped_layer = scope_.layer;
  impl_->scope_id = 0;
  if (impl_->logs && text.starts_with(kMicrobatch))
    impl_->log.begin_pass(scope_.phase, scope_.microbatch);
}

void RankRecorder::pop_scope(std::string_view text) {
  if (!is_ours(text) || impl_->frames.empty())
    return;  // none: it was opened before this rank had an owner
  TRELLIS_CHECK(impl_->frames.back().text == text,
                "scopes must nest: closing " + std::string(text));
  if (ends_graph(text)) cut("phase border");
  scope_ = std::move(impl_->frames.back().saved);
  impl_->frames.pop_back();
  impl_->scoped_layer = scope_.layer;
  impl_->scope_id = 0;
}

// ── automatic phases ──

std::string_view name(AutoPhase phase) {
  switch (phase) {
    case AutoPhase::kNone: break;
    case AutoPhase::kEval: return "eval";
    case AutoPhase::kForward: return kForwardPhase;
    case AutoPhase::kBackward: return kBackwardPhase;
    case AutoPhase::kOptimizer: return kOptimizerPhase;
  }
  return "";
}

void RankRecorder::phases_are_announced() {
  if (!automatic_) return;
  cut("phases are announced");
  automatic_ = false;
  auto_phase_ = AutoPhase::kNone;
  scope_.phase.clear();
  impl_->scope_id = 0;
}

void RankRecorder::enter(AutoPhase phase) {
  if (impl_->ops.size() >= kMaxAutomaticOps) cut("longest graph");
  if (phase == auto_phase_) return;
  if (!impl_->ops.empty()) {
    if (phase == AutoPhase::kEval && auto_phase_ == AutoPhase::kForward) return;
    const bool grown = phase == AutoPhase::kForward && auto_phase_ == AutoPhase::kEval;
    if (!grown) cut("automatic phase border");
  }
  auto_phase_ = phase;
  scope_.phase = name(phase);
  impl_->scope_id = 0;
}

// ── the simulated clock ──

void RankRecorder::set_stream(int stream) {
  if (stream == stream_) return;
  cut("another stream");
  stream_ = stream;
}

void RankRecorder::host_waits(int stream) {
  memory_.synchronize();
  if (!record_) return;
  if (impl_->logs) impl_->log.host_waits(stream, memory_.op());
  if (automatic_) cut("host synchronisation");
  clock_->host_waits(stream);
}

// ── the stream ──

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
  const auto after =
      std::upper_bound(from.begin(), from.end(), sequence,
                       [](std::int64_t s, const auto& entry) { return s < entry.first; });
  const std::string& layer = after == from.begin() ? std::string() : std::prev(after)->second;
  if (layer == scope_.layer) return;
  scope_.layer = layer;
  impl_->scope_id = 0;
}

std::uint64_t RankRecorder::new_buffer() { return impl_->next_buffer++; }

void RankRecorder::release_buffer(std::uint64_t buffer) {
  if (record_ && buffer >= impl_->first_new_buffer) impl_->release(buffer);
}

std::uint32_t RankRecorder::scope_id() {
  Impl& s = *impl_;
  if (s.scope_id != 0) return s.scope_id;
  if (scope_.phase.empty() && scope_.layer.empty()) return 0;  // the table's first
  // The micro-batch is a property of the instance, not of the graph.
  s.scope_id = interned_.scope(Scope{scope_.phase, -1, scope_.layer});
  return s.scope_id;
}

void RankRecorder::record(std::string_view schema, std::string_view scalars,
                          std::span<const Operand> inputs, std::span<const Operand> outputs,
                          std::span<const std::int64_t> bytes) {
  if (record_) record({interned_.text(schema), interned_.text(scalars)}, inputs, outputs, bytes);
}

void RankRecorder::record(OpTexts texts, std::span<const Operand> inputs,
                          std::span<const Operand> outputs, std::span<const std::int64_t> bytes) {
  if (!record_) return;
  Impl& s = *impl_;
  if (s.ops.empty()) {
    s.memory_before = memory_.current();
    if (s.logs) s.log.graph_begins(memory_.op());
  }
  OpRecord op;
  op.schema = texts.schema;
  op.scope = scope_id();
  op.scalars = texts.scalars;
  op.first_operand = static_cast<std::uint32_t>(s.operands.size());
  op.num_inputs = static_cast<std::uint16_t>(inputs.size());
  op.num_outputs = static_cast<std::uint16_t>(outputs.size());
  s.add_operands(inputs, bytes.first(inputs.size()), interned_);
  s.add_operands(outputs, bytes.subspan(inputs.size()), interned_);
  s.ops.push_back(op);
  memory_.advance();
  if (clock_->slicing()) s.correlations.push_back(correlation_);
}

std::int64_t RankRecorder::comm_start(const CommRequest& request, std::span<const Operand> inputs,
                                      std::span<const Operand> outputs,
                                      std::span<const std::int64_t> bytes) {
  Impl& s = *impl_;
  const std::size_t index = s.step.comms.size();
  s.step.comms.push_back(request);
  if (s.replays) {
    const std::uint32_t stream = s.stream_of(request);
    s.step.comms.back().sequence += s.comm_streams[stream].repeated;
    const auto kind =
        (static_cast<std::uint32_t>(request.kind) << 8) | static_cast<std::uint32_t>(request.dtype);
    if (s.logs)
      s.log.comm_started(static_cast<std::uint32_t>(index), stream, kind, request.elements,
                         memory_.op());
  }
  record(kCommStartSchema, std::to_string(index), inputs, outputs, bytes);
  return s.forgotten_comms + static_cast<std::int64_t>(index);
}

void RankRecorder::comm_wait(std::int64_t handle) {
  TRELLIS_CHECK(handle >= 0, "wait for an unknown communication");
  handle -= impl_->forgotten_comms;
  if (handle < 0) return;  // its start is forgotten
  TRELLIS_CHECK(static_cast<std::size_t>(handle) < impl_->step.comms.size(),
                "wait for an unknown communication");
  if (const auto moved = impl_->moved.find(handle); moved != impl_->moved.end())
    handle = moved->second;
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
    const std::string_view phase =
        auto_phase_ != AutoPhase::kNone
            ? name(auto_phase_)
            : std::string_view(interned_.scope(s.ops.front().scope).phase);
    const ContentHash key = open_graph_key(s, interned_, phase, instance.comms);
    auto known = s.graph_by_key.find(key);
    if (known == s.graph_by_key.end()) {
      s.graphs.push_back(build_graph(s, interned_, world_rank_, reason, instance.comms));
      if (auto_phase_ != AutoPhase::kNone) s.graphs.back().name = name(auto_phase_);
      if (world_rank_ == 0) s.churn.add(s.graphs.back());
      s.graph_runs.push_back(0);
      s.graph_nodes += static_cast<std::int64_t>(s.graphs.back().nodes.size());
      known = s.graph_by_key.emplace(key, static_cast<std::uint32_t>(s.graphs.size() - 1)).first;
    }
    ++s.graph_runs[known->second];
    instance.graph = known->second;
    if (s.logs) s.log.graph_ran(instance.graph, stream_, instance.comms, memory_.op());
    clock_->ran(stream_, instance, s.step.comms, std::move(s.correlations));
    instance.counters = std::move(s.counters);
    s.step.instances.push_back(std::move(instance));
  }
  s.forget_open_graph();
  forget_what_is_too_much();
}

void RankRecorder::discard() {
  cut("no part of a step");  // time has passed all the same
  for (const GraphInstance& instance : impl_->step.instances) --impl_->graph_runs[instance.graph];
  impl_->open_uses.clear();
  impl_->step = {};
  impl_->forgotten_comms = 0;
  clock_->end_step();
  restart_log();
}

void RankRecorder::end_step() {
  cut("end of step");
  Impl& s = *impl_;
  if (const std::string churn = s.churn.end_step(); !churn.empty()) log_warning(churn);
  clock_->end_step();
  s.finished = std::move(s.step);
  s.step = {};
  s.forgotten_comms = 0;
  s.earlier_uses.add(s.open_uses);
  s.open_uses.clear();
  s.layer_from.clear();
  restart_log();
  if (s.graph_nodes > Impl::kMostNodes && !s.replays) {
    clock_->forget_graphs();
    s.forget_graphs();
  }
}

}  // namespace trellis::device
