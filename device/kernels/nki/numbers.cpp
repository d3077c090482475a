#include "device/kernels/nki/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "sim/functional/interpreter.h"

namespace trellis::device::nki {
namespace {

namespace functional = sim::functional;
using functional::Interpreter;
using functional::Values;
using isa::DType;
using isa::MemorySpace;

/// About what the interpreter does in a second.
constexpr double kProductsASecond = 1.5e9, kElementsASecond = 6e7;
constexpr double kMostSeconds = 30, kMostSecondsShuffled = 4;

void add_work(const std::vector<Step>& steps, std::int64_t times, Work& out) {
  for (const Step& s : steps) {
    if (s.loop != 0) {
      add_work(s.body, times * s.count, out);
      continue;
    }
    out.instructions += times;
    for (const Operand& o : s.operands) {
      if (o.present()) out.elements += times * o.free_elements() * o.partitions;
    }
    if (s.opcode == isa::Opcode::kMatmul)
      out.products += times * s.operands[kSrc0].partitions * s.operands[kSrc0].free_elements() *
                      s.operands[kSrc1].free_elements();
  }
}

Values values_of(const Document& document, const Tensor& tensor) {
  const auto bytes = read_values(document, tensor);
  const auto size = static_cast<std::size_t>(isa::size_bytes(tensor.dtype));
  Values out(bytes.size() / size);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = functional::decode(tensor.dtype, bytes.data() + i * size);
  return out;
}

std::int64_t elements(const Tensor& t) { return t.bytes / isa::size_bytes(t.dtype); }

/// Inputs whose values the document does not have are small whole numbers.
Values made(const Tensor& tensor) {
  Values out(static_cast<std::size_t>(elements(tensor)));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(i * 7 % 13) / 8 - 0.75;
  return out;
}

class Run {
 public:
  Run(const Document& document, const Lowered& lowered, const isa::Limits& limits,
      functional::Options options)
      : document_(document), lowered_(lowered), interpreter_(lowered.program, limits, options) {
    for (std::size_t t = 0; t < document.tensors.size(); ++t) {
      const Tensor& tensor = document.tensors[t];
      if (tensor.kind != "input" && tensor.kind != "const") continue;
      interpreter_.write(lowered.buffers[t], tensor.dtype,
                         tensor.file.empty() ? made(tensor) : values_of(document, tensor));
    }
  }

  std::vector<Values> outputs() {
    try {
      interpreter_.run();
    } catch (const std::runtime_error& error) {
      throw Error(ExitCode::kHang, document_.kernel + ": " + error.what());
    }
    std::vector<Values> out;
    for (const int id : document_.outputs) {
      const Tensor& t = document_.tensors[static_cast<std::size_t>(id)];
      out.push_back(
          interpreter_.read(lowered_.buffers[static_cast<std::size_t>(id)], t.dtype, elements(t)));
    }
    return out;
  }

  /// Instructions that no semaphore orders, by their lines.
  void add_races(std::vector<Mistake>& mistakes) const {
    for (const functional::Hazard& h : interpreter_.hazards()) {
      if (h.kind != functional::HazardKind::kRace) continue;
      mistakes.push_back({"race", line(h.second),
                          fmt::format("{} (the other instruction: {})", h.text, line(h.first))});
    }
  }

 private:
  [[nodiscard]] std::string line(const functional::Site& site) const {
    const auto& queue =
        lowered_.program.segments[site.segment].queues[static_cast<std::size_t>(site.engine)];
    return lowered_.program.kernels[queue[site.index].kernel].name;
  }

