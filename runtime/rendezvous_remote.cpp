// The other processes of a job: the part of Rendezvous that sends what its ranks do and receives
// what theirs do.
#include <set>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/rendezvous.h"

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
  link_->listen({.received = [this](int process, const json& what,
                                    const at::Tensor& data) { received(process, what, data); },
                 .lost = [this](int process, const std::string& why) { lost(process, why); }});
}

void Rendezvous::leave() {
  link_->send_to_all({{"kind", "done"}});
  link_->close();
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
                     {"member", member},
                     {"sequence", sequence},
                     {"call", to_json(side.call)},
                     {"input_splits", side.input_splits},
                     {"output_splits", side.output_splits},
                     {"inputs", places_of(side.buffers.inputs)}};
  link_->send(processes, what, bytes_of(side.buffers.inputs, side.call.dtype));
}

void Rendezvous::announce_message(const Group& group, const Message& message) {
  link_->send({process_of(message.receiver)},
              {{"kind", "message"},
               {"group", to_json(*group.info)},
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

/// Of a process that answers: long enough for a busy host, short next to the patience of a user.
constexpr std::chrono::milliseconds kAnswerPatience{1000};

std::string answer_name(int asker, std::uint64_t question, int process) {
  return "doing/" + std::to_string(asker) + "/" + std::to_string(question) + "/" +
         std::to_string(process);
}

}  // namespace

Rendezvous::Doings Rendezvous::doings_of_others(std::uint64_t question) try {
  const int here = link_->process();
  link_->send_to_all({{"kind", "question"}, {"asker", here}, {"question", question}});
  Doings doings;
  const auto until = Clock::now() + kAnswerPatience;
  for (int process = 0; process < link_->processes(); ++process) {
    if (process == here) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    const auto text = link_->take_text(answer_name(here, question, process), left);
    if (!text) continue;
    for (const json& one : json::parse(*text))
      doings[one.at(0).get<int>()] = {one.at(1).get<std::string>(), one.at(2).get<std::string>(),
                                      one.at(3).get<HostThreads::State>(),
                                      std::chrono::milliseconds(one.at(4).get<std::int64_t>())};
  }
  return doings;
} catch (const std::exception&) {  // the store has gone, with process 0
  return {};
}

void Rendezvous::answer_question(const json& what) {
  json answer = json::array();
  {
    const Lock lock(mutex_);
    for (const auto& [rank, doing] : doings_here())
      answer.push_back({rank, doing.whereabouts, doing.waits_in, doing.state, doing.since.count()});
  }
  link_->leave_text(answer_name(what.at("asker").get<int>(),
                                what.at("question").get<std::uint64_t>(), link_->process()),
                    answer.dump());
}

void Rendezvous::received(int process, const json& what, const at::Tensor& data) {
  const c10::AutoGradMode without_gradients(false);
  const auto kind = what.at("kind").get<std::string>();
  if (kind == "side") return received_side(what, data);
  if (kind == "message") return received_message(what, data);
  if (kind == "question") return answer_question(what);
  {
    const Lock lock(mutex_);
    processes_done_[static_cast<std::size_t>(process)] = true;
  }
  if (kind == "done") return;
  const auto text = what.at("text").get<std::string>();
  const auto code = what.at("code").get<ExitCode>();
  // Both sides of a mismatch find it: the one that came last, on its thread of the link.
  fail_remote(what.at("rank").get<int>(), std::make_exception_ptr(Error(code, text)), text, code);
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
  message->content.assign(start_of(data), start_of(data) + data.numel());
  if (!message->posted) return;
  try {
    deliver(lock, group, *message);
  } catch (const Error&) {
    if (!message->error) throw;
  }
}

void Rendezvous::lost(int process, const std::string& why) {
  {
    const Lock lock(mutex_);
    if (processes_done_[static_cast<std::size_t>(process)]) return;
  }
  const auto ranks_of_each = static_cast<int>(running_.size());
  const int first = process * ranks_of_each;
  const std::string ranks = ranks_of_each == 1
                                ? c10::str("rank ", first)
                                : c10::str("ranks ", first, " to ", first + ranks_of_each - 1);
  const std::string text = c10::str(
      "process ", process, " (", ranks, ") ended without a word: ", why,
      "\n  what to do: look at its output and at the kernel's log of its host: it was killed, ran "
      "out of memory, or its host or network went down");
  fail_remote(first, std::make_exception_ptr(Error(ExitCode::kInternal, text)), text,
              ExitCode::kInternal);
}

void Rendezvous::fail_remote(int rank, std::exception_ptr cause, const std::string& text,
                             ExitCode code) {
  const Lock lock(mutex_);
  remote_failures_.emplace(rank, std::move(cause));
  cancelled_ = true;
  world_is_over(text, code);
  threads_.make_all_ready();
}

}  // namespace trellis::runtime
