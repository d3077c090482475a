// Calls that all ranks make together and that all leave with the same error: the part of Rendezvous
// that ends the waits of one when a rank fails in it.
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/output_error.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

/// Barriers of a section count from here; those outside from 0.
constexpr int kSectionBits = 32;

std::exception_ptr error_of(ExitCode code, const std::string& text) {
  if (code == ExitCode::kConfig) return std::make_exception_ptr(ConfigError(text));
  if (code == ExitCode::kOutput) return std::make_exception_ptr(OutputError(text));
  return std::make_exception_ptr(Error(code, text));
}

}  // namespace

std::uint64_t Rendezvous::next_barrier(int rank, bool of_process) {
  const Lock lock(mutex_);
  RankState& state = of(rank);
  const auto section = static_cast<std::uint64_t>(state.section);
  if (state.section == 0) return of_process ? state.process_barriers++ : state.host_barriers++;
  return section << kSectionBits |
         (of_process ? state.section_process_barriers++ : state.section_host_barriers++);
}

void Rendezvous::together(int rank, const std::function<void()>& body) {
  {
    const Lock lock(mutex_);
    RankState& state = of(rank);
    TORCH_CHECK(state.section == 0, "a collective call inside another");
    state.section = ++state.sections;
    state.section_host_barriers = state.section_process_barriers = 0;
  }
  std::exception_ptr failure;
  try {
    body();
    host_barrier(rank, kLongestPatience);  // others may write for long
  } catch (...) {
    failure = std::current_exception();
  }
  leave_section(rank, failure);
}

void Rendezvous::leave_section(int rank, const std::exception_ptr& failure) {
  std::int64_t section = 0;
  {
    const Lock lock(mutex_);
    section = std::exchange(of(rank).section, 0);
    if (const auto error = section_errors_.find(section); failure && error != section_errors_.end())
      std::rethrow_exception(error->second);
  }
  if (!failure) return;
  std::string text;
  ExitCode code = ExitCode::kInternal;
  try {
    std::rethrow_exception(failure);
  } catch (const Cancelled&) {
    throw;  // the world has failed
  } catch (const Error& error) {
    if (error.code() == ExitCode::kHang) throw;
    text = error.what();
    code = error.code();
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  text += c10::str("\n  raised by rank ", rank);
  if (link_ != nullptr)
    link_->send_to_all({{"kind", "section"}, {"section", section}, {"text", text}, {"code", code}});
  const auto shared = error_of(code, text);
  fail_section(section, shared);
  std::rethrow_exception(shared);
}

void Rendezvous::fail_section(std::int64_t section, std::exception_ptr error) {
  const Lock lock(mutex_);
  section_errors_.emplace(section, std::move(error));
  if (link_ != nullptr) link_->interrupt_takes();
  threads_.make_all_ready();
}

void Rendezvous::received_section(const nlohmann::json& what) {
  fail_section(what.at("section").get<std::int64_t>(),
               error_of(what.at("code").get<ExitCode>(), what.at("text").get<std::string>()));
}

void Rendezvous::throw_section_error(int rank) const {
  const auto error = section_errors_.find(of(rank).section);
  if (error != section_errors_.end()) std::rethrow_exception(error->second);
}

bool Rendezvous::is_of_failed_section(const Transfer& transfer) const {
  const auto section = static_cast<std::int64_t>(transfer.sequence >> kSectionBits);
  const bool is_barrier = transfer.group.get() == host_group_->info.get() ||
                          (process_group_ != nullptr && transfer.group == process_group_->info);
  return is_barrier && section_errors_.contains(section);
}

}  // namespace trellis::runtime
