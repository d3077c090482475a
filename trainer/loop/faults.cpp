#include "trainer/loop/faults.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/nearest.h"

namespace trellis::trainer {
namespace {

constexpr const char* kForms =
    "expected kill, crash, hang, preempt or oom with :rank=R@step=S, flip:WEIGHT:rank=R@step=S, or "
    "disk:full@step=S";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ConfigError("--fault " + text + ": " + why);
}

/// The number after `name` at the end of `text`, which loses both; none: it is not there.
std::optional<std::int64_t> take_number(std::string& text, const std::string& name) {
  const std::size_t at = text.rfind(name);
  if (at == std::string::npos) return std::nullopt;
  std::int64_t value = 0;
  const char *begin = text.data() + at + name.size(), *end = text.data() + text.size();
  const auto [last, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || last != end) return std::nullopt;
  text.resize(at);
  return value;
}

Fault::Kind kind_of(const std::string& word, const std::string& text) {
  if (word == "kill") return Fault::Kind::kKill;
  if (word == "crash") return Fault::Kind::kCrash;
  if (word == "hang") return Fault::Kind::kHang;
  if (word == "preempt") return Fault::Kind::kPreempt;
  if (word == "oom") return Fault::Kind::kOom;
  if (word == "flip") return Fault::Kind::kFlip;
  if (word == "disk") return Fault::Kind::kDiskFull;
  refuse(text, std::string("unknown kind `") + word + "`: " + kForms);
}

Fault fault_of(const std::string& text) {
  std::string rest = text;
  Fault fault;
  const auto step = take_number(rest, "@step=");
  if (!step) refuse(text, std::string("no step: ") + kForms);
  fault.step = *step;
  const auto rank = take_number(rest, ":rank=");
  fault.rank = rank.value_or(0);
  const std::size_t colon = rest.find(':');
  fault.kind = kind_of(rest.substr(0, colon), text);
  if (colon != std::string::npos) fault.tensor = rest.substr(colon + 1);
  if (fault.kind == Fault::Kind::kDiskFull) {
    if (fault.tensor != "full" || rank) refuse(text, kForms);
  } else if ((fault.kind == Fault::Kind::kFlip) != !fault.tensor.empty()) {
    refuse(text, kForms);
  }
  return fault;
}

/// The highest bit of the first element's fraction: the value stays finite.
void flip_a_bit(at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor host = tensor.detach().cpu().contiguous();
  auto* bytes = static_cast<std::uint8_t*>(host.mutable_data_ptr());
  // Little-endian: the exponents of fp32 and bf16 begin in the last byte but one, of fp64 too.
  const auto at = static_cast<std::size_t>(std::max<std::int64_t>(host.element_size() - 2, 0));
  const bool wide = host.scalar_type() == at::kDouble;
  bytes[at] ^= wide ? 0x08 : 0x40;
  tensor.detach().copy_(host);
}

}  // namespace

FaultPlan::FaultPlan(const std::vector<std::string>& texts, int world_size,
                     std::int64_t last_step) {
  for (const std::string& text : texts) {
    const Fault fault = fault_of(text);
    if (fault.rank < 0 || fault.rank >= world_size)
      refuse(text, fmt::format("expected a rank from 0 to {}, got {}", world_size - 1, fault.rank));
    if (fault.step < 1 || (last_step > 0 && fault.step > last_step))
      refuse(text, last_step > 0
                       ? fmt::format("expected a step from 1 to {}, got {}", last_step, fault.step)
                       : fmt::format("expected a step from 1, got {}", fault.step));
    faults_.push_back(fault);
  }
}

bool FaultPlan::fills_disk() const {
  return std::ranges::any_of(
      faults_, [](const Fault& fault) { return fault.kind == Fault::Kind::kDiskFull; });
}

bool FaultPlan::is_disk_full() const {
  return std::ranges::any_of(faults_, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::kDiskFull && fault.step == step_;
  });
}

void FaultPlan::before_step(int rank, std::int64_t step) const {
  step_ = step;
  for (const Fault& fault : faults_) {
    if (fault.rank != rank || fault.step != step) continue;
    const std::string what = fmt::format(" rank {} at step {} (--fault)", rank, step);
    if (fault.kind == Fault::Kind::kKill) {
      log_warning("kills the process of" + what);
      std::raise(SIGKILL);
    } else if (fault.kind == Fault::Kind::kCrash) {
      log_warning("SIGSEGV to the process of" + what);
      std::raise(SIGSEGV);
    } else if (fault.kind == Fault::Kind::kHang) {
      log_warning("endless work of" + what);
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    } else if (fault.kind == Fault::Kind::kPreempt) {
      log_warning("SIGTERM to the process of" + what);
      std::raise(SIGTERM);
    } else if (fault.kind == Fault::Kind::kOom) {
      throw Error(ExitCode::kDoesNotFit, "out of device memory on" + what);
    }
  }
}

bool FaultPlan::flips_in(std::int64_t step) const {
  return std::ranges::any_of(faults_, [step](const Fault& fault) {
    return fault.kind == Fault::Kind::kFlip && fault.step == step;
  });
}

void FaultPlan::after_update(int rank, std::int64_t step, ParameterList& parameters) const {
  for (const Fault& fault : faults_) {
    if (fault.kind != Fault::Kind::kFlip || fault.rank != rank || fault.step != step) continue;
    std::vector<std::string> names;
    for (Parameter& parameter : parameters) {
      names.push_back(parameter.name);
      if (parameter.name == fault.tensor) flip_a_bit(parameter.tensor);
    }
    if (std::ranges::find(names, fault.tensor) == names.end()) {
      const std::string nearest = nearest_name(fault.tensor, names);
      throw ConfigError(fmt::format("--fault flip:{}: rank {} has no such weight{}", fault.tensor,
                                    rank,
                                    nearest.empty() ? std::string(": name another rank or weight")
                                                    : ", did you mean " + nearest + "?"));
    }
    log_warning(fmt::format("flips a bit of {} on rank {} after step {} (--fault)", fault.tensor,
                            rank, step));
  }
}

}  // namespace trellis::trainer
