// Messages between two processes: both ends are in this one, each on its own threads.
#include "runtime/links/channel.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <map>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "runtime/links/gloo_backend.h"
#include "runtime/links/gloo_channel.h"
#include "runtime/links/local_channel.h"
#include "tests/runtime/support.h"

namespace trellis::runtime {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

/// The ends of one channel.
struct Ends {
  std::unique_ptr<Channel> a, b;
};

Ends local_ends() {
  LocalMeeting at_a(2), at_b(2);
  auto b = std::async([&] { return at_b.meet(1, {{0, at_a.address()}}, 10s); });
  auto a = at_a.meet(0, {{1, at_b.address()}}, 10s);
  return {std::move(a.at(1)), std::move(b.get().at(0))};
}

Ends gloo_ends() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto b = std::async([&] { return new_gloo_backend(store, 1, 2, 10s, ""); });
  auto a = new_gloo_backend(store, 0, 2, 10s, "");
  return {std::make_unique<GlooChannel>(std::move(a), 1),
          std::make_unique<GlooChannel>(b.get(), 0)};
}

std::vector<std::byte> bytes(std::size_t size, std::size_t seed) {
  std::vector<std::byte> result(size);
  for (std::size_t i = 0; i < size; ++i)
    result[i] = static_cast<std::byte>((i * 31 + (i >> 8) + seed * 17) & 0xFF);
  return result;
}

bool holds(const at::Tensor& tensor, const std::vector<std::byte>& expected) {
  return tensor.numel() == std::ssize(expected) &&
         (expected.empty() ||
          std::memcmp(tensor.data_ptr(), expected.data(), expected.size()) == 0);
}

/// Sizes that go through a socket, sizes that go through shared memory, and those at the borders of
/// both.
const std::vector<std::size_t> kSizes = {0,     1,     1900,  2047,   2048,    2049,
                                         65535, 65536, 65537, 300000, 5000000, 3};

class Channels : public ::testing::TestWithParam<Ends (*)()> {};

TEST_P(Channels, MessagesOfAllSizesArriveInTheirOrderBothWaysAtOnce) {
  const Ends ends = GetParam()();
  const auto send = [](Channel& channel, std::size_t seed) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const auto data = bytes(kSizes[i], seed + i);
      channel.send(Outgoing({{"number", i}, {"text", std::string(i * 300, 'x')}},
                            {{data.data(), data.size()}}));
    }
  };
  const auto receive = [](Channel& channel, std::size_t seed) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const Incoming message = channel.receive();
      EXPECT_EQ(message.what.at("number"), i);
      EXPECT_EQ(message.what.at("text").get<std::string>().size(), i * 300);
      EXPECT_TRUE(holds(message.data, bytes(kSizes[i], seed + i))) << kSizes[i] << " bytes";
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(message.data.data_ptr()) % 64, 0);
    }
  };
  const auto a = std::async([&] { send(*ends.a, 1); });
  const auto b = std::async([&] { send(*ends.b, 100); });
  const auto from_a = std::async([&] { receive(*ends.b, 1); });
  receive(*ends.a, 100);
}

TEST_P(Channels, PiecesArriveAsOne) {
  const Ends ends = GetParam()();
  for (const std::size_t piece : {std::size_t{7}, std::size_t{100}}) {
    const auto data = bytes(piece * 3000, piece);
    std::vector<Outgoing::Bytes> pieces;  // more than one system call takes
    for (std::size_t i = 0; i < 3000; ++i) pieces.emplace_back(data.data() + i * piece, piece);
    const auto sent = std::async([&] { ends.a->send(Outgoing("pieces", pieces)); });
    EXPECT_TRUE(holds(ends.b->receive().data, data));
  }
}

TEST_P(Channels, WhatIsSentToTwoIsEachOnesOwn) {
  const Ends first = GetParam()(), second = GetParam()();
  const auto data = bytes(1 << 20, 1);
  const Outgoing message("both", {{data.data(), data.size()}});
  const auto sent = std::async([&] {
    first.a->send(message);
    second.a->send(message);
  });
  const Incoming one = first.b->receive();
  one.data.fill_(7);
  EXPECT_TRUE(holds(second.b->receive().data, data));
}

