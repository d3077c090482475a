// The other processes of a job: the part of Rendezvous that sends what its ranks do and receives
// what theirs do.
#include <algorithm>
#include <set>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

using nlohmann::json;

json to_json(const CommCall& call) {
  return {call.op,  call.reduction, static_cast<int>(call.dtype), call.elements, call.root,
          call.tag, call.parts};
}

CommCall call_of(const json& fields) {
  CommCall call;
  call.op = fields.at(0).get<CommOp>();
  call.reduction = fields.at(1).get<Reduction>();
  call.dtype = static_cast<c10::ScalarType>(fields.at(2).get<int>());
  call.elements = fields.at(3).get<std::int64_t>();
  call.root = fields.at(4).get<int>();
  call.tag = fields.at(5).get<int>();
  call.parts = fields.at(6).get<std::vector<std::int64_t>>();
  return call;
}

json to_json(const GroupInfo& info) { return {info.axis, info.ranks, info.instance}; }

/// {offset, elements} of each.
json places_of(const std::vector<Piece>& pieces) {
  json places = json::array();
  for (const Piece& piece : pieces) places.push_back({piece.offset, piece.length});
  return places;
}

std::vector<Outgoing::Bytes> bytes_of(const std::vector<Piece>& pieces, c10::ScalarType dtype) {
  std::vector<Outgoing::Bytes> bytes;
  for (const Piece& piece : pieces)
    bytes.emplace_back(piece.data,
                       static_cast<std::size_t>(piece.length) * c10::elementSize(dtype));
  return bytes;
}

std::byte* start_of(const at::Tensor& data) {
  return reinterpret_cast<std::byte*>(data.data_ptr<std::uint8_t>());
}

/// A remote member gives its bytes and keeps nothing here.
Side side_of(const json& what, const at::Tensor& data) {
  Side side;
  side.call = call_of(what.at("call"));
  side.place = what.at("place").get<std::string>();
  what.at("input_splits").get_to(side.input_splits);
  what.at("output_splits").get_to(side.output_splits);
  side.keep_alive = {data};
  std::byte* place = start_of(data);
  const auto item = static_cast<std::int64_t>(c10::elementSize(side.call.dtype));
  for (const json& piece : what.at("inputs")) {
    const auto offset = piece.at(0).get<std::int64_t>(), length = piece.at(1).get<std::int64_t>();
    side.buffers.inputs.push_back({offset, length, place});
    place += length * item;
  }
  return side;
}

}  // namespace

void Rendezvous::listen() {
  // The link's threads end in leave(), which every owner calls.
  link_->listen(
      {.received = [this](int process, const json& what,
                          const at::Tensor& data) { received(process, what, data); },
       .lost = [this](int process, const ProcessLink::Loss& loss) { lost(process, loss); }});
}

bool Rendezvous::leave(std::chrono::milliseconds patience, const GroupCount& groups) {
  // Behind what lost() posted: the others know why this process ends when they hear that it does.
  link_->post_to_all({{"kind", "done"}, {"groups", {groups.number, groups.place}}});
  link_->close(patience);
  const Lock lock(mutex_);
  return std::ranges::count(processes_done_, true) == link_->processes() - 1;
}

void Rendezvous::announce_side(const Group& group, int member, std::uint64_t sequence,
                               const Side& side) {
  std::set<int> processes;
  for (const int rank : group.info->ranks) {
    if (is_remote(rank)) processes.insert(process_of(rank));
  }
  if (processes.empty()) return;
  const json what = {{"kind", "side"},
                     {"group", to_json(*group.info)},
                     {"place", side.place},
                     {"member", member},
                     {"sequence", sequence},
                     {"call", to_json(side.call)},
                     {"input_splits", side.input_splits},
                     {"output_splits", side.output_splits},
                     {"inputs", places_of(side.buffers.inputs)}};
  count_sent(processes);
  link_->send(processes, what, bytes_of(side.buffers.inputs, side.call.dtype));
}

