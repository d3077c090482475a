#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/process/launch.h"
#include "runtime/links/board.h"
#include "runtime/links/channel.h"

namespace trellis::runtime {

/// The processes of one job. They meet in LibTorch's TCPStore and then send each other messages:
/// by sockets and shared memory inside a host, by LibTorch's Gloo between hosts. Messages from one
/// process to another arrive in their order. Each says all the time that it lives; one that is
/// silent for `patience`, because it is stopped or cut off, is lost like one that has ended. What
/// all agree on is on a board that process 0 keeps.
class ProcessLink {
 public:
  /// Why a process is lost.
  struct Loss {
    std::string why;          ///< a text for an error
    bool is_silent = false;   ///< else its connection has ended
    bool is_goodbye = false;  ///< it left in order
  };
  struct Listener {
    /// On a thread per process; must not send. `data`: uint8 [bytes], aligned for any type.
    std::function<void(int process, const nlohmann::json& what, at::Tensor data)> received;
    /// The process has closed, or is lost.
    std::function<void(int process, const Loss& loss)> lost;
  };
  using Identity = std::vector<std::pair<std::string, std::string>>;  ///< name and value

  /// Meets all processes of `launch`; waits `patience` for the last. Throws ConfigError: the port
  /// is in use, the host is unknown, or one differs in `identity` (version, configuration, …), with
  /// the first difference; Error(kHang): a process never came.
  ProcessLink(const Launch& launch, std::chrono::milliseconds patience, const Identity& identity);
  /// The same with a given store.
  ProcessLink(const Launch& launch, c10::intrusive_ptr<c10d::Store> store,
              std::chrono::milliseconds patience, const Identity& identity);
  ~ProcessLink();

  [[nodiscard]] int process() const { return launch_.process; }
  [[nodiscard]] int processes() const { return launch_.processes; }
  [[nodiscard]] const Launch& launch() const { return launch_; }

  /// A connection to the store, of the caller alone: what waits there keeps no one else waiting.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> new_store() { return store_->clone(); }

  /// Returns the text that process 0 gave under this name; the others wait for it. Throws Error
  /// when it ended.
  [[nodiscard]] std::string from_first(const std::string& name, const std::string& said);
  /// Returns what the first process to ask gave as `said`. Throws Error when process 0 is lost.
  [[nodiscard]] bool first_answer(const std::string& question, bool said);
  /// A text that another process takes once; each name is used once.
  void leave_text(const std::string& name, const std::string& text);
  /// Waits until another process leaves a text under this name. Nullopt: stop_waiting() was called,
  /// process 0 is lost, or none came within `patience`.
  [[nodiscard]] std::optional<std::string> take_text(
      const std::string& name, std::chrono::milliseconds patience = std::chrono::hours(24 * 365));
  /// Bytes for another process, sent straight to it, which takes them once; each name is used once.
  void send_bytes(int process, const std::string& name, std::vector<Outgoing::Bytes> data);
  /// Waits until `process` sends bytes under this name: uint8 [bytes]. Nullopt: stop_waiting() or,
  /// since interrupts() gave `interrupts`, interrupt_takes() was called, or the process is lost.
  [[nodiscard]] std::optional<at::Tensor> take_bytes(int process, const std::string& name,
                                                     std::uint64_t interrupts);
  [[nodiscard]] std::uint64_t interrupts();
  /// The job is over: no one waits for a text any more.
  void stop_waiting();
  /// Ends the present waits for texts: they get nullopt.
  void interrupt_takes();
  void raise_flag(const std::string& name);
  [[nodiscard]] bool is_raised(const std::string& name);

  /// Messages, also those that came before, are given to `listener` from here on. Once.
  void listen(Listener listener);
  /// The data can change when it returns. Nothing is thrown for a process that is lost.
  void send(const std::set<int>& processes, const nlohmann::json& what,
            std::vector<Outgoing::Bytes> data);
  void send_to_all(const nlohmann::json& what);
  /// For those that must not wait, such as a listener: a separate thread sends.
  void post(int process, nlohmann::json what, std::string data = {});
  void post_to_all(const nlohmann::json& what);
  /// Waits until every process closes or is lost, `patience` at most.
  void close(std::chrono::milliseconds patience = std::chrono::hours(24 * 365));

 private:
  /// Another process.
  struct Peer {
    std::unique_ptr<Channel> channel;
    std::mutex sending;
    std::atomic<bool> is_lost = false;
    std::atomic<int> silent_ticks = 0;
    std::atomic<bool> is_handled = false;  ///< its message: what it sends next waits
    std::atomic<bool> has_left = false;    ///< it said goodbye, or is lost
    std::mutex receiving;                  ///< guards what follows
    bool listens = false;
    std::deque<Incoming> early;  ///< came before listen()
    std::optional<Loss> early_loss;
    std::thread receiver;
  };
  struct Letter {
    int process = 0;
    nlohmann::json what;
    std::string data;
  };

  void meet_all(std::chrono::milliseconds patience, const Identity& identity);
  [[nodiscard]] std::string said_by(int other, const std::string& key,
                                    std::chrono::milliseconds patience);
  void check_identity(const Identity& identity, std::chrono::milliseconds patience);
  void connect(std::chrono::milliseconds patience);
  void start_threads();
  void receive_from(int process);
  void handle(int process, Incoming message);
  void give(int process, Incoming message);
  void handle_board(int process, const Incoming& message);
  void say_alive(int tick);
  void post_letters();
  void wait_for_store(const std::string& where, std::chrono::milliseconds patience);
  void note_lost(int process, Loss loss);
  Peer& peer(int process) { return *peers_.at(process); }
  [[nodiscard]] std::optional<std::string> ask(const char* what, const std::string& name,
                                               const std::string& text,
                                               std::chrono::milliseconds patience);
  [[noreturn]] void throw_without_first(const std::string& wanted);

  Launch launch_;
  std::chrono::milliseconds patience_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<int, std::unique_ptr<Peer>> peers_;  ///< by process
  Listener listener_;
  Board board_;  ///< of process 0

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, Board::Reply> asked_;  ///< of process 0, by ticket
  std::uint64_t tickets_ = 0;
  std::deque<Letter> letters_;
  std::map<std::pair<int, std::string>, at::Tensor> parcels_;  ///< of send_bytes, by process, name
  std::optional<Loss> first_loss_;  ///< of process 0; it may still answer after its goodbye
  bool first_is_gone_ = false;      ///< process 0's connection has ended
  bool is_over_ = false;
  std::uint64_t interrupts_ = 0;
  bool closed_ = false, ends_ = false;
  std::thread beats_, postman_;
};

}  // namespace trellis::runtime
