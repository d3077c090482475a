#include "sim/profile/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "sim/profile/operand_import.h"
#include "sim/profile/semaphore_import.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::MatmulMode;
using isa::Opcode;

constexpr std::size_t kMostListed = 20;
constexpr int kAccumulateStart = 1;  // a bit of acc_flags

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<AluOp> alu_of(const std::string& word) {
  static const std::map<std::string, AluOp> kOthers = {
      {"MULT", AluOp::kMultiply},   {"SUB", AluOp::kSubtract},    {"RSUB", AluOp::kReverseSubtract},
      {"IS_EQ", AluOp::kEqual},     {"IS_GT", AluOp::kGreater},   {"IS_GE", AluOp::kGreaterEqual},
      {"IS_LT", AluOp::kLess},      {"IS_LE", AluOp::kLessEqual}, {"POW", AluOp::kPower},
      {"LOGICAL_AND", AluOp::kAnd}, {"LOGICAL_OR", AluOp::kOr},   {"LOGICAL_XOR", AluOp::kXor}};
  const auto found = kOthers.find(word);
  return found != kOthers.end() ? found->second : isa::parse_name<AluOp>(lower(word));
}

std::optional<isa::Activation> function_of(const std::string& word) {
  if (word == "COPY" || word == "IDENTITY") return isa::Activation::kIdentity;
  if (word == "LN") return isa::Activation::kLog;
  return isa::parse_name<isa::Activation>(lower(word));
}

/// Two values with a comma between.
std::pair<std::string, std::string> two_of(const std::string& text) {
  const auto comma = text.find(',');
  if (comma == std::string::npos) return {text, ""};
  return {text.substr(0, comma), text.substr(comma + 1)};
}

class Importer {
 public:
  Importer(const Profile& profile, const isa::Limits& limits)
      : profile_(profile), limits_(limits), operands_(out_.program, limits) {
    out_.program.name = profile.name;
    out_.program.kernels.push_back({.name = profile.name});
    out_.program.segments.emplace_back();
    out_.notes = profile.notes;
  }

  ImportedProgram run() {
    std::map<std::string, std::int64_t> of_runtime;
    for (std::size_t p = 0; p < profile_.instructions.size(); ++p) {
      if (profile_.instructions[p].of_program) {
        import(p);
      } else {
        ++of_runtime[profile_.instructions[p].opcode];
      }
    }
    note_runtime(of_runtime);
    operands_.bind_hbm();
    bind_semaphores();
    problems_.throw_if_any();
    check_rules();
    match_transfers();
    for (auto& [text, instances] : notes_)
      out_.notes.push_back(
          instances.second == 1
              ? fmt::format("{}: {}", instances.first, text)
              : fmt::format("{} and {} others: {}", instances.first, instances.second - 1, text));
    return std::move(out_);
  }

 private:
  using Make = void (Importer::*)(const InstructionText&, Instruction&);

  static const std::map<std::string, Make>& opcodes() {
    static const std::map<std::string, Make> kOpcodes = {
        {"LDWEIGHTS", &Importer::load_weights},
        {"MATMUL", &Importer::matmul},
        {"COPY", &Importer::copy},
        {"CAST", &Importer::copy},
        {"ACTIVATE", &Importer::activate},
        {"ACT_TABLE_LOAD", &Importer::load_table},
        {"TENSOR_REDUCE", &Importer::reduce},
        {"TENSOR_SCALAR", &Importer::tensor_scalar},
        {"TENSOR_TENSOR", &Importer::tensor_tensor},
        {"RECIPROCAL", &Importer::reciprocal},
        {"MEMSET", &Importer::fill},
        {"DMA_DIRECT2D", &Importer::dma},
        {"EVENT_SEMAPHORE", &Importer::nothing},
        {"NOP", &Importer::nothing}};
    return kOpcodes;
  }
  /// Vector, Scalar and GpSimd have these: known by name, costed by their operands only.
  static bool costed(const std::string& opcode) {
    static const std::vector<std::string> kCosted = {"SELECT",
                                                     "IOTA",
                                                     "BN_STATS",
                                                     "BN_AGGR",
                                                     "MAX8",
                                                     "MAX_INDEX",
                                                     "MATCH_REPLACE",
                                                     "RAND",
                                                     "POOL",
                                                     "TENSOR_SCALAR_ADDR",
                                                     "SCALAR_TENSOR_TENSOR",
                                                     "TENSOR_TENSOR_SCAN",
                                                     "AFFINE_SELECT",
                                                     "STREAM_TRANSPOSE",
                                                     "STREAM_SHUFFLE",
                                                     "TRANSPOSE"};
    return std::find(kCosted.begin(), kCosted.end(), opcode) != kCosted.end();
  }

