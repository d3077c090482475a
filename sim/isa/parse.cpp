// Reads the text form that print.cpp writes.
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "sim/isa/program.h"

namespace trellis::sim::isa {
namespace {

using std::string_view;

std::vector<string_view> split(string_view text, char separator) {
  std::vector<string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

class Parser {
 public:
  Program run(const std::string& text) {
    string_view rest = text;
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      ++line_;
      words_ = rest.substr(0, end);
      parse_line();
      rest.remove_prefix(end == string_view::npos ? rest.size() : end + 1);
    }
    return std::move(program_);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw ConfigError(fmt::format("line {}: {}", line_, text));
  }

  /// The next word of the line; empty at its end.
  string_view word() {
    const auto start = words_.find_first_not_of(' ');
    if (start == string_view::npos) return words_ = {};
    words_.remove_prefix(start);
    const auto end = words_.find(' ');
    const string_view result = words_.substr(0, end);
    words_.remove_prefix(result.size());
    return result;
  }

  std::string quoted() {
    const auto start = words_.find_first_not_of(' ');
    if (start == string_view::npos || words_[start] != '"') fail("expected a name in quotes");
    std::string out;
    for (std::size_t i = start + 1; i < words_.size(); ++i) {
      if (words_[i] == '"') {
        words_.remove_prefix(i + 1);
        return out;
      }
      if (words_[i] == '\\' && i + 1 < words_.size()) {
        ++i;
        out += words_[i] == 'n' ? '\n' : words_[i];
      } else {
        out += words_[i];
      }
    }
    fail("a name is not closed by a quote");
  }

  template <typename T>
  T number(string_view text) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range)
      fail(fmt::format("number \"{}\" is out of range", text));
    if (error != std::errc() || end != text.data() + text.size())
      fail(fmt::format("expected a number, got \"{}\"", text));
    return value;
  }

  template <typename E>
  E named(string_view text, const char* what) const {
    if (const auto value = parse_name<E>(text)) return *value;
    fail(fmt::format("unknown {} \"{}\"", what, text));
  }

  /// "a<separator>b" → two numbers.
  template <typename A, typename B>
  std::pair<A, B> pair(string_view text, char separator) const {
    // A stride may be negative, so the separator is searched from the second character on.
    const auto at = text.find(separator, 1);
    if (at == string_view::npos)
      fail(fmt::format("expected two numbers with '{}' between, got \"{}\"", separator, text));
    return {number<A>(text.substr(0, at)), number<B>(text.substr(at + 1))};
  }

  void parse_line() {
    const bool is_instruction = words_.starts_with("  ");
    const string_view first = word();
    if (first.empty() || first.starts_with('#')) return;
    if (is_instruction) return parse_instruction(first);
    if (first == "program") {
      program_.name = quoted();
    } else if (first == "buffer") {
      parse_buffer();
    } else if (first == "kernel") {
      parse_kernel();
    } else if (first == "segment") {
      program_.segments.emplace_back();
      queue_ = nullptr;
    } else if (first == "queue") {
      queue_ = &segment().queues[static_cast<std::size_t>(named<Engine>(word(), "engine"))];
    } else if (first == "then") {
      parse_comm_point();
    } else {
      fail(fmt::format("expected program, buffer, kernel, segment, queue or then, got \"{}\"",
                       first));
    }
    if (const string_view extra = word(); !extra.empty())
      fail(fmt::format("unexpected \"{}\" at the end of the line", extra));
  }

  Segment& segment() {
    if (program_.segments.empty()) fail("precedes the first segment");
    return program_.segments.back();
  }

  void parse_comm_point() {
    const string_view action = word();
    if (action != "start" && action != "wait")
      fail(fmt::format("expected start or wait, got \"{}\"", action));
    segment().then.push_back({action == "start" ? CommAction::kStart : CommAction::kWait,
                              number<std::uint32_t>(word())});
  }

  void parse_buffer() {
    Buffer b;
    b.name = quoted();
    b.space = named<MemorySpace>(word(), "memory space");
    for (string_view field = word(); !field.empty(); field = word()) {
      const auto [key, value] = key_value(field);
      if (key == "bytes") {
        b.bytes = number<std::int64_t>(value);
      } else if (key == "slot") {
        b.slot = number<std::int32_t>(value);
      } else if (key == "partitions") {
        std::tie(b.start_partition, b.num_partitions) =
            pair<std::uint16_t, std::uint16_t>(value, '+');
      } else if (key == "bytes_per_partition") {
        b.bytes_per_partition = number<std::uint32_t>(value);
      } else if (key == "address") {
        b.address = number<std::uint32_t>(value);
      } else {
        fail(fmt::format("unknown field \"{}\" of a buffer", key));
      }
    }
    program_.buffers.push_back(std::move(b));
  }

  void parse_kernel() {
    Kernel k;
    k.name = quoted();
    for (string_view field = word(); !field.empty(); field = word()) {
      const auto [key, value] = key_value(field);
      if (key == "node") {
        k.node = number<std::uint32_t>(value);
      } else if (key == "flops") {
        k.flops = number<std::int64_t>(value);
      } else if (key == "estimated") {
        k.estimated = true;
      } else {
        fail(fmt::format("unknown field \"{}\" of a kernel", key));
      }
    }
    program_.kernels.push_back(std::move(k));
  }

