#include "device/kernels/nki/document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trellis::device::nki {
namespace {

using nlohmann::json;

template <typename E>
E word(const json& from, const char* key, E otherwise) {
  if (!from.contains(key)) return otherwise;
  const auto text = from.at(key).get<std::string>();
  const auto found = isa::parse_name<E>(text);
  if (!found) throw ConfigError(fmt::format("document.json: {} \"{}\" is not known", key, text));
  return *found;
}

Tensor read_tensor(const json& from) {
  Tensor t;
  t.space = word(from, "space", isa::MemorySpace::kHbm);
  t.kind = from.at("kind").get<std::string>();
  t.name = from.at("name").get<std::string>();
  t.line = from.at("line").get<std::string>();
  t.dtype = word(from, "dtype", isa::DType::kFp32);
  t.shape = from.at("shape").get<std::vector<std::int64_t>>();
  t.home = from.at("home").get<int>();
  t.partitions = from.at("partitions").get<int>();
  t.bytes = from.at("bytes").get<std::int64_t>();
  t.file = from.value("file", "");
  return t;
}

Operand read_operand(const json& from, std::size_t tensors) {
  Operand o;
  o.tensor = from.at("t").get<int>();
  if (o.tensor < 0 || static_cast<std::size_t>(o.tensor) >= tensors)
    throw ConfigError(fmt::format("document.json: there is no tensor {}", o.tensor));
  o.first_partition = from.at("p").at(0).get<int>();
  o.partitions = from.at("p").at(1).get<int>();
  o.partition_stride = from.at("ps").get<std::int64_t>();
  o.offset = from.at("off").get<std::int64_t>();
  for (const json& loop : from.at("loops"))
    o.loops.emplace_back(loop.at(0).get<int>(), loop.at(1).get<std::int64_t>());
  for (const json& dim : from.at("dims"))
    o.dims.push_back({dim.at(0).get<std::int64_t>(), dim.at(1).get<std::int32_t>()});
  return o;
}

Step read_step(const json& from, std::size_t tensors) {
  Step s;
  s.line = from.at("line").get<std::string>();
  if (from.contains("loop")) {
    s.loop = from.at("loop").get<int>();
    s.count = from.at("count").get<std::int64_t>();
    s.affine = from.at("kind").get<std::string>() == "affine";
    for (const json& inner : from.at("body")) s.body.push_back(read_step(inner, tensors));
    return s;
  }
  s.opcode = word(from, "op", isa::Opcode::kMemset);
  s.engine = from.value("engine", "");
  s.alu = word(from, "alu", isa::AluOp::kNone);
  s.alu2 = word(from, "alu2", isa::AluOp::kNone);
  s.activation = word(from, "fn", isa::Activation::kIdentity);
  s.imm0 = from.value("imm0", 0.0);
  s.imm1 = from.value("imm1", 0.0);
  s.accumulate = from.value("accumulate", false);
  s.overwrite_first = from.value("overwrite_first", false);
  constexpr std::array<const char*, 4> kRoles{"dst", "src0", "src1", "dst1"};
  for (std::size_t r = 0; r < kRoles.size(); ++r) {
    if (from.contains(kRoles[r])) s.operands[r] = read_operand(from.at(kRoles[r]), tensors);
  }
  return s;
}

/// Every operand lies in its tensor, whatever its loops' iterations.
class Bounds {
 public:
  explicit Bounds(const Document& document) : document_(document) {}

  void check(const std::vector<Step>& steps) {
    for (const Step& s : steps) {
      if (s.loop == 0) {
        for (const Operand& o : s.operands) {
          if (o.present()) check(o, s.line);
        }
        continue;
      }
      if (s.count < 1 || s.count > kMostIterations) fail(s.line, "a loop's count is out of range");
      counts_[s.loop] = s.count;
      check(s.body);
      counts_.erase(s.loop);
    }
  }

 private:
  static constexpr std::int64_t kMostIterations = 1 << 24;

  [[noreturn]] static void fail(const std::string& line, const std::string& text) {
    throw ConfigError(fmt::format("document.json: {}: {}", line, text));
  }

