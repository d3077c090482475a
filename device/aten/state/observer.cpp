#include "device/aten/state/observer.h"

#include <string_view>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "device/aten/state/automatic_phase.h"
#include "device/aten/state/memory_categories.h"
#include "device/aten/state/rank_state.h"

namespace trellis::device {
namespace {

/// A pass begins outside of all layers, whatever backward recomputed before it.
void note_layer_border(RankRecorder& recorder, std::string_view scope) {
  if (scope.starts_with("layer=") || scope.starts_with("microbatch="))
    recorder.note_sequence(static_cast<std::int64_t>(at::sequence_number::peek()));
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const bool user_scope = function.scope() == at::RecordScope::USER_SCOPE;
  if (user_scope) enter_optimizer_scope(function.name());
  for (RankState* const rank : owned_ranks()) {
    if (!rank->recorder().recording()) continue;
    if (!user_scope) {
      rank->recorder().set_backward_sequence(function.seqNr());
    } else {
      rank->recorder().push_scope(function.name());
      note_layer_border(rank->recorder(), function.name());
    }
  }
  return user_scope ? begin_optimizer_step(function) : nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* begun) {
  const bool user_scope = function.scope() == at::RecordScope::USER_SCOPE;
  if (user_scope) {
    end_optimizer_step(begun);
    leave_optimizer_scope(function.name());
  } else if (!owned_ranks().empty()) {
    categorize_accumulated(function);
  }
  for (RankState* const rank : owned_ranks()) {
    if (!rank->recorder().recording()) continue;
    if (!user_scope) {
      rank->recorder().set_backward_sequence(-1);
    } else {
      rank->recorder().pop_scope(function.name());
      note_layer_border(rank->recorder(), function.name());
    }
  }
}

}  // namespace

void install_scope_observer() {
  static const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start, on_end)
          .scopes({at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION}));
  static_cast<void>(handle);
}

}  // namespace trellis::device
