#include "runtime/links/process_link.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "runtime/links/gloo_backend.h"
#include "runtime/links/gloo_channel.h"
#include "runtime/links/job_store.h"
#include "runtime/links/local_channel.h"

namespace trellis::runtime {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kGoodbye = "goodbye";
constexpr const char* kAlive = "alive";
/// Bytes of what a process says in the store about itself: its whole configuration is less.
constexpr std::size_t kLongestWord = std::size_t{1} << 20;
constexpr std::chrono::hours kForever(24 * 365);

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const at::Tensor& data) {
  if (data.numel() == 0) return "";
  return {reinterpret_cast<const char*>(data.data_ptr()), static_cast<std::size_t>(data.numel())};
}

/// How often a process says that it lives.
milliseconds beat_of(milliseconds patience) {
  constexpr milliseconds kShortest{50}, kLongest{5000};
  constexpr int kBeats = 10;
  return std::clamp(patience / kBeats, kShortest, kLongest);
}

std::string seconds(milliseconds time) {
  return c10::str(time.count() / 1000, ".", time.count() % 1000 / 100, " s");
}

}  // namespace

ProcessLink::ProcessLink(const Launch& launch, milliseconds patience, const Identity& identity)
    : ProcessLink(launch, open_job_store(launch, patience), patience, identity) {}

ProcessLink::ProcessLink(const Launch& launch, c10::intrusive_ptr<c10d::Store> store,
                         milliseconds patience, const Identity& identity)
    : launch_(launch), patience_(patience), store_(std::move(store)) {
  for (int other = 0; other < processes(); ++other) {
    if (other != process()) peers_[other] = std::make_unique<Peer>();
  }
  check_identity(identity, patience);
  connect(patience);
  start_threads();
}

ProcessLink::~ProcessLink() {
  // Who left in order has closed. The others notice the goodbye, and need not be waited for.
  constexpr milliseconds kPatience{1000};
  close(kPatience);
}

/// The text that another process left in the store. Anyone who reaches the store may have written
/// it.
std::string ProcessLink::said_by(int other, const std::string& key, milliseconds patience) {
  constexpr milliseconds kMore{1000};
  const auto said = std::make_shared<std::string>();
  try {
    within(patience + kMore, "the store of the job does not answer", [store = store_, key, said] {
      const std::vector<std::uint8_t> value = store->get(key);
      *said = {value.begin(), value.end()};
    });
  } catch (const c10::Error&) {
    throw Error(
        ExitCode::kHang,
        c10::str("process ", other, " of ", processes(), " did not come: process ", process(),
                 " waited for it (", launch_.launcher, ", rank ", other,
                 "): look at its output, and start as many processes as the launcher says"));
  }
  if (said->size() <= kLongestWord) return *said;
  throw ConfigError(c10::str("the store of the job: expected at most ", kLongestWord,
                             " bytes under ", key, ", got ", said->size(),
                             ": another program writes to it: set TRELLIS_STORE_SECRET"));
}

namespace {

/// Two texts: what a process says about where it is, or one line of its identity.
struct Pair {
  std::string first, second;
};

std::vector<Pair> pairs_of(const std::string& text, const std::string& key) {
  std::vector<Pair> pairs;
  const json all = json::parse(text, nullptr, false);
  bool is_whole = all.is_array();
  for (const json& one : is_whole ? all : json::array()) {
    is_whole =
        is_whole && one.is_array() && one.size() == 2 && one[0].is_string() && one[1].is_string();
    if (is_whole) pairs.push_back({one[0].get<std::string>(), one[1].get<std::string>()});
  }
  if (is_whole) return pairs;
  constexpr std::size_t kShown = 60;
  throw ConfigError("the store of the job: expected a list of two texts each under " + key +
                    ", got " + text.substr(0, kShown) +
                    ": another program writes to it: set TRELLIS_STORE_SECRET");
}

}  // namespace

void ProcessLink::check_identity(const Identity& identity, milliseconds patience) {
  const auto key = [](int process) { return "identity/" + std::to_string(process); };
  store_->set(key(process()), bytes_of(json(identity).dump()));
  std::vector<std::vector<Pair>> all;
  for (int other = 0; other < processes(); ++other)
    all.push_back(pairs_of(said_by(other, key(other), patience), key(other)));
  wait_for_store("identity", patience);  // the store ends with process 0
  for (int other = 0; other < processes(); ++other) {
    const std::vector<Pair>& theirs = all[static_cast<std::size_t>(other)];
    for (std::size_t i = 0; i < identity.size(); ++i) {
      const std::string got = i < theirs.size() ? theirs[i].second : "nothing";
      if (got == identity[i].second) continue;
      throw ConfigError("processes of one job differ in their " + identity[i].first + ": process " +
                        std::to_string(process()) + " has " + identity[i].second + ", process " +
                        std::to_string(other) + " has " + got +
                        ": start all with the same program, file and overrides");
    }
  }
}