  static std::pair<string_view, string_view> key_value(string_view field) {
    const auto at = field.find('=');
    if (at == string_view::npos) return {field, {}};
    return {field.substr(0, at), field.substr(at + 1)};
  }

  void parse_instruction(string_view opcode) {
    if (queue_ == nullptr) fail("an instruction precedes the first queue of its segment");
    Instruction i;
    i.opcode = named<Opcode>(opcode, "opcode");
    for (string_view field = word(); !field.empty(); field = word()) {
      const auto [key, value] = key_value(field);
      if (!parse_scalar_field(i, key, value) && !parse_list_field(i, key, value)) {
        fail(fmt::format("unknown field \"{}\" of an instruction", key));
      }
    }
    queue_->push_back(std::move(i));
  }

  bool parse_scalar_field(Instruction& i, string_view key, string_view value) const {
    if (key == "kernel") {
      i.kernel = number<std::uint32_t>(value);
    } else if (key == "alu") {
      i.alu = named<AluOp>(value, "alu operation");
    } else if (key == "alu2") {
      i.alu2 = named<AluOp>(value, "alu operation");
    } else if (key == "fn") {
      i.activation = named<Activation>(value, "activation");
    } else if (key == "ring") {
      i.dma_queue = named<DmaQueue>(value, "DMA queue group");
    } else if (key == "mode") {
      i.mode = named<MatmulMode>(value, "matmul mode");
    } else if (key == "descriptors") {
      i.dma_descriptors = named<DmaDescriptors>(value, "way to make descriptors");
    } else if (key == "accumulate") {
      i.accumulate = true;
    } else if (key == "overwrite_first") {
      i.overwrite_first = true;
    } else if (key == "count") {
      i.count = number<std::int64_t>(value);
    } else if (key == "imm0") {
      i.imm0 = number<double>(value);
    } else if (key == "imm1") {
      i.imm1 = number<double>(value);
    } else {
      return false;
    }
    return true;
  }

  bool parse_list_field(Instruction& i, string_view key, string_view value) const {
    if (key == "dst") {
      i.dst = parse_operand(value);
    } else if (key == "src0") {
      i.src0 = parse_operand(value);
    } else if (key == "src1") {
      i.src1 = parse_operand(value);
    } else if (key == "dst1") {
      i.dst1 = parse_operand(value);
    } else if (key == "wait") {
      const auto [id, count] = pair<std::uint16_t, std::uint16_t>(value, ',');
      i.waits.push_back({id, count});
    } else if (key == "post") {
      const auto [id, count] = pair<std::uint16_t, std::uint16_t>(value, ',');
      i.updates.push_back({id, count});
    } else {
      return false;
    }
    return true;
  }

  AccessPattern parse_operand(string_view text) const {
    const auto parts = split(text, ':');
    if (parts.size() < 3 || !parts[2].starts_with('p'))
      fail(fmt::format("expected buffer:dtype:p<start>+<count>…, got \"{}\"", text));
    AccessPattern a;
    a.buffer = number<std::uint32_t>(parts[0]);
    a.dtype = named<DType>(parts[1], "dtype");
    std::tie(a.start_partition, a.num_partitions) =
        pair<std::uint16_t, std::uint16_t>(parts[2].substr(1), '+');
    for (std::size_t p = 3; p < parts.size(); ++p) parse_operand_part(a, parts[p]);
    return a;
  }

  void parse_operand_part(AccessPattern& a, string_view part) const {
    if (part.empty()) fail("an operand has an empty part");
    const string_view value = part.substr(1);
    switch (part.front()) {
      case 'o': a.offset = number<std::int64_t>(value); break;
      case 's': a.partition_stride = number<std::int64_t>(value); break;
      case 'r':
        std::tie(a.rotate_count, a.rotate_stride) = pair<std::uint16_t, std::int64_t>(value, '*');
        break;
      case 'd': parse_dims(a, value); break;
      case 'l': parse_loop_strides(a, value); break;
      default: fail(fmt::format("unknown part \"{}\" of an operand", part));
    }
  }

  void parse_dims(AccessPattern& a, string_view value) const {
    const auto entries = split(value, ',');
    if (entries.size() > kMaxFreeDims)
      fail(fmt::format("an operand has {} free dimensions, at most {} exist", entries.size(),
                       kMaxFreeDims));
    for (const string_view entry : entries) {
      const auto [count, stride] = pair<std::int32_t, std::int64_t>(entry, '*');
      a.dims[a.num_dims++] = {stride, count};
    }
  }

  void parse_loop_strides(AccessPattern& a, string_view value) const {
    const auto entries = split(value, ',');
    if (entries.size() > kMaxLoopDepth)
      fail(fmt::format("an operand has {} loop strides, at most {} exist", entries.size(),
                       kMaxLoopDepth));
    for (std::size_t d = 0; d < entries.size(); ++d)
      a.loop_stride[d] = number<std::int64_t>(entries[d]);
  }

  Program program_;
  std::vector<Instruction>* queue_ = nullptr;
  string_view words_;
  int line_ = 0;
};

}  // namespace

Program parse_program(const std::string& text) { return Parser().run(text); }

}  // namespace trellis::sim::isa