  void import(std::size_t place) {
    current_ = &profile_.instructions[place];
    where_ = place_text(profile_, place);
    const InstructionText text = read_instruction_text(current_->operands);
    Instruction i;
    const auto make = opcodes().find(current_->opcode);
    if (make != opcodes().end()) {
      (this->*make->second)(text, i);
    } else if (costed(current_->opcode)) {
      generic(text, i);
    } else {
      fail("opcode", fmt::format("unknown opcode \"{}\"", current_->opcode));
    }
    semaphores(text);
    const auto engine = static_cast<std::size_t>(current_->engine);
    out_.program.segments.front().queues[engine].push_back(std::move(i));
    out_.places[engine].push_back(place);
  }

  void fail(const std::string& key, const std::string& text) {
    if (problems_.lines().size() < kMostListed) problems_.add(where_ + "." + key, text);
  }
  void note(const std::string& text) {
    auto& [first, count] = notes_[text];
    if (count++ == 0)
      first =
          fmt::format("{} pc {} {}", isa::name(current_->engine), current_->pc, current_->opcode);
  }
  [[nodiscard]] OperandImport::Fail failing() {
    return [this](const std::string& key, const std::string& text) { fail(key, text); };
  }

  AccessPattern operand(const InstructionText& text, const char* key, std::int64_t partitions,
                        DType dtype = DType::kFp32) {
    const auto value = text.find(key);
    const auto read = value ? read_operand_text(*value) : std::nullopt;
    if (!read) {
      fail(key, value ? fmt::format("expected dtype@address[strides][counts], got \"{}\"", *value)
                      : "is missing");
      return {};
    }
    return operands_.on_chip(*read, key, partitions, dtype, failing());
  }
  AccessPattern column(std::int64_t address, const char* key, std::int64_t partitions) {
    return operands_.on_chip({"", static_cast<std::uint64_t>(address), {}, {}}, key, partitions,
                             DType::kFp32, failing());
  }
  std::int64_t channels(const InstructionText& text) {
    const auto value = text.find("channels");
    const auto number = value ? read_integer(*value) : std::nullopt;
    if (!number) fail("channels", "expected a number of partitions");
    return number.value_or(1);
  }
  /// "128*64": rows and columns of the weights.
  std::pair<std::int64_t, std::int64_t> array_size(const InstructionText& text) {
    for (const std::string& word : text.words) {
      const auto star = word.find('*');
      if (star == std::string::npos) continue;
      const auto rows = read_integer(std::string_view(word).substr(0, star));
      const auto columns = read_integer(std::string_view(word).substr(star + 1));
      if (rows && columns) return {*rows, *columns};
    }
    fail("operands", "expected ROWS*COLUMNS of the array");
    return {1, 1};
  }

  void load_weights(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kLoadStationary;
    i.src0 = operand(text, "src", array_size(text).first);
    const std::string half = text.find("fp32_mode").value_or("");
    if (text.find("transpose_mode") == "ENABLED") {
      i.mode = MatmulMode::kTranspose;
    } else if (half == "LOW" || half == "HIGH") {
      i.mode = half == "LOW" ? MatmulMode::kFp32Low : MatmulMode::kFp32High;
    } else if (!half.empty()) {
      fail("fp32_mode", fmt::format("expected LOW or HIGH, got \"{}\"", half));
    }
    weights_ = i;
  }