  void check(const Operand& o, const std::string& line) const {
    const Tensor& t = document_.tensors[static_cast<std::size_t>(o.tensor)];
    const bool hbm = t.space == isa::MemorySpace::kHbm;
    if (o.dims.size() > isa::kMaxFreeDims) fail(line, "an operand has more than four dimensions");
    if (o.partitions < 1 ||
        (!hbm && (o.first_partition < 0 || o.first_partition + o.partitions > t.partitions)))
      fail(line, "an operand leaves the partitions of " + t.text());
    std::int64_t low = o.offset, high = o.offset;
    const auto reach = [&](std::int64_t stride, std::int64_t count) {
      if (count < 1 || std::abs(stride) > kFarthest || count > kFarthest)
        fail(line, "an operand of " + t.text() + " is out of range");
      (stride < 0 ? low : high) += stride * (count - 1);
    };
    for (const isa::Dim& dim : o.dims) reach(dim.stride, dim.count);
    if (hbm) reach(o.partition_stride, o.partitions);
    for (const auto& [loop, stride] : o.loops) {
      if (!counts_.contains(loop)) fail(line, "an operand names a loop that is not around it");
      reach(stride, counts_.at(loop));
    }
    if (low < 0 || high >= t.bytes / isa::size_bytes(t.dtype))
      fail(line,
           fmt::format("an operand reaches element {} of {}", low < 0 ? low : high, t.text()));
  }
  static constexpr std::int64_t kFarthest = std::int64_t{1} << 31;

  const Document& document_;
  std::map<int, std::int64_t> counts_;
};

std::vector<std::uint8_t> read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw ConfigError(file.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t check_tensor(const Document& document, int tensor) {
  if (tensor < 0 || static_cast<std::size_t>(tensor) >= document.tensors.size())
    throw ConfigError(fmt::format("document.json: there is no tensor {}", tensor));
  return static_cast<std::size_t>(tensor);
}

Document read(const json& from, const std::filesystem::path& folder) {
  if (from.at("schema") != "trellis.nki_trace/1")
    throw ConfigError("document.json: expected schema trellis.nki_trace/1, got " +
                      from.at("schema").dump());
  Document d;
  d.folder = folder;
  d.kernel = from.at("kernel").get<std::string>();
  d.unrolled = from.at("unrolled").get<std::vector<std::string>>();
  for (const json& tensor : from.at("tensors")) d.tensors.push_back(read_tensor(tensor));
  for (const json& step : from.at("body")) d.body.push_back(read_step(step, d.tensors.size()));
  Bounds(d).check(d.body);
  d.outputs = from.at("outputs").get<std::vector<int>>();
  for (const int output : d.outputs) check_tensor(d, output);
  for (const json& expected : from.at("expected")) {
    const auto bytes = read_file(folder / expected.at("file").get<std::string>());
    Expected e{expected.at("tensor").get<int>(),
               std::vector<double>(bytes.size() / sizeof(double))};
    const Tensor& t = d.tensors[check_tensor(d, e.tensor)];
    if (static_cast<std::int64_t>(e.values.size()) * isa::size_bytes(t.dtype) != t.bytes)
      throw ConfigError(
          fmt::format("document.json: {} expected values for {}", e.values.size(), t.text()));
    std::memcpy(e.values.data(), bytes.data(), e.values.size() * sizeof(double));
    d.expected.push_back(std::move(e));
  }
  return d;
}

}  // namespace

std::string Tensor::text() const {
  return fmt::format("{}{} {} of {}", name.empty() ? "" : name + " ", fmt::format("{}", shape),
                     isa::name(dtype), line);
}

std::int64_t Operand::free_elements() const {
  std::int64_t n = 1;
  for (const isa::Dim& dim : dims) n *= dim.count;
  return n;
}

Document read_document(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "document.json";
  std::ifstream in(file);
  if (!in) throw ConfigError(file.string() + ": cannot be read");
  try {
    return read(json::parse(in), folder);
  } catch (const json::exception& error) {
    throw ConfigError(file.string() + ": " + error.what());
  }
}

std::vector<std::uint8_t> read_values(const Document& document, const Tensor& tensor) {
  auto bytes = read_file(document.folder / tensor.file);
  if (static_cast<std::int64_t>(bytes.size()) != tensor.bytes)
    throw ConfigError(fmt::format("{}: {} bytes, {} has {}", tensor.file, bytes.size(),
                                  tensor.text(), tensor.bytes));
  return bytes;
}

}  // namespace trellis::device::nki