INSTANTIATE_TEST_SUITE_P(, Channels, ::testing::Values(&local_ends, &gloo_ends),
                         [](const auto& which) { return which.index == 0 ? "Local" : "Gloo"; });

TEST(LocalChannel, TheEndOfTheOtherProcessIsAnError) {
  Ends ends = local_ends();
  const auto data = bytes(100, 1);
  ends.b->send(Outgoing("last", {{data.data(), data.size()}}));
  ends.b.reset();
  EXPECT_EQ(ends.a->receive().what, "last");
  EXPECT_ANY_THROW((void)ends.a->receive());
  EXPECT_ANY_THROW(ends.a->send(Outgoing("too late", {})));
}

TEST(LocalChannel, ABurstOfLargeMessagesNeedsNoMoreDescriptorsThanThereAre) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{64, limit.rlim_max};
  const Ends ends = local_ends();
  const auto data = bytes(70000, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto sent = std::async([&] {
    for (int i = 0; i < 300; ++i)
      ends.a->send(Outgoing({{"number", i}}, {{data.data(), data.size()}}));
  });
  std::this_thread::sleep_for(100ms);  // the messages wait in the socket
  for (int i = 0; i < 300; ++i) {
    const Incoming message = ends.b->receive();
    ASSERT_EQ(message.what.at("number"), i);
    ASSERT_TRUE(holds(message.data, data));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(LocalMeeting, ThreeMeet) {
  std::vector<std::unique_ptr<LocalMeeting>> meetings;
  for (int i = 0; i < 3; ++i) meetings.push_back(std::make_unique<LocalMeeting>(3));
  std::vector<std::future<std::map<int, std::unique_ptr<Channel>>>> found;
  for (int i = 0; i < 3; ++i) {
    std::map<int, std::string> others;
    for (int other = 0; other < 3; ++other) {
      if (other != i) others[other] = meetings[static_cast<std::size_t>(other)]->address();
    }
    found.push_back(std::async(std::launch::async, [i, others, &meetings] {
      return meetings[static_cast<std::size_t>(i)]->meet(i, others, 10s);
    }));
  }
  std::vector<std::map<int, std::unique_ptr<Channel>>> channels;
  for (auto& one : found) channels.push_back(one.get());
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      channels[static_cast<std::size_t>(from)].at(to)->send(Outgoing({from, to}, {}));
      EXPECT_EQ(channels[static_cast<std::size_t>(to)].at(from)->receive().what, json({from, to}));
    }
  }
}

TEST(LocalMeeting, AProcessThatDoesNotComeIsNamed) {
  LocalMeeting meeting(2);
  try {
    (void)meeting.meet(0, {{5, "trellis/none"}}, 50ms);
    FAIL() << "it waited for no one";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("process 5"));
  }
  EXPECT_THROW((void)meeting.meet(7, {{5, "trellis/none"}}, 50ms), Error);
}

TEST(LocalMeeting, OneThatOnlyConnectsHoldsNoOneUp) {
  LocalMeeting at_a(2), at_b(2);
  const int silent = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  std::memcpy(place.sun_path + 1, at_a.address().data(), at_a.address().size());
  const auto size = offsetof(sockaddr_un, sun_path) + 1 + at_a.address().size();
  ASSERT_EQ(::connect(silent, reinterpret_cast<sockaddr*>(&place), static_cast<socklen_t>(size)),
            0);
  auto b = std::async([&] { return at_b.meet(1, {{0, at_a.address()}}, 10s); });
  EXPECT_EQ(at_a.meet(0, {{1, at_b.address()}}, 10s).size(), 1U);
  (void)b.get();
  ::close(silent);
}

TEST_P(Channels, StoppingEndsAReceiveThatWaits) {
  Ends ends = GetParam()();
  auto waits = std::async(std::launch::async, [&] { (void)ends.a->receive(); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  ends.a->stop();
  EXPECT_ANY_THROW(waits.get());
  EXPECT_ANY_THROW((void)ends.a->receive());
}

}  // namespace
}  // namespace trellis::runtime
