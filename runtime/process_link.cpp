#include "runtime/process_link.h"

#include <utility>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "runtime/gloo_backend.h"
#include "runtime/gloo_channel.h"
#include "runtime/local_channel.h"

namespace trellis::runtime {
namespace {

using nlohmann::json;

/// Of the store: it closes the connection of who sends 8 MiB at once.
constexpr std::size_t kLargestValue = std::size_t{4} << 20;
constexpr const char* kGoodbye = "goodbye";

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch,
                                           std::chrono::milliseconds patience) {
  const std::string place = launch.address + ":" + std::to_string(launch.port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.port);
  options.isServer = launch.process == 0 && !launch.store_is_there;
  options.waitWorkers = false;
  options.timeout = patience;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
    return c10::make_intrusive<c10d::PrefixStore>("trellis/" + std::to_string(launch.restart),
                                                  store);
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    throw ConfigError(
        options.isServer
            ? "cannot listen at " + place + ": " + why.substr(0, why.find('\n')) +
                  "\n  what to do: another program may use the port: set MASTER_PORT to a free one "
                  "for all processes"
            : "process " + std::to_string(launch.process) + " of " +
                  std::to_string(launch.processes) + " found no process 0 at " + place + ": " +
                  why.substr(0, why.find('\n')) +
                  "\n  what to do: check that it runs and that MASTER_ADDR and MASTER_PORT are the "
                  "same everywhere");
  }
}

}  // namespace

ProcessLink::ProcessLink(const Launch& launch, std::chrono::milliseconds patience,
                         const std::vector<std::pair<std::string, std::string>>& identity)
    : launch_(launch),
      store_(open_store(launch, patience)),
      sending_(static_cast<std::size_t>(launch.processes)),
      gone_(static_cast<std::size_t>(launch.processes)) {
  check_identity(identity);
  connect(patience);
}

ProcessLink::~ProcessLink() { close(); }

void ProcessLink::check_identity(const std::vector<std::pair<std::string, std::string>>& identity) {
  const auto key = [](int process) { return "identity/" + std::to_string(process); };
  const json mine = identity;
  store_->set(key(process()), bytes_of(mine.dump()));
  std::vector<json> all;
  for (int other = 0; other < processes(); ++other) {
    try {
      all.push_back(json::parse(store_->get(key(other))));
    } catch (const c10::Error&) {
      throw ConfigError("process " + std::to_string(other) + " of " + std::to_string(processes()) +
                        " did not come: process " + std::to_string(process()) +
                        " waited for it: look at its output, and start as many processes as the "
                        "launcher says");
    }
  }
  meet("identity");  // the store ends with process 0
  for (int other = 0; other < processes(); ++other) {
    const json& theirs = all[static_cast<std::size_t>(other)];
    for (std::size_t i = 0; i < identity.size(); ++i) {
      if (theirs.at(i) == mine.at(i)) continue;
      throw ConfigError("processes of one job differ in their " + identity[i].first + ": process " +
                        std::to_string(process()) + " has " + identity[i].second + ", process " +
                        std::to_string(other) + " has " + theirs.at(i).at(1).get<std::string>() +
                        ": start all with the same program, file and overrides");
    }
  }
}

void ProcessLink::connect(std::chrono::milliseconds patience) {
  LocalMeeting meeting(processes());
  const auto key = [](int process) { return "host/" + std::to_string(process); };
  const std::string host = LocalMeeting::host();
  store_->set(key(process()), bytes_of(json{host, meeting.address()}.dump()));
  std::map<int, std::string> local;
  std::vector<int> remote;
  for (int other = 0; other < processes(); ++other) {
    if (other == process()) continue;
    const json theirs = json::parse(store_->get(key(other)));
    if (!host.empty() && theirs.at(0) == host) {
      local[other] = theirs.at(1);
    } else {
      remote.push_back(other);
    }
  }
  channels_ = meeting.meet(process(), local, patience);
  // Whether there are several hosts is the same everywhere: Gloo's members are all processes.
  if (remote.empty()) return;
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store_);
  const auto gloo = new_gloo_backend(gloo_store, process(), processes(), patience, launch_.address);
  for (const int other : remote) channels_[other] = std::make_unique<GlooChannel>(gloo, other);
}

std::string ProcessLink::from_first(const std::string& name, const std::string& said) {
  if (process() == 0) {
    store_->set(name, bytes_of(said));
    return said;
  }
  try {
    const std::vector<std::uint8_t> text = store_->get(name);
    return {text.begin(), text.end()};
  } catch (const c10::Error&) {
    throw Error(ExitCode::kInternal, "process " + std::to_string(process()) +
                                         " waited for what process 0 has to say (" + name +
                                         "), but it ended: look at its output");
  }
}

