// Texts of reports of a hang or a mismatch: the part of Rendezvous that explains.
#include <algorithm>

#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

using State = HostThreads::State;

std::string seconds(HostThreads::Clock::duration elapsed) {
  const auto hundredths =
      std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count() / 10;
  return c10::str(hundredths / 100, ".", hundredths % 100 < 10 ? "0" : "", hundredths % 100, " s");
}

}  // namespace

/// "runs outside any communication since 0.51 s; last: all-gather of 64 float32, #3 of tp [6, 7]
/// (complete), step 2"
std::string Rendezvous::whereabouts_of(int rank) const {
  if (is_remote(rank)) {
    const int process = process_of(rank);
    if (const auto lost = lost_.find(process); lost != lost_.end())
      return c10::str("ended without a word with process ", process, ": ", lost->second);
    return has_departed(rank)
               ? "has ended"
               : c10::str("runs in process ", process, ", which did not answer: see its output");
  }
  if (const Transfer* transfer = of(rank).waits_for)
    return c10::str("waits in another communication since ",
                    seconds(Clock::now() - of(rank).waits_since), ": ",
                    of(rank).recorder.describe(*transfer));
  const auto since = seconds(HostThreads::Clock::now() - threads_.since(seat(rank)));
  const std::string scopes = of(rank).scopes.text();
  const std::string last =
      (scopes.empty() ? "" : ", in " + scopes) + "; last: " + of(rank).recorder.last();
  switch (threads_.state(seat(rank))) {
    case State::kUnstarted: return "has not started";
    case State::kReady: return "waits for a host thread since " + since + last;
    case State::kRunning: return "runs outside any communication since " + since + last;
    case State::kBlocked: return "waits in another communication since " + since + last;
    case State::kEnded: return "has ended " + since + " ago" + last;
  }
  return last;
}

bool Rendezvous::has_joined(const GroupInfo& info, int rank) const {
  if (is_remote(rank)) return true;  // unknown here
  const auto& joined = groups_.at({info.axis, info.ranks, info.instance})->joined;
  const auto member = std::find(info.ranks.begin(), info.ranks.end(), rank) - info.ranks.begin();
  return joined[static_cast<std::size_t>(member)];
}

Rendezvous::Doings Rendezvous::doings_here() const {
  Doings doings;
  for (const int rank : running_) {
    const Transfer* transfer = of(rank).waits_for;
    const State state = transfer != nullptr ? State::kBlocked : threads_.state(seat(rank));
    const auto began = transfer != nullptr ? of(rank).waits_since : threads_.since(seat(rank));
    const bool may_be_helped = program_ && (has_other_threads_ || !has_single_thread_);
    const bool only_waits = transfer != nullptr && !transfer->done && !cancelled_ &&
                            !may_be_helped && !missing_that_run(*transfer).empty();
    doings[rank] = {whereabouts_of(rank),
                    transfer == nullptr ? "" : of(rank).recorder.describe(*transfer), state,
                    std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began),
                    only_waits || state == State::kEnded};
  }
  return doings;
}

Rendezvous::Now Rendezvous::now_of(int rank) const {
  const Transfer* transfer = of(rank).waits_for;
  const std::string scopes = of(rank).scopes.text();
  const auto ago = HostThreads::Clock::now() - threads_.since(seat(rank));
  Now now{"", host_time_ns() - std::chrono::nanoseconds(ago).count()};
  switch (threads_.state(seat(rank))) {
    case State::kUnstarted:
    case State::kEnded: break;
    default:
      now.text = transfer != nullptr
                     ? "waits in " + of(rank).recorder.describe(*transfer)
                     : "runs outside any communication" + (scopes.empty() ? "" : ", in " + scopes);
  }
  return now;
}

namespace {

/// "  blocked: rank 1, 2 in all-reduce …", a line for all that are in the same one.
template <typename Doings>
std::string blocked_ranks(const Doings& doings, const std::vector<int>& named) {
  std::map<std::string, std::vector<int>> ranks;
  for (const auto& [rank, doing] : doings) {
    if (doing.waits_in.empty() || std::find(named.begin(), named.end(), rank) != named.end())
      continue;
    ranks[doing.waits_in].push_back(rank);
  }
  std::string text;
  for (const auto& [transfer, who] : ranks)
    text += c10::str("  blocked: rank ", c10::Join(", ", who), " in ", transfer, "\n");
  return text;
}

}  // namespace

void Rendezvous::throw_hang(int rank, const Transfer& transfer, Clock::time_point began,
                            const char* hopeless, const Doings& doings) {
  const auto missing = missing_that_run(transfer);
  std::string text =
      c10::str("communication hang: rank ", rank, " waited ", seconds(Clock::now() - began), " in ",
               of(rank).recorder.describe(transfer),
               "\n  arrived: ", c10::Join(", ", transfer.arrived()), "\n");
  for (int other : missing) {
    const auto doing = doings.find(other);
    text +=
        c10::str("  missing: rank ", other, ", which ",
                 has_joined(*transfer.group, other) ? "" : "has not made this group and ",
                 doing != doings.end() ? doing->second.whereabouts : whereabouts_of(other), "\n");
  }
  std::vector<int> named = missing;
  named.push_back(rank);
  text += blocked_ranks(doings, named);
  text += hopeless;
  text +=
      "  what to do: compare what the missing ranks do with the ranks that arrived; every member "
      "of a group must make the same "
      "communications in the same order";
  if (*hopeless == '\0') text += ", or give slow ranks a longer timeout";
  world_is_over(text, ExitCode::kHang);  // whoever is to tell of it may wait for a lock of Python's
  cancelled_ = true;  // others that wait as long must not report this hang without this rank
  throw Error(ExitCode::kHang, text);
}