void ProcessLink::connect(milliseconds patience) {
  LocalMeeting meeting(processes());
  const auto key = [](int process) { return "host/" + std::to_string(process); };
  const std::string host = LocalMeeting::host();
  store_->set(key(process()),
              bytes_of(json::array({json::array({host, meeting.address()})}).dump()));
  std::map<int, std::string> local;
  std::vector<int> remote;
  for (const auto& [other, peer] : peers_) {
    const std::vector<Pair> theirs = pairs_of(said_by(other, key(other), patience), key(other));
    if (!host.empty() && theirs.size() == 1 && theirs[0].first == host) {
      local[other] = theirs[0].second;
    } else {
      remote.push_back(other);
    }
  }
  for (auto& [other, channel] : meeting.meet(process(), local, patience))
    peer(other).channel = std::move(channel);
  // All processes agree on whether there are several hosts: Gloo's members are all processes.
  if (remote.empty()) return;
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store_);
  try {
    const auto gloo =
        new_gloo_backend(gloo_store, process(), processes(), patience, launch_.address);
    for (const int other : remote) peer(other).channel = std::make_unique<GlooChannel>(gloo, other);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    throw Error(
        ExitCode::kHang,
        c10::str("process ", process(), " could not connect to process ", c10::Join(", ", remote),
                 " within ", seconds(patience), ": ", why.substr(0, why.find('\n')),
                 "\n  what to do: look at their output and at the network between the hosts"
                 " (GLOO_SOCKET_IFNAME names an interface)"));
  }
}

void ProcessLink::start_threads() {
  for (const auto& [other, peer] : peers_)
    peer->receiver = std::thread([this, other = other] { receive_from(other); });
  postman_ = std::thread([this] { post_letters(); });
  beats_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    for (int tick = 0; !changed_.wait_for(lock, beat_of(patience_), [this] { return ends_; });
         ++tick) {
      lock.unlock();
      say_alive(tick);
      lock.lock();
    }
  });
}

/// Silence is counted in this process's own ticks: one that was stopped together with the others
/// suspects no one when all go on.
void ProcessLink::say_alive(int tick) {
  const Outgoing message(kAlive, {});
  const auto most = static_cast<int>(patience_ / beat_of(patience_));
  for (const auto& [other, peer] : peers_) {
    if (peer->has_left) continue;
    // One that sends or whose message is worked on lives.
    if (std::unique_lock sending(peer->sending, std::try_to_lock); sending) {
      try {
        peer->channel->try_send(message);
      } catch (const std::exception&) {
        // The receiver finds out.
      }
    }
    if (tick == 0 || peer->is_handled) peer->silent_ticks = 0;
    if (peer->silent_ticks++ < std::max(most, 1)) continue;
    note_lost(other, {"it has said nothing for " + seconds(patience_) +
                          ": it is stopped or paused, or the network to it is cut",
                      true});
  }
}

std::optional<std::string> ProcessLink::ask(const char* what, const std::string& name,
                                            const std::string& text, milliseconds patience) {
  struct Answer {
    bool came = false;
    std::optional<std::string> text;
  };
  const auto answer = std::make_shared<Answer>();
  const Board::Reply reply = [this, answer](std::optional<std::string> said) {
    const std::lock_guard lock(mutex_);
    answer->text = std::move(said);
    answer->came = true;
    changed_.notify_all();
  };
  std::unique_lock before(mutex_);
  const std::uint64_t interrupts = interrupts_;
  before.unlock();
  if (process() == 0) {
    board_.ask(what, name, text, reply);
  } else {
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = tickets_++;
    asked_[ticket] = reply;
    lock.unlock();
    send({0}, {{"kind", "board"}, {"ask", what}, {"name", name}, {"ticket", ticket}},
         {{reinterpret_cast<const std::byte*>(text.data()), text.size()}});
  }
  const bool takes = std::string_view(what) == "take";
  const bool waits_for_others = takes || std::string_view(what) == "read";
  const auto is_over = [&] {  // process 0 answers after its goodbye, and leaves nothing any more
    return answer->came || first_is_gone_ || (takes && (is_over_ || interrupts_ != interrupts)) ||
           (first_loss_ && (waits_for_others || !first_loss_->is_goodbye));
  };
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + std::min<milliseconds>(patience, kForever);
  (void)changed_.wait_until(lock, until, is_over);
  return answer->came ? answer->text : std::nullopt;
}

