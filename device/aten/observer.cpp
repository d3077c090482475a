#include "device/aten/observer.h"

#include <string_view>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "device/aten/rank_state.h"

namespace trellis::device {
namespace {

void note_layer_border(RankRecorder& recorder, std::string_view scope) {
  if (scope.starts_with("layer=")) recorder.note_sequence(static_cast<std::int64_t>(at::sequence_number::peek()));
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  RankState* const rank = bound_rank();
  if (rank == nullptr || !rank->recorder().recording()) return nullptr;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    rank->recorder().set_backward_sequence(function.seqNr());
  } else {
    rank->recorder().push_scope(function.name());
    note_layer_border(rank->recorder(), function.name());
  }
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  RankState* const rank = bound_rank();
  if (rank == nullptr || !rank->recorder().recording()) return;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    rank->recorder().set_backward_sequence(-1);
  } else {
    rank->recorder().pop_scope(function.name());
    note_layer_border(rank->recorder(), function.name());
  }
}

}  // namespace

void install_scope_observer() {
  static const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start, on_end).scopes({at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION}));
  static_cast<void>(handle);
}

}  // namespace trellis::device
