#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trellis::runtime::testing {

/// A port of 127.0.0.1 that was free just now.
[[nodiscard]] int free_port();

/// A network between two hosts: connections to its ports go on to others, until it is cut. Then
/// both ends stay open and nothing passes, as with a pulled cable.
class Relay {
 public:
  /// Gloo compares its own address with the other's: the lower one listens, the higher one
  /// connects. The relay lies between both, so that they take the same view although each sees the
  /// relay.
  static constexpr std::array<const char*, 2> kHosts{"127.0.0.1", "127.0.0.3"};
  static constexpr const char* kOwn = "127.0.0.2";

  ~Relay();
  /// Its port of `kOwn` for connections to `place`.
  int port_for(const sockaddr_in& place);
  void cut() { cut_ = true; }

 private:
  void accept_from(int listener, sockaddr_in place);
  void forward(int from, int to);

  std::atomic<bool> cut_ = false, ends_ = false;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint16_t>, int> ports_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
};

/// `store` as the process of a host sees it whose way to all others is the relay: what they say
/// about their hosts differs from its own, and their addresses are the relay's.
class RelayedStore final : public c10d::Store {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using Bytes = std::vector<std::uint8_t>;
  RelayedStore(StorePtr store, Relay& relay, int process)
      : store_(std::move(store)), relay_(relay), process_(process) {}
  StorePtr clone() override { return c10::make_intrusive<RelayedStore>(store_, relay_, process_); }
  void set(const std::string& key, const Bytes& value) override;
  Bytes get(const std::string& key) override { return relayed(store_->get(key)); }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override;
  bool hasExtendedApi() const override { return true; }
  std::vector<std::string> listKeys() override { return store_->listKeys(); }

 private:
  [[nodiscard]] Bytes relayed(Bytes value);
  StorePtr store_;
  Relay& relay_;
  int process_;
};

}  // namespace trellis::runtime::testing