  void matmul(const InstructionText& text, Instruction& i) {
    const auto [rows, columns] = array_size(text);
    i.opcode = Opcode::kMatmul;
    i.mode = weights_.mode;
    i.src0 = operand(text, "src", rows);
    i.dst = operand(text, "dst", columns,
                    i.mode == MatmulMode::kTranspose ? weights_.src0.dtype : DType::kFp32);
    const auto flags = read_integer(text.find("acc_flags").value_or(""));
    if (!flags) fail("acc_flags", "expected a number");
    i.accumulate = (flags.value_or(kAccumulateStart) & kAccumulateStart) == 0;
  }

  void copy(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kTensorCopy;
    both(text, i);
  }
  void both(const InstructionText& text, Instruction& i) {
    const std::int64_t partitions = channels(text);
    i.src0 = operand(text, "src", partitions);
    i.dst = operand(text, "dst", partitions);
  }

  void activate(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kActivation;
    both(text, i);
    i.activation = function(current_->function);
    i.imm0 = number(text.find("scale").value_or("1"), "scale");
    if (const auto bias = text.find("bias_ptr")) {
      const auto read = read_operand_text(*bias);
      if (!read) fail("bias_ptr", fmt::format("expected dtype@address, got \"{}\"", *bias));
      if (read)
        i.src1 =
            operands_.on_chip(*read, "bias_ptr", i.src0.num_partitions, DType::kFp32, failing());
    } else {
      i.imm1 = number(text.find("imm").value_or("0"), "imm");
    }
    if (text.find("accumulator_cmd").value_or("IDLE") != "IDLE")
      note("the accumulator is not expressed: the row's sum costs nothing");
  }
  isa::Activation function(const std::string& word) {
    const auto found = function_of(word);
    if (!found)
      note(fmt::format("function \"{}\" is not known here: costed as the identity", word));
    return found.value_or(isa::Activation::kIdentity);
  }
  double number(const std::string& word, const char* key) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (word.empty() || *end != 0 || !std::isfinite(value))
      fail(key, fmt::format("expected a number, got \"{}\"", word));
    return std::isfinite(value) ? value : 0;
  }

  /// The functions of a set are numbered, not named: those of the next activation.
  void load_table(const InstructionText&, Instruction& i) {
    i.opcode = Opcode::kLoadTable;
    i.activation = next_function();
  }
  [[nodiscard]] isa::Activation next_function() {
    for (const ProfileInstruction* next = current_;
         next != profile_.instructions.data() + profile_.instructions.size(); ++next) {
      if (next->engine == current_->engine && next->of_program && next->opcode == "ACTIVATE")
        return function(next->function);
    }
    return isa::Activation::kIdentity;
  }

  void reduce(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kTensorReduce;
    both(text, i);
    i.alu = alu(text.find("op").value_or(""), "op");
    if (text.find("negated").value_or("0") != "0") note("the result is not negated");
  }
  AluOp alu(const std::string& word, const char* key) {
    const auto found = alu_of(word);
    if (!found) fail(key, fmt::format("unknown operation \"{}\"", word));
    return found.value_or(AluOp::kBypass);
  }

  void tensor_scalar(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kTensorScalar;
    both(text, i);
    const auto [first, second] = two_of(text.find("ops").value_or(""));
    i.alu = alu(first, "ops");
    i.alu2 = second.empty() ? AluOp::kNone : alu(second, "ops");
    const auto [value0, value1] = two_of(text.find("imm").value_or("0,0"));
    const auto [source0, source1] = two_of(text.find("imm_src").value_or(""));
    if (source0 == "PTR") {
      const auto address = read_integer(value0);
      if (!address || *address < 0) return fail("imm", "expected an address");
      i.src1 = column(*address, "imm", i.src0.num_partitions);
    } else {
      i.imm0 = number(value0, "imm");
    }
    if (source1 == "PTR") {
      note("the second operand's column is not expressed");
    } else if (!value1.empty()) {
      i.imm1 = number(value1, "imm");
    }
  }

  void tensor_tensor(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kTensorTensor;
    const std::int64_t partitions = channels(text);
    i.src0 = operand(text, "src0", partitions);
    i.src1 = operand(text, "src1", partitions);
    i.dst = operand(text, "dst", partitions);
    i.alu = alu(text.find("op").value_or(""), "op");
  }
  void reciprocal(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kActivation;
    i.activation = isa::Activation::kReciprocal;
    i.imm0 = 1;
    both(text, i);
  }
  void fill(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kMemset;
    i.dst = operand(text, "dst", channels(text));
  }
  void generic(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kGeneric;
    i.imm0 = 1;
    const char* key = text.find("src") ? "src" : "src0";
    i.src0 = operand(text, key, channels(text));
    if (text.find("dst")) i.dst = operand(text, "dst", channels(text));
    note(fmt::format("{} is costed as one pass over its operand", current_->opcode));
  }
  void nothing(const InstructionText&, Instruction&) {}

  void dma(const InstructionText& text, Instruction& i) {
    i.opcode = Opcode::kDma;
    switch (current_->engine) {  // each engine has its own queue
      case Engine::kSync: i.dma_queue = isa::DmaQueue::kLoad; break;
      case Engine::kScalar: i.dma_queue = isa::DmaQueue::kStore; break;
      case Engine::kGpSimd: i.dma_queue = isa::DmaQueue::kSpill; break;
      default: i.dma_queue = isa::DmaQueue::kCollective;
    }
    operands_.transfer(text, i, failing());
    if (text.find("compute_op").value_or("NONE") != "NONE")
      note("what the transfer computes is not expressed");
    i.dma_descriptors = descriptors();
    const auto semaphore = read_integer(text.find("semaphore").value_or(""));
    const auto increment = read_integer(text.find("sem_increment").value_or("1"));
    if (!semaphore && !text.find("semaphore")) return;
    if (!semaphore || *semaphore < 0 || *semaphore > 0xffff || !increment || *increment < 1 ||
        *increment > 0xffff)
      return fail("semaphore", "expected a semaphore and an increment of at least 1");
    semaphores_.post(*current_, static_cast<std::uint32_t>(*semaphore), *increment);
  }
  [[nodiscard]] isa::DmaDescriptors descriptors() const {
    if (current_->engine == Engine::kGpSimd) return isa::DmaDescriptors::kSoftware;
    const bool generator =
        limits_.hardware_dma_generators > 0 &&
        (current_->engine == Engine::kSync || current_->engine == Engine::kScalar);
    return generator ? isa::DmaDescriptors::kHardware : isa::DmaDescriptors::kStatic;
  }

  void semaphores(const InstructionText& text) {
    for (const SemaphoreText& s : text.semaphores) {
      if (s.value < 0 || s.value > 0xffff) {
        fail("operands", fmt::format("S[{}]: value {} is none of a semaphore", s.id, s.value));
      } else if (s.action == ">=") {
        semaphores_.wait(*current_, s.id, s.value);
      } else if (s.action == "++" || s.action == "+=") {
        semaphores_.post(*current_, s.id, s.value);
      } else {
        note(fmt::format("S[{}]{} is not expressed: only >=, ++ and += are", s.id, s.action));
      }
    }
    semaphores_.next(*current_);
  }

  void bind_semaphores();
  void check_rules();
  void match_transfers();
  void match_queue(Engine engine, int queue);
  void note_runtime(const std::map<std::string, std::int64_t>& opcodes_of_runtime);

  const Profile& profile_;
  const isa::Limits& limits_;
  ImportedProgram out_;
  OperandImport operands_;
  SemaphoreImport semaphores_;
  Problems problems_;
  std::map<std::string, std::pair<std::string, std::int64_t>> notes_;  ///< text → first, count
  const ProfileInstruction* current_ = nullptr;
  std::string where_;
  Instruction weights_;  ///< the load before the current instruction
};