std::optional<Rendezvous::Overdue> Rendezvous::overdue() const {
  const Lock lock(mutex_);
  if (!verdict_ || is_notified_ || Clock::now() < verdict_->overdue_from) return std::nullopt;
  Overdue result{verdict_->cause, verdict_->code, whereabouts_of_all()};
  if (result.ranks.empty()) return std::nullopt;
  return result;
}

std::vector<Rendezvous::Whereabouts> Rendezvous::whereabouts_of_all() const {
  std::vector<Whereabouts> all;
  for (const int rank : running_) {
    const State state = threads_.state(seat(rank));
    if (state == State::kUnstarted || state == State::kEnded) continue;
    all.push_back({rank, of(rank).step, whereabouts_of(rank), threads_.native_thread(seat(rank))});
  }
  return all;
}

std::vector<Rendezvous::Whereabouts> Rendezvous::whereabouts() const {
  const Lock lock(mutex_);
  return whereabouts_of_all();
}

std::vector<FlightDump> Rendezvous::flight_dumps() const {
  const Lock lock(mutex_);
  std::vector<FlightDump> dumps;
  for (const int rank : running_) {
    const Now now = verdict_ ? verdict_->now.at(rank) : now_of(rank);
    FlightDump dump{rank, of(rank).recorder.entries(), {}, now.text, now.since_ns};
    for (const auto& [key, group] : groups_) {
      const auto& ranks = group->info->ranks;
      const auto member = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
      if (static_cast<std::size_t>(member) < ranks.size() &&
          group->joined[static_cast<std::size_t>(member)])
        dump.groups.push_back(group->info);
    }
    dumps.push_back(std::move(dump));
  }
  return dumps;
}

void Rendezvous::check_complete() const {
  const Lock lock(mutex_);
  std::string text;
  const auto note = [&](const Transfer& transfer, const CommCall& call, const std::vector<int>& did,
                        std::vector<int> did_not) {
    std::erase_if(did_not, [this](int rank) { return seat(rank) < 0; });
    if (transfer.done || did_not.empty() || is_of_failed_section(transfer)) return;
    text += c10::str("  ", describe(call), ", #", transfer.sequence, " of ", transfer.group->label,
                     ": rank ", c10::Join(", ", did), " did it, rank ", c10::Join(", ", did_not),
                     " did not\n");
  };
  for (const auto& [key, group] : groups_) {
    const GroupInfo& info = *group->info;
    for (std::size_t m = 0; m < info.ranks.size(); ++m) {
      if (group->joined[m] || seat(info.ranks[m]) < 0) continue;
      text += c10::str("  group ", info.label, ": rank ", info.ranks[m],
                       " never made it, other members did\n");
    }
    for (const auto& [sequence, exchange] : group->exchanges) {
      const auto& sides = exchange->sides;
      const auto side = std::find_if(sides.begin(), sides.end(),
                                     [](const auto& each) { return each.has_value(); });
      if (side != sides.end())
        note(*exchange, (*side)->call, exchange->arrived(), exchange->missing());
    }
    for (const auto& [place, message] : group->messages) {
      if (message->sent) note(*message, *message->sent, {message->sender}, {message->receiver});
      if (message->posted)
        note(*message, message->posted->call, {message->receiver}, {message->sender});
    }
  }
  if (text.empty()) return;
  throw Error(
      ExitCode::kHang,
      "communication mismatch: every rank has ended, and some did what others never answered:\n" +
          text +
          "  what to do: on a machine the ranks that did it would hang; every member of a group "
          "must make "
          "the group and the same communications, and every send needs its receive");
}

void Rendezvous::check_group_counts(int rank, const GroupCount& mine) const {
  const Lock lock(mutex_);
  for (const auto& [process, theirs] : groups_of_others_) {
    if (theirs.number == mine.number || theirs.number == 0) continue;
    const int other = world_[static_cast<std::size_t>(process)];
    const auto side = [](int who, const GroupCount& count) {
      return c10::str("rank ", who, " made ", count.number, " groups, the last at ", count.place);
    };
    throw Error(
        ExitCode::kHang,
        c10::str("communication mismatch: ", rank < other ? side(rank, mine) : side(other, theirs),
                 "; ", rank < other ? side(other, theirs) : side(rank, mine),
                 ": every rank of the world must make every group (init_process_group, "
                 "new_group), members or not, in the same order"));
  }
}

std::string Rendezvous::disagreement(const Transfer& transfer, const Belief& expected,
                                     const Belief& got) const {
  constexpr std::size_t kShown = 3;
  const auto line = [&](const Belief& who) {
    const std::string text = c10::str("  rank ", who.rank, ": ", describe(who.call), who.place);
    if (is_remote(who.rank)) return text + "\n";
    return c10::str(text, "; before it:\n",
                    of(who.rank).recorder.recent_before(transfer, kShown, "    "));
  };
  return c10::str("communication mismatch: #", transfer.sequence, " of ", transfer.group->label,
                  ": expected ", describe(expected.call), " (rank ", expected.rank, "), got ",
                  describe(got.call), " (rank ", got.rank, ")\n", line(expected), line(got),
                  "  what to do: every member of a group must make the same communications, with "
                  "the same sizes and types, in "
                  "the same order");
}

}  // namespace trellis::runtime