void ProcessLink::throw_without_first(const std::string& wanted) {
  const std::lock_guard lock(mutex_);
  const bool is_goodbye = !first_loss_ || first_loss_->is_goodbye;
  throw Error(is_goodbye ? ExitCode::kInternal : ExitCode::kHang,
              "process " + std::to_string(process()) + " waited for what process 0 has to say (" +
                  wanted + "), but " + (is_goodbye ? "it has left the job" : first_loss_->why) +
                  ": look at its output");
}

std::string ProcessLink::from_first(const std::string& name, const std::string& said) {
  const auto text = ask(process() == 0 ? "put" : "read", name, said, kForever);
  if (!text) throw_without_first(name);
  return process() == 0 ? said : *text;
}

bool ProcessLink::first_answer(const std::string& question, bool said) {
  const auto answer = ask("first", question, said ? "1" : "0", kForever);
  if (!answer) throw_without_first(question);
  return *answer == "1";
}

void ProcessLink::leave_text(const std::string& name, const std::string& text) {
  (void)ask("put", "text/" + name, text, kForever);
}

std::optional<std::string> ProcessLink::take_text(const std::string& name, milliseconds patience) {
  return ask("take", "text/" + name, "", patience);
}

void ProcessLink::send_bytes(int process, const std::string& name,
                             std::vector<Outgoing::Bytes> data) {
  send({process}, {{"kind", "bytes"}, {"name", name}}, std::move(data));
}

std::optional<at::Tensor> ProcessLink::take_bytes(int process, const std::string& name,
                                                  std::uint64_t interrupts) {
  std::unique_lock lock(mutex_);
  const auto parcel = [&] { return parcels_.find({process, name}); };
  changed_.wait(lock, [&] {
    return parcel() != parcels_.end() || is_over_ || interrupts_ != interrupts ||
           peer(process).has_left;
  });
  const auto found = parcel();
  if (found == parcels_.end()) return std::nullopt;
  at::Tensor bytes = std::move(found->second);
  parcels_.erase(found);
  return bytes;
}

std::uint64_t ProcessLink::interrupts() {
  const std::lock_guard lock(mutex_);
  return interrupts_;
}

void ProcessLink::stop_waiting() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

void ProcessLink::interrupt_takes() {
  const std::lock_guard lock(mutex_);
  ++interrupts_;
  changed_.notify_all();
}

void ProcessLink::raise_flag(const std::string& name) {
  (void)ask("put", "flag/" + name, "", kForever);
}

bool ProcessLink::is_raised(const std::string& name) {
  return ask("has", "flag/" + name, "", kForever).has_value();
}

void ProcessLink::listen(Listener listener) {
  listener_ = std::move(listener);
  for (const auto& [other, peer] : peers_) {
    const std::lock_guard lock(peer->receiving);
    peer->listens = true;
    for (Incoming& message : peer->early)
      listener_.received(other, message.what, std::move(message.data));
    peer->early.clear();
    if (peer->early_loss) listener_.lost(other, *peer->early_loss);
  }
}

void ProcessLink::send(const std::set<int>& processes, const json& what,
                       std::vector<Outgoing::Bytes> data) {
  const Outgoing message(what, std::move(data));
  for (const int process : processes) {
    if (peer(process).is_lost) continue;
    const std::lock_guard lock(peer(process).sending);
    try {
      peer(process).channel->send(message);
    } catch (const std::exception& error) {
      note_lost(process, {error.what()});
    }
  }
}

void ProcessLink::send_to_all(const json& what) {
  std::set<int> others;
  for (const auto& [other, peer] : peers_) others.insert(other);
  send(others, what, {});
}

void ProcessLink::post(int process, json what, std::string data) {
  const std::lock_guard lock(mutex_);
  letters_.push_back({process, std::move(what), std::move(data)});
  changed_.notify_all();
}

void ProcessLink::post_to_all(const json& what) {
  for (const auto& [other, peer] : peers_) post(other, what);
}

void ProcessLink::post_letters() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !letters_.empty(); });
    if (letters_.empty()) return;
    const Letter letter = std::move(letters_.front());
    letters_.pop_front();
    lock.unlock();
    send({letter.process}, letter.what,
         {{reinterpret_cast<const std::byte*>(letter.data.data()), letter.data.size()}});
    lock.lock();
  }
}

void ProcessLink::receive_from(int process) {
  Peer& from = peer(process);
  try {
    while (true) {
      Incoming message = from.channel->receive();
      from.silent_ticks = 0;
      from.is_handled = true;
      handle(process, std::move(message));
      from.silent_ticks = 0;
      from.is_handled = false;
    }
  } catch (const std::exception& error) {
    from.is_handled = false;
    note_lost(process, {error.what()});
  }
  if (process != 0) return;
  const std::lock_guard lock(mutex_);
  first_is_gone_ = true;
  changed_.notify_all();
}