/// Before it is sent: a message is under way as long as the numbers of its two ends differ.
void Rendezvous::count_sent(const std::set<int>& processes) {
  const Lock lock(mutex_);
  for (const int process : processes) ++sent_to_[static_cast<std::size_t>(process)];
}

void Rendezvous::announce_message(const Group& group, const Message& message,
                                  const std::string& place) {
  const int receiver = process_of(message.receiver);
  count_sent({receiver});
  link_->send({receiver},
              {{"kind", "message"},
               {"group", to_json(*group.info)},
               {"place", place},
               {"sender", message.sender},
               {"receiver", message.receiver},
               {"sequence", message.sequence},
               {"call", to_json(*message.sent)}},
              {{message.content.data(), message.content.size()}});
}

void Rendezvous::announce_failure(int rank, const std::string& text, ExitCode code) {
  if (link_ == nullptr) return;
  link_->send_to_all({{"kind", "failed"}, {"rank", rank}, {"text", text}, {"code", code}});
}

namespace {

/// Patience with a process that answers: long enough for a busy host, short next to the patience of
/// a user.
constexpr std::chrono::milliseconds kAnswerPatience{1000};

}  // namespace

Rendezvous::Picture Rendezvous::picture_here() const {
  Picture picture;
  picture.doings = doings_here();
  picture.sent = sent_to_;
  picture.received = received_from_;
  return picture;
}

std::map<int, Rendezvous::Picture> Rendezvous::pictures_of_others(Lock& lock, bool with_places) {
  const std::uint64_t question = questions_++;
  answers_.clear();
  lock.unlock();
  link_->send_to_all({{"kind", "question"}, {"question", question}, {"places", with_places}});
  lock.lock();
  const auto all_came = [&] {
    for (int process = 0; process < link_->processes(); ++process) {
      if (process != link_->process() && !processes_done_[static_cast<std::size_t>(process)] &&
          !answers_.contains(process))
        return false;
    }
    return true;
  };
  answered_.wait_for(lock, kAnswerPatience, all_came);
  return std::exchange(answers_, {});
}

void Rendezvous::answer_question(int process, const json& what) {
  std::string place;
  if (program_ && what.at("places").get<bool>()) place = program_->place();
  json doings = json::array();
  Picture here;
  {
    const Lock lock(mutex_);
    here = picture_here();
  }
  for (const auto& [rank, doing] : here.doings) {
    const bool runs = doing.waits_in.empty();
    doings.push_back({rank, doing.whereabouts + (runs ? place : ""), doing.waits_in, doing.state,
                      doing.since.count(), doing.only_waits});
  }
  link_->post(process, {{"kind", "answer"},
                        {"question", what.at("question")},
                        {"doings", doings},
                        {"sent", here.sent},
                        {"received", here.received}});
}

void Rendezvous::received_answer(int process, const json& what) {
  const Lock lock(mutex_);
  if (what.at("question").get<std::uint64_t>() + 1 != questions_) return;  // it came late
  Picture& picture = answers_[process];
  for (const json& one : what.at("doings"))
    picture.doings[one.at(0).get<int>()] = {
        one.at(1).get<std::string>(), one.at(2).get<std::string>(),
        one.at(3).get<HostThreads::State>(),
        std::chrono::milliseconds(one.at(4).get<std::int64_t>()), one.at(5).get<bool>()};
  what.at("sent").get_to(picture.sent);
  what.at("received").get_to(picture.received);
  answered_.notify_all();
}

void Rendezvous::received(int process, const json& what, const at::Tensor& data) {
  const c10::AutoGradMode without_gradients(false);
  const auto kind = what.at("kind").get<std::string>();
  if (kind == "question") return answer_question(process, what);
  if (kind == "answer") return received_answer(process, what);
  if (kind == "side" || kind == "message") {
    kind == "side" ? received_side(what, data) : received_message(what, data);
    const Lock lock(mutex_);
    ++received_from_[static_cast<std::size_t>(process)];
    return;
  }
  if (kind == "section") return received_section(what);
  if (kind == "done") return received_done(process, what);
  const auto text = what.at("text").get<std::string>();
  const auto code = what.at("code").get<ExitCode>();
  // Both sides of a mismatch find it: the one that came last, on its thread of the link.
  fail_remote(what.at("rank").get<int>(), std::make_exception_ptr(Error(code, text)), text, code,
              {});
}