void Importer::bind_semaphores() {
  const std::string unsatisfied = semaphores_.bind(
      out_.program.segments.front(), limits_.semaphores, [&](Engine engine, std::size_t index) {
        return place_text(profile_, out_.places[static_cast<std::size_t>(engine)][index]);
      });
  problems_.throw_if_any();
  if (!unsatisfied.empty()) throw Error(ExitCode::kHang, unsatisfied);
}

void Importer::check_rules() {
  for (const isa::Violation& broken : isa::validate(out_.program, limits_)) {
    const auto& places = out_.places[static_cast<std::size_t>(broken.engine)];
    where_ =
        broken.index < places.size() ? place_text(profile_, places[broken.index]) : profile_.name;
    fail("operands", broken.text);
  }
  problems_.throw_if_any();
}

void Importer::note_runtime(const std::map<std::string, std::int64_t>& opcodes_of_runtime) {
  std::string list;
  std::int64_t all = 0;
  for (const auto& [opcode, count] : opcodes_of_runtime) {
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", count, opcode);
    all += count;
  }
  if (all > 0)
    out_.notes.push_back(fmt::format(
        "{} instructions of the runtime before and after the program are not part of it: {}", all,
        list));
  std::int64_t fetched = 0, pieces = 0;
  for (const auto& packet : profile_.packets) {
    if (packet.kind != "instruction") continue;
    fetched += packet.bytes;
    ++pieces;
  }
  if (pieces > 0)
    out_.notes.push_back(
        fmt::format("{} pieces of instructions, {} bytes, are fetched by DMA: they "
                    "are not part of the program",
                    pieces, fetched));
}