void ProcessLink::handle(int process, Incoming message) {
  if (message.what == kAlive) return;
  if (message.what == kGoodbye) return note_lost(process, {"it has left the job", false, true});
  const auto kind = message.what.at("kind").get<std::string>();
  if (kind == "board") return handle_board(process, message);
  if (kind == "bytes") {
    const std::lock_guard lock(mutex_);
    parcels_[{process, message.what.at("name").get<std::string>()}] = std::move(message.data);
    return changed_.notify_all();
  }
  if (kind != "reply") return give(process, std::move(message));
  Board::Reply reply;
  {
    const std::lock_guard lock(mutex_);
    const auto asked = asked_.find(message.what.at("ticket").get<std::uint64_t>());
    if (asked == asked_.end()) return;
    reply = std::move(asked->second);
    asked_.erase(asked);
  }
  std::optional<std::string> text;
  if (message.what.at("there").get<bool>()) text = text_of(message.data);
  reply(std::move(text));
}

void ProcessLink::give(int process, Incoming message) {
  Peer& from = peer(process);
  const std::lock_guard lock(from.receiving);
  if (from.listens) return listener_.received(process, message.what, std::move(message.data));
  from.early.push_back(std::move(message));
}

void ProcessLink::handle_board(int process, const Incoming& message) {
  const auto ticket = message.what.at("ticket").get<std::uint64_t>();
  board_.ask(message.what.at("ask").get<std::string>(), message.what.at("name").get<std::string>(),
             text_of(message.data),
             [this, process, ticket](const std::optional<std::string>& text) {
               post(process, {{"kind", "reply"}, {"ticket", ticket}, {"there", text.has_value()}},
                    text.value_or(""));
             });
}

void ProcessLink::note_lost(int process, Loss loss) {
  Peer& from = peer(process);
  if (from.has_left.exchange(true)) return;
  loss.why = loss.why.substr(0, loss.why.find('\n'));
  from.is_lost = !loss.is_goodbye;
  if (loss.is_silent) from.channel->stop();
  {
    const std::lock_guard lock(mutex_);
    if (process == 0) first_loss_ = loss;
    changed_.notify_all();
  }
  const std::lock_guard lock(from.receiving);
  if (from.listens)
    listener_.lost(process, loss);
  else
    from.early_loss = std::move(loss);
}

void ProcessLink::close(milliseconds patience) {
  if (std::exchange(closed_, true) || !postman_.joinable()) return;
  for (const auto& [other, peer] : peers_) post(other, kGoodbye);  // after what was posted before
  {
    std::unique_lock lock(mutex_);
    const auto all_left = [this] {
      return std::ranges::all_of(peers_,
                                 [](const auto& one) { return one.second->has_left.load(); });
    };
    const auto until =
        std::chrono::steady_clock::now() + std::min<milliseconds>(patience, kForever);
    (void)changed_.wait_until(lock, until, all_left);
    ends_ = true;
    changed_.notify_all();
  }
  beats_.join();
  for (const auto& [other, peer] : peers_) {
    if (!peer->has_left) peer->channel->stop();  // the postman may be waiting for it
  }
  postman_.join();
  for (const auto& [other, peer] : peers_) {
    constexpr milliseconds kFlush{1000};
    if (!peer->is_lost) peer->channel->flush(kFlush);
    peer->channel->stop();
  }
  for (const auto& [other, peer] : peers_) peer->receiver.join();
}

/// Returns when all processes were here, or some never come.
void ProcessLink::wait_for_store(const std::string& where, milliseconds patience) {
  const auto count_to = [this, patience](std::int64_t count, const std::string& what,
                                         std::int64_t mine) {
    constexpr milliseconds kMore(1000);
    within(patience + kMore, "the store of the job does not answer",
           [store = store_, count, what, mine,
            deadline = std::chrono::steady_clock::now() + patience] {
             constexpr milliseconds kPause(2);
             auto arrived = store->add(what, mine);
             while (arrived < count && std::chrono::steady_clock::now() < deadline) {
               std::this_thread::sleep_for(kPause);
               arrived = store->add(what, 0);
             }
           });
  };
  const std::string left = where + "/left";
  try {
    count_to(processes(), where, 1);
    // The store may end with process 0: it stays until no other asks for anything any more.
    count_to(process() == 0 ? processes() - 1 : 0, left, process() == 0 ? 0 : 1);
  } catch (const c10::Error&) {
    // Process 0 failed.
  }
}

}  // namespace trellis::runtime
