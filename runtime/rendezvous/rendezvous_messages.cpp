// Send and receive: the part of Rendezvous that pairs messages.
#include <cstring>

#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

std::int64_t bytes_of(const Piece& piece, const CommCall& call) {
  return piece.length * static_cast<std::int64_t>(c10::elementSize(call.dtype));
}

std::vector<std::byte> packed(const Side& side) {
  std::vector<std::byte> content;
  for (const Piece& piece : side.buffers.inputs)
    content.insert(content.end(), piece.data, piece.data + bytes_of(piece, side.call));
  return content;
}

void unpack(const std::byte* content, const Side& side) {
  for (const Piece& piece : side.buffers.outputs) {
    std::memcpy(piece.data, content, static_cast<std::size_t>(bytes_of(piece, side.call)));
    content += bytes_of(piece, side.call);
  }
}

bool fits(const CommCall& sent, const CommCall& posted) {
  return sent.dtype == posted.dtype && sent.elements == posted.elements && sent.tag == posted.tag;
}

}  // namespace

std::shared_ptr<Message> Rendezvous::message(Group& group, int sender, int receiver,
                                             std::uint64_t sequence) {
  auto& message = group.messages[{sender, receiver, sequence}];
  if (!message) {
    message = std::make_shared<Message>();
    message->group = group.info;
    message->sequence = sequence;
    message->sender = sender;
    message->receiver = receiver;
  }
  return message;
}

std::shared_ptr<Transfer> Rendezvous::send(Group& group, int member, int to, std::uint64_t sequence,
                                           Side side) {
  const auto& ranks = group.info->ranks;
  const int rank = ranks[static_cast<std::size_t>(member)];
  auto content = packed(side);
  CallPlace place = current_place();
  Lock lock(mutex_);
  check_caller(rank);
  throw_if_cancelled();
  const auto message =
      Rendezvous::message(group, rank, ranks[static_cast<std::size_t>(to)], sequence);
  message->sent_at = describe(place);
  remember(rank, side, message, std::move(place));
  message->content = std::move(content);
  message->sent = side.call;
  if (is_remote(message->receiver)) {
    lock.unlock();
    announce_message(group, *message, message->sent_at);
    lock.lock();
    of(rank).bytes_sent += static_cast<std::int64_t>(message->content.size());
    settle(group, *message);
  } else if (message->posted) {
    deliver(lock, group, *message);
  } else if (!takes_part(message->receiver)) {
    settle(group, *message);
  }
  return message;
}

std::shared_ptr<Transfer> Rendezvous::receive(Group& group, int member, int from,
                                              std::uint64_t sequence, Side side) {
  return with_records([&] { return post(group, member, from, sequence, std::move(side)); });
}

std::shared_ptr<Transfer> Rendezvous::post(Group& group, int member, int from,
                                           std::uint64_t sequence, Side side) {
  const auto& ranks = group.info->ranks;
  const int rank = ranks[static_cast<std::size_t>(member)];
  CallPlace place = current_place();
  Lock lock(mutex_);
  check_caller(rank);
  throw_if_cancelled();
  const auto message =
      Rendezvous::message(group, ranks[static_cast<std::size_t>(from)], rank, sequence);
  side.place = describe(place);
  remember(rank, side, message, std::move(place));
  message->posted = std::move(side);
  if (message->sent) {
    deliver(lock, group, *message);
  } else if (!takes_part(message->sender)) {
    settle(group, *message);
  }
  return message;
}

/// The other side does not run.
void Rendezvous::settle(Group& group, Message& message) {
  group.messages.erase({message.sender, message.receiver, message.sequence});
  complete(message);
}

/// Both sides are there.
void Rendezvous::deliver(Lock& lock, Group& group, Message& message) {
  group.messages.erase({message.sender, message.receiver, message.sequence});
  const Side& posted = *message.posted;
  if (!fits(*message.sent, posted.call)) {
    throw_mismatch(message, disagreement(message, {message.receiver, posted.call, posted.place},
                                         {message.sender, *message.sent, message.sent_at}));
  }
  if (!message.content.empty()) {
    lock.unlock();
    unpack(message.content.data(), posted);
    write_back(posted);
    lock.lock();
    if (seat(message.sender) >= 0)
      of(message.sender).bytes_sent += static_cast<std::int64_t>(message.content.size());
  }
  complete(message);
}

}  // namespace trellis::runtime