  const Document& document_;
  const Lowered& lowered_;
  Interpreter interpreter_;
};

/// The unit of the last place of `value`.
double last_place(DType dtype, double value) {
  const int bits = dtype == DType::kBf16 ? 7 : dtype == DType::kFp16 ? 10 : 23;
  if (isa::size_bytes(dtype) == 1 || dtype == DType::kInt32 || dtype == DType::kInt16) return 1;
  return value == 0 ? std::ldexp(1.0, -126) : std::ldexp(1.0, std::ilogb(value) - bits);
}

double tolerance_of(DType dtype) { return dtype == DType::kFp32 ? 1e-5 : std::ldexp(1.0, -7); }

std::vector<std::int64_t> place(std::size_t at, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> out(shape.size());
  auto rest = static_cast<std::int64_t>(at);
  for (std::size_t d = shape.size(); d-- > 0;) {
    out[d] = rest % shape[d];
    rest /= shape[d];
  }
  return out;
}

OutputError compare(const Tensor& tensor, const Values& got, const Values& want,
                    const RunOptions& options) {
  OutputError e;
  e.name = tensor.name.empty() ? tensor.line : tensor.name;
  e.dtype = tensor.dtype;
  e.tolerance = options.tolerance.value_or(tolerance_of(tensor.dtype));
  double difference = 0, length = 0, most = 0, worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
    const double d = same ? 0 : std::fabs(got[i] - want[i]);
    if (std::isfinite(want[i]))
      length += want[i] * want[i], most = std::fmax(most, std::fabs(want[i]));
    difference += d * d;
    if (d > worst || std::isnan(d)) {
      at = i;
      worst = std::isnan(d) ? HUGE_VAL : d;
    }
  }
  const double unit = most > 0 ? most : 1;
  e.relative = std::sqrt(difference) / (length > 0 ? std::sqrt(length) : 1);
  if (got.empty()) return e;
  e.got = got[at];
  e.want = want[at];
  e.element = place(at, tensor.shape);
  e.largest = std::fabs(e.got - e.want) / unit;
  e.ulp = worst == 0 ? 0 : std::fabs(e.got - e.want) / last_place(tensor.dtype, e.want);
  e.right = e.relative <= e.tolerance;  // false for NaN
  return e;
}

void write_results(const Document& document, const std::vector<Values>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int id = document.outputs[i];
    const Tensor& t = document.tensors[static_cast<std::size_t>(id)];
    const auto size = static_cast<std::size_t>(isa::size_bytes(t.dtype));
    std::vector<std::uint8_t> bytes(outputs[i].size() * size);
    for (std::size_t e = 0; e < outputs[i].size(); ++e)
      functional::encode(t.dtype, outputs[i][e], bytes.data() + e * size);
    std::ofstream out(document.folder / fmt::format("result{}.bin", id), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    if (!out)
      throw Error(ExitCode::kOutput, "results cannot be written to " + document.folder.string());
  }
}

bool equal_bits(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

void shuffle(const Document& document, const Lowered& lowered, const isa::Limits& limits,
             const RunOptions& options, const std::vector<Values>& outputs, RunReport& report) {
  for (int seed = 1; seed <= options.interleavings; ++seed) {
    Run run(document, lowered, limits, {.seed = static_cast<std::uint32_t>(seed), .hazards = true});
    const auto again = run.outputs();
    run.add_races(report.mistakes);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (!equal_bits(outputs[o], again[o]))
        report.mistakes.push_back(
            {"race", document.kernel,
             fmt::format("interleaving {} of the engines gives other values", seed)});
    }
  }
  report.has_interleavings = options.interleavings > 0;
}

}  // namespace

Work work_of(const Document& document) {
  Work out;
  add_work(document.body, 1, out);
  return out;
}

void run_numbers(const Document& document, const Lowered& lowered, const isa::Limits& limits,
                 const RunOptions& options, RunReport& report) {
  const Work work = work_of(document);
  const double seconds = static_cast<double>(work.products) / kProductsASecond +
                         static_cast<double>(work.elements) / kElementsASecond;
  if (options.numbers == Numbers::kNone) {
    report.no_numbers = "not asked for";
    return;
  }
  if (options.numbers == Numbers::kAuto && seconds > kMostSeconds) {
    report.no_numbers = fmt::format("they take about {:.0f} s here: --numbers always", seconds);
    return;
  }
  Run run(document, lowered, limits, {});
  const auto outputs = run.outputs();
  report.has_numbers = true;
  for (const Expected& expected : document.expected) {
    const auto found = std::find(document.outputs.begin(), document.outputs.end(), expected.tensor);
    const auto which = static_cast<std::size_t>(found - document.outputs.begin());
    const Tensor& tensor = document.tensors[static_cast<std::size_t>(expected.tensor)];
    report.outputs.push_back(compare(tensor, outputs.at(which), expected.values, options));
  }
  if (options.write_results) write_results(document, outputs);
  if (seconds < kMostSecondsShuffled) shuffle(document, lowered, limits, options, outputs, report);
}

}  // namespace trellis::device::nki
