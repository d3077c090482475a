// Processes that meet, fall silent and are cut off; what strangers do to their store. Both ends are
// in this process, each on its own threads.
#include "runtime/links/process_link.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "runtime/links/job_store.h"
#include "tests/runtime/relay.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

Launch launch_of(int process, int port = 0) { return {"a test", process, 2, "127.0.0.1", port}; }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// The error of a process that meets one whose own description is `text`.
std::pair<std::string, ExitCode> meeting(const std::string& text) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set("identity/1", bytes_of(text));
  store->set("identity", bytes_of("1"));
  store->set("identity/left", bytes_of("1"));
  return error_of([&] { ProcessLink(launch_of(0), store, 2s, {{"version", "1"}}); });
}

TEST(ProcessLink, WhatStrangersWriteIsRefused) {
  for (const std::string text : {"not json", "", "7", "[[1,2]]", "[[\"version\"]]", "{\"a\":1}",
                                 "[[\"version\",null]]", "[[[[[[[["}) {
    const auto [error, code] = meeting(text);
    EXPECT_EQ(code, ExitCode::kConfig) << error;
    EXPECT_THAT(error, AllOf(HasSubstr("identity/1"), HasSubstr("TRELLIS_STORE_SECRET"))) << text;
  }
  const auto [large, code] = meeting(std::string(std::size_t{4} << 20, '['));
  EXPECT_EQ(code, ExitCode::kConfig);
  EXPECT_THAT(large, AllOf(HasSubstr("4194304"), HasSubstr("identity/1")));
  EXPECT_LT(large.size(), 500U) << "what others wrote is not repeated as a whole";
  EXPECT_THAT(meeting("[]").first, HasSubstr("has nothing"));
}

TEST(ProcessLink, AProcessThatNeverComesIsNamed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(200ms);
  const auto [error, code] = error_of([&] { ProcessLink(launch_of(0), store, 200ms, {}); });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(error, HasSubstr("process 1 of 2 did not come"));
}

int connect_to(const char* address, int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, address, &place.sin_addr);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&place), sizeof place) == 0) return socket;
  ::close(socket);
  return -1;
}

TEST(JobStore, ListensWhereMasterAddrSaysAndServesThoseWhoKnowItsPrefix) {
  const int port = free_port();
  Launch launch = launch_of(0, port);
  launch.job = "job 7";
  const auto store = open_job_store(launch, 5s);
  EXPECT_LT(connect_to("127.0.0.2", port), 0) << "another address of this machine";
  const int silent = connect_to("127.0.0.1", port);  // only connects
  ASSERT_GE(silent, 0);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.timeout = 5s;
  const auto stranger = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (const char* prefix : {"", "trellis/", "trellis/0/", "trellis/job 8/0/"})
    stranger->set(std::string(prefix) + "identity/1", bytes_of("not json"));
  std::promise<void> met;
  std::thread other([&] {
    Launch second = launch_of(1, port);
    second.job = launch.job;
    ProcessLink link(second, 5s, {{"version", "1"}});
    EXPECT_EQ(link.from_first("name", ""), "said");
    EXPECT_TRUE(link.first_answer("stop/0", true));
  });
  {
    ProcessLink link(launch, store, 5s, {{"version", "1"}});
    EXPECT_EQ(link.from_first("name", "said"), "said");
    stranger->set("trellis/job 7/0/stop", bytes_of("1"));
    stranger->set("stop", bytes_of("1"));
    EXPECT_FALSE(link.is_raised("stop"));
    other.join();
    EXPECT_TRUE(link.first_answer("stop/0", false));
  }
  ::close(silent);
}

TEST(JobStore, ASecretTakesThePlaceOfTheJobsNumber) {
  Launch launch = launch_of(0);
  launch.job = "17";
  launch.restart = 2;
  EXPECT_EQ(store_prefix(launch), "trellis/17/2");
  ::setenv("TRELLIS_STORE_SECRET", "s3cret", 1);
  EXPECT_EQ(store_prefix(launch), "trellis/s3cret/2");
  ::unsetenv("TRELLIS_STORE_SECRET");
}

TEST(JobStore, AnAddressThatDoesNotResolveIsNamed) {
  Launch launch = launch_of(0, 29500);
  launch.address = "no-such-host.invalid";
  const auto [error, code] = error_of([&] { (void)open_job_store(launch, 100ms); });
  EXPECT_EQ(code, ExitCode::kConfig);
  EXPECT_THAT(error, AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("no-such-host.invalid")));
}

/// Two processes that take each other for ones of other hosts, and a network between them.
struct TwoHosts {
  explicit TwoHosts(std::chrono::milliseconds patience) {
    auto second = std::async(std::launch::async, [&] { return make(1, patience); });
    links[0] = make(0, patience);
    links[1] = second.get();
  }
  std::unique_ptr<ProcessLink> make(int process, std::chrono::milliseconds patience) {
    Launch launch = launch_of(process);
    launch.address = Relay::kHosts.at(static_cast<std::size_t>(process));
    return std::make_unique<ProcessLink>(launch,
                                         c10::make_intrusive<RelayedStore>(store, relay, process),
                                         patience, ProcessLink::Identity{});
  }
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  Relay relay;
  std::array<std::unique_ptr<ProcessLink>, 2> links;
};

TEST(ProcessLink, ANetworkThatIsCutIsNoticedByBothSides) {
  constexpr std::chrono::milliseconds kPatience{4000};  // to connect too
  TwoHosts hosts(kPatience);
  std::array<std::promise<ProcessLink::Loss>, 2> losses;
  std::promise<std::string> came;
  for (std::size_t i = 0; i < 2; ++i) {
    hosts.links[i]->listen(
        {.received = [&](int, const nlohmann::json& what,
                         const at::Tensor&) { came.set_value(what.at("kind")); },
         .lost = [&, i](int, const ProcessLink::Loss& loss) { losses[i].set_value(loss); }});
  }
  hosts.links[0]->send_to_all({{"kind", "word"}});
  auto word = came.get_future();
  ASSERT_EQ(word.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(word.get(), "word");
  std::this_thread::sleep_for(kPatience + 1s);  // silent, but not cut off
  hosts.relay.cut();
  const auto cut = std::chrono::steady_clock::now();
  const std::vector<std::byte> large(std::size_t{32} << 20);  // more than a network keeps
  hosts.links[0]->send({1}, {{"kind", "large"}}, {{large.data(), large.size()}});
  for (auto& loss : losses) {
    auto future = loss.get_future();
    ASSERT_EQ(future.wait_for(kPatience + 5s), std::future_status::ready);
    const ProcessLink::Loss found = future.get();
    EXPECT_TRUE(found.is_silent) << found.why;
    EXPECT_THAT(found.why, HasSubstr("has said nothing for 4.0 s"));
  }
  EXPECT_FALSE(hosts.links[1]->take_text("never left").has_value());
  for (auto& link : hosts.links) link->close();
  EXPECT_LT(std::chrono::steady_clock::now() - cut, kPatience + 5s);
}

}  // namespace
}  // namespace trellis::runtime::testing