// Each DMA engine ends its part of a transfer with a packet of 4 bytes, which writes the semaphore.
void Importer::match_queue(Engine engine, int queue) {
  constexpr std::int64_t kSemaphoreBytes = 4;
  struct Part {
    std::int64_t first = 0, last = 0;
  };
  std::map<int, std::vector<Part>> parts;  // [DMA engine]
  std::map<int, std::int64_t> open;
  for (const auto& packet : profile_.packets) {
    if (packet.queue != queue || !packet.kind.ends_with("dynamic")) continue;
    const auto begun = open.emplace(packet.engine, packet.start).first;
    if (packet.bytes != kSemaphoreBytes) continue;
    parts[packet.engine].push_back({begun->second, packet.end()});
    open.erase(begun);
  }
  std::vector<TracedTransfer*> started;
  for (TracedTransfer& t : out_.transfers) {
    if (t.engine == engine) started.push_back(&t);
  }
  for (TracedTransfer* t : started) t->queue = profile_.queues.at(queue);
  for (const auto& [dma_engine, list] : parts) {
    if (list.size() == started.size()) continue;
    out_.notes.push_back(fmt::format(
        "{}: DMA engine {} ended {} transfers, {} were started: their times are not taken from it",
        profile_.queues.at(queue), dma_engine, list.size(), started.size()));
    return;
  }
  for (const auto& [dma_engine, list] : parts) {
    for (std::size_t k = 0; k < list.size(); ++k) {
      TracedTransfer& t = *started[k];
      t.first = t.last == 0 ? list[k].first : std::min(t.first, list[k].first);
      t.last = std::max(t.last, list[k].last);
    }
  }
}

void Importer::match_transfers() {
  const isa::Segment& segment = out_.program.segments.front();
  for (int e = 0; e < isa::kNumEngines; ++e) {
    const auto& queue = segment.queues[static_cast<std::size_t>(e)];
    for (std::size_t i = 0; i < queue.size(); ++i) {
      if (queue[i].opcode != Opcode::kDma) continue;
      out_.transfers.push_back(
          {static_cast<Engine>(e), static_cast<std::uint32_t>(i),
           fmt::format("of {}", isa::name(static_cast<Engine>(e))),
           profile_.instructions[out_.places[static_cast<std::size_t>(e)][i]].start});
    }
  }
  for (const auto& [number, name] : profile_.queues) {
    const std::string word = lower(name);
    for (int e = 0; e < isa::kNumEngines; ++e) {
      const auto engine = static_cast<Engine>(e);
      if (word.starts_with("q" + std::string(isa::name(engine)) + "dynamic"))
        match_queue(engine, number);
    }
  }
}

}  // namespace

std::string place_text(const Profile& profile, std::size_t instruction) {
  const ProfileInstruction& i = profile.instructions[instruction];
  return fmt::format("{}: instruction[{}] ({} pc {} {})", profile.name, i.place,
                     isa::name(i.engine), i.pc, i.opcode);
}

ImportedProgram import_program(const Profile& profile, const isa::Limits& limits) {
  return Importer(profile, limits).run();
}

}  // namespace trellis::sim