void Rendezvous::received_done(int process, const json& what) {
  const Lock lock(mutex_);
  processes_done_[static_cast<std::size_t>(process)] = true;
  const json& groups = what.at("groups");
  groups_of_others_[process] = {groups.at(0).get<std::int64_t>(), groups.at(1).get<std::string>()};
  answered_.notify_all();
  threads_.make_all_ready();  // who waits for one of its ranks looks around
}

void Rendezvous::received_side(const json& what, const at::Tensor& data) {
  const json& info = what.at("group");
  Side side = side_of(what, data);
  Lock lock(mutex_);
  Group& group = group_of(info.at(0), info.at(1), info.at(2));
  const auto exchange = exchange_of(group, what.at("sequence").get<std::uint64_t>());
  if (exchange->error || cancelled_) return;
  try {
    arrive(lock, group, what.at("member").get<int>(), exchange, std::move(side));
  } catch (const Error&) {
    if (!exchange->error) throw;  // the ranks that wait for it throw it
  }
}

void Rendezvous::received_message(const json& what, const at::Tensor& data) {
  const json& info = what.at("group");
  Lock lock(mutex_);
  Group& group = group_of(info.at(0), info.at(1), info.at(2));
  const auto message =
      Rendezvous::message(group, what.at("sender").get<int>(), what.at("receiver").get<int>(),
                          what.at("sequence").get<std::uint64_t>());
  message->sent = call_of(what.at("call"));
  message->sent_at = what.at("place").get<std::string>();
  message->content.assign(start_of(data), start_of(data) + data.numel());
  if (!message->posted) return;
  try {
    deliver(lock, group, *message);
  } catch (const Error&) {
    if (!message->error) throw;
  }
}

void Rendezvous::lost(int process, const ProcessLink::Loss& loss) {
  const auto ranks_of_each = static_cast<int>(running_.size());
  const int first = world_[static_cast<std::size_t>(process) * running_.size()];
  {
    const Lock lock(mutex_);
    if (processes_done_[static_cast<std::size_t>(process)]) return;
    lost_[process] = loss.why;
    answered_.notify_all();
    if (program_ && !loss.is_silent) {  // those who wait for it throw
      processes_done_[static_cast<std::size_t>(process)] = true;
      return threads_.make_all_ready();
    }
  }
  const std::string ranks = ranks_of_each == 1
                                ? c10::str("rank ", first)
                                : c10::str("ranks ", first, " to ", first + ranks_of_each - 1);
  const std::string text =
      loss.is_silent
          ? c10::str("process ", process, " (", ranks, ") does not answer: ", loss.why,
                     "\n  what to do: look at that process, its host and the network between the "
                     "hosts; a longer --timeout is more patient")
          : c10::str("process ", process, " (", ranks, ") ended without a word: ", loss.why,
                     "\n  what to do: look at its output and at the kernel's log of its host: it "
                     "was killed, ran out of memory, or its host or network went down");
  link_->post_to_all(
      {{"kind", "failed"}, {"rank", first}, {"text", text}, {"code", ExitCode::kHang}});
  fail_remote(first, std::make_exception_ptr(Error(ExitCode::kHang, text)), text, ExitCode::kHang,
              loss.is_silent ? std::chrono::milliseconds{} : timeout_);
}

void Rendezvous::fail_remote(int rank, std::exception_ptr cause, const std::string& text,
                             ExitCode code, std::chrono::milliseconds grace) {
  const Lock lock(mutex_);
  processes_done_[static_cast<std::size_t>(process_of(rank))] = true;
  remote_failures_.emplace(rank, std::move(cause));
  cancelled_ = true;
  is_announced_ = true;
  world_is_over(text, code, -1, grace);
  threads_.make_all_ready();
}

}  // namespace trellis::runtime
