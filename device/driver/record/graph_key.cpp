#include <charconv>

#include "device/driver/record/rank_recorder_impl.h"

namespace trellis::device {

namespace {

/// Writes an open graph down as numbers, with buffers and communications renamed to the order of
/// their first use.
class KeyWriter {
 public:
  KeyWriter(const RankRecorder::Impl& stream, const InternTable& interned)
      : stream_(stream), interned_(interned) {
    words_.reserve(3 * stream.ops.size() + 2 * stream.operands.size());
    made_here_.assign(stream.next_buffer - stream.first_new_buffer, kUnseen);
  }

  ContentHash write(std::string_view name, std::vector<std::uint32_t>& comms) {
    text(name);
    for (const OpRecord& op : stream_.ops) add(op);
    comms = std::move(comms_);
    ContentHasher h;
    h.bytes(words_.data(), words_.size() * sizeof(std::uint64_t));
    return h.finish();
  }

 private:
  static constexpr std::uint32_t kUnseen = 0xffffffffu;

  void add(const OpRecord& op) {
    const std::string& schema = interned_.text(op.schema);
    const bool comm = schema == kCommStartSchema || schema == kCommWaitSchema;
    words_.push_back(interned_.text_key(op.schema));
    words_.push_back(interned_.text_key(comm ? 0 : op.scalars));
    pair(op.scope, (std::uint32_t{op.num_inputs} << 16) | op.num_outputs);
    for (std::uint32_t i = 0; i < std::uint32_t{op.num_inputs} + op.num_outputs; ++i)
      operand(op.first_operand + i);
    if (comm) communication(interned_.text(op.scalars));
  }

  void pair(std::uint32_t a, std::uint32_t b) { words_.push_back((std::uint64_t{a} << 32) | b); }

  void text(std::string_view text) {
    words_.push_back(text.size());
    for (const char c : text) words_.push_back(static_cast<unsigned char>(c));
  }

  void operand(std::uint32_t place) {
    const Operand& operand = stream_.operands[place];
    std::uint32_t& number = number_of(operand.buffer);
    const bool first = number == kUnseen;
    if (first) number = next_buffer_++;
    words_.push_back(number);
    words_.push_back(interned_.view_key(static_cast<std::uint32_t>(operand.view)));
    if (first)
      words_.push_back(operand.buffer < stream_.first_new_buffer ? 0
                       : stream_.is_released(operand.buffer)     ? 1
                                                                 : 2);
    // A view says how long its buffer is, except for those that are listed.
    while (partial_ < stream_.partial.size() && stream_.partial[partial_] < place) ++partial_;
    if (partial_ == stream_.partial.size() || stream_.partial[partial_] != place) return;
    words_.push_back(kUnseen);  // no buffer has this number
    words_.push_back(static_cast<std::uint64_t>(stream_.partial_bytes[partial_]));
  }

  std::uint32_t& number_of(std::uint64_t buffer) {
    const std::uint64_t index = buffer - stream_.first_new_buffer;
    if (buffer >= stream_.first_new_buffer && index < made_here_.size()) return made_here_[index];
    return others_.try_emplace(buffer, kUnseen).first->second;
  }

  void communication(const std::string& handle) {
    std::uint32_t request = 0;
    std::from_chars(handle.data(), handle.data() + handle.size(), request);
    const auto [it, fresh] =
        comm_numbers_.try_emplace(request, static_cast<std::uint32_t>(comms_.size()));
    words_.push_back(it->second);
    if (!fresh) return;
    comms_.push_back(request);
    const CommRequest& content = stream_.step.comms[request];
    pair(static_cast<std::uint32_t>(content.kind), static_cast<std::uint32_t>(content.dtype));
    words_.push_back(static_cast<std::uint64_t>(content.elements));
    text(content.axis);
    words_.push_back(content.ranks.size());
    for (const int rank : content.ranks) words_.push_back(static_cast<std::uint64_t>(rank));
  }

  const RankRecorder::Impl& stream_;
  const InternTable& interned_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> made_here_;                     ///< number by id − first_new_buffer
  std::unordered_map<std::uint64_t, std::uint32_t> others_;  ///< number by id
  std::unordered_map<std::uint32_t, std::uint32_t> comm_numbers_;
  std::vector<std::uint32_t> comms_;
  std::uint32_t next_buffer_ = 0;
  std::size_t partial_ = 0;
};

}  // namespace

ContentHash open_graph_key(const RankRecorder::Impl& stream, const InternTable& interned,
                           std::string_view name, std::vector<std::uint32_t>& comms) {
  return KeyWriter(stream, interned).write(name, comms);
}

}  // namespace trellis::device
