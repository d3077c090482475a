#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
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

#include "base/launch.h"
#include "runtime/channel.h"

namespace trellis::runtime {

/// The processes of one job: LibTorch's TCPStore for what they agree on; for what they send each
/// other, sockets and shared memory inside a host, LibTorch's Gloo between hosts. Messages from one
/// process to another arrive in their order.
class ProcessLink {
 public:
  struct Listener {
    /// On a thread per process; must not send. `data`: uint8 [bytes], aligned for any type.
    std::function<void(int process, const nlohmann::json& what, at::Tensor data)> received;
    /// The process has closed, or is gone; `why` is a text for an error.
    std::function<void(int process, const std::string& why)> lost;
  };

  /// Meets all processes of `launch`; waits `patience` for the last. Throws ConfigError: the port
  /// is in use, the host is unknown, a process never came, or one differs in `identity` (name and
  /// value: version, configuration, …), with the first difference.
  ProcessLink(const Launch& launch, std::chrono::milliseconds patience,
              const std::vector<std::pair<std::string, std::string>>& identity);
  ~ProcessLink();

  [[nodiscard]] int process() const { return launch_.process; }
  [[nodiscard]] int processes() const { return launch_.processes; }
  [[nodiscard]] const Launch& launch() const { return launch_; }

  /// A connection to the store, of the caller alone: what waits there keeps no one else waiting.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> new_store() { return store_->clone(); }

  /// What process 0 said under this name; the others wait for it. Throws Error when it ended.
  [[nodiscard]] std::string from_first(const std::string& name, const std::string& said);
  /// What the first process to ask said.
  [[nodiscard]] bool first_answer(const std::string& question, bool said);
  /// A text that another process takes once; each name is used once.
  void leave_text(const std::string& name, const std::string& text);
  /// Waits until another process leaves a text under this name. Nullopt: stop_waiting() was called,
  /// or none came within `patience`.
  [[nodiscard]] std::optional<std::string> take_text(
      const std::string& name, std::chrono::milliseconds patience = std::chrono::hours(24 * 365));
  /// The job is over: no one waits for a text any more.
  void stop_waiting() { is_over_ = true; }
  void raise_flag(const std::string& name);
  [[nodiscard]] bool is_raised(const std::string& name);

  /// Messages are received from here on. Once.
  void listen(Listener listener);
  /// The data can change when it returns. Nothing is thrown for a process that is gone.
  void send(const std::set<int>& processes, const nlohmann::json& what,
            std::vector<Outgoing::Bytes> data);
  void send_to_all(const nlohmann::json& what);
  /// Waits until every process closes or is gone.
  void close();

 private:
  void check_identity(const std::vector<std::pair<std::string, std::string>>& identity);
  void connect(std::chrono::milliseconds patience);
  void receive_from(int process);
  void meet(const std::string& where);
  void note_lost(int process, const std::string& why);

  Launch launch_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<int, std::unique_ptr<Channel>> channels_;  ///< by process
  Listener listener_;
  std::vector<std::mutex> sending_;      ///< by process
  std::vector<std::atomic<bool>> gone_;  ///< by process
  std::vector<std::thread> receivers_;
  std::atomic<bool> has_lost_ = false;
  std::atomic<bool> is_over_ = false;
  bool closed_ = false;
};

}  // namespace trellis::runtime