bool ProcessLink::first_answer(const std::string& question, bool said) {
  return store_->compareSet(question, {}, bytes_of(said ? "1" : "0")) == bytes_of("1");
}

void ProcessLink::leave_text(const std::string& name, const std::string& text) {
  const std::string key = "text/" + name;
  std::size_t parts = 0;
  for (std::size_t at = 0; at < text.size(); at += kLargestValue, ++parts)
    store_->set(key + "/" + std::to_string(parts), bytes_of(text.substr(at, kLargestValue)));
  store_->set(key, bytes_of(std::to_string(parts)));  // last: who sees it finds the parts
}

std::optional<std::string> ProcessLink::take_text(const std::string& name,
                                                  std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::string key = "text/" + name;
  // A blocking get would keep the connection from the process's other threads.
  constexpr std::chrono::milliseconds kPause(2);
  while (!store_->check({key})) {
    if (is_over_ || std::chrono::steady_clock::now() > deadline) return std::nullopt;
    std::this_thread::sleep_for(kPause);
  }
  const auto take = [this](const std::string& one) {
    const std::vector<std::uint8_t> value = store_->get(one);
    store_->deleteKey(one);
    return std::string(value.begin(), value.end());
  };
  const std::size_t parts = std::stoull(take(key));
  std::string text;
  for (std::size_t part = 0; part < parts; ++part) text += take(key + "/" + std::to_string(part));
  return text;
}

void ProcessLink::raise_flag(const std::string& name) { store_->set(name, bytes_of("1")); }

bool ProcessLink::is_raised(const std::string& name) { return store_->check({name}); }

void ProcessLink::listen(Listener listener) {
  listener_ = std::move(listener);
  for (const auto& [other, channel] : channels_)
    receivers_.emplace_back([this, other = other] { receive_from(other); });
}

void ProcessLink::send(const std::set<int>& processes, const json& what,
                       std::vector<Outgoing::Bytes> data) {
  const Outgoing message(what, std::move(data));
  for (const int process : processes) {
    if (gone_[static_cast<std::size_t>(process)]) continue;
    const std::lock_guard lock(sending_[static_cast<std::size_t>(process)]);
    try {
      channels_.at(process)->send(message);
    } catch (const std::exception& error) {
      note_lost(process, error.what());
    }
  }
}

void ProcessLink::send_to_all(const json& what) {
  std::set<int> others;
  for (const auto& [other, channel] : channels_) others.insert(other);
  send(others, what, {});
}

void ProcessLink::receive_from(int process) {
  Channel& channel = *channels_.at(process);
  try {
    while (true) {
      Incoming message = channel.receive();
      if (message.what == kGoodbye) return listener_.lost(process, "it has left the job");
      listener_.received(process, message.what, std::move(message.data));
    }
  } catch (const std::exception& error) {
    note_lost(process, error.what());
  }
}

void ProcessLink::note_lost(int process, const std::string& why) {
  if (gone_[static_cast<std::size_t>(process)].exchange(true)) return;
  has_lost_ = true;
  if (listener_.lost) listener_.lost(process, why.substr(0, why.find('\n')));
}

void ProcessLink::close() {
  // Without a listener no one may take a goodbye: the others notice the closed connection.
  if (std::exchange(closed_, true) || receivers_.empty()) return;
  send_to_all(kGoodbye);
  for (std::thread& receiver : receivers_) receiver.join();
  // A connection that one side closes may lose what the other has not read yet.
  if (!has_lost_) meet("closed");
}

/// Returns when all processes were here, or some never come.
void ProcessLink::meet(const std::string& where) {
  constexpr std::chrono::seconds kPatience(10);
  constexpr std::chrono::milliseconds kPause(2);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto count_to = [&](std::int64_t count, const std::string& what, std::int64_t mine) {
    auto arrived = store_->add(what, mine);
    while (arrived < count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      arrived = store_->add(what, 0);
    }
  };
  const std::string left = where + "/left";
  try {
    count_to(processes(), where, 1);
    // The store may end with process 0: it stays until no other asks for anything any more.
    if (process() == 0)
      count_to(processes() - 1, left, 0);
    else
      store_->add(left, 1);
  } catch (const c10::Error&) {
    // Process 0 failed.
  }
}

}  // namespace trellis::runtime
