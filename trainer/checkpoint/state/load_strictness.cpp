#include "trainer/checkpoint/state/load_strictness.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "runtime/links/process_link.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {
namespace {

using Action = LoadStrictness::Action;

constexpr LoadStrictness kModes[] = {
    {"assume_ok_unexpected", false, Action::kRaise, Action::kIgnore},
    {"log_unexpected", true, Action::kLog, Action::kIgnore},
    {"log_all", true, Action::kLog, Action::kLog},
    {"raise_unexpected", true, Action::kRaise, Action::kIgnore},
    {"raise_all", true, Action::kRaise, Action::kRaise},
    {"return_unexpected", true, Action::kReturn, Action::kIgnore},
    {"return_all", true, Action::kReturn, Action::kReturn},
    {"ignore_all", true, Action::kIgnore, Action::kIgnore},
};

/// The keys that a rank asks for, and those of them that are not in the checkpoint.
struct Requests {
  std::set<std::string> asked, unexpected;
};

/// Takes the parts out of `wanted` that nothing fills.
Requests requests_of(std::vector<LiveTensor>& wanted, const StoredType& type) {
  Requests requests;
  for (LiveTensor& tensor : wanted) {
    std::erase_if(tensor.parts, [&](const ShardedPart& part) {
      const std::string source = source_key(part.tensor.key, part.tensor.dtype, type);
      requests.asked.insert({part.tensor.key, source});
      if (source.empty() && !tensor.optional) requests.unexpected.insert(part.tensor.key);
      return source.empty();
    });
  }
  std::erase_if(wanted, [](const LiveTensor& tensor) { return tensor.parts.empty(); });
  return requests;
}

void act(Action action, const std::vector<std::string>& keys, const std::string& text,
         const StoredKeys& stored, bool speaks, Problems& problems) {
  for (const std::string& key : keys) {
    if (action == Action::kRaise) problems.add(stored.address, text + key);
    if (action == Action::kLog && speaks) log_warning(stored.address + ": " + text + key);
  }
}

}  // namespace

const LoadStrictness& load_strictness(const std::string& name) {
  std::string names;
  for (const LoadStrictness& mode : kModes) {
    if (name == mode.name) return mode;
    names += std::string(names.empty() ? "" : ", ") + mode.name;
  }
  throw ConfigError("strictness: expected one of " + names + ", got '" + name + "'");
}

const std::set<std::string>& NameUnion::of(runtime::RankContext& rank, std::set<std::string> own) {
  own_[static_cast<std::size_t>(rank.rank())] = std::move(own);
  rank.process_barrier(kStorageTimeout);
  if (rank.leads_process()) {
    all_.clear();
    for (std::set<std::string>& names : own_) all_.merge(names);
    for (std::set<std::string>& names : own_) names.clear();
    ++calls_;
    if (rank.link() != nullptr) exchange(rank);
  }
  rank.process_barrier(kStorageTimeout);
  return all_;
}

void NameUnion::exchange(runtime::RankContext& rank) {
  runtime::ProcessLink& link = *rank.link();
  const auto text_name = [&](const char* what, int process) {
    return name_ + " " + std::to_string(calls_) + "/" + what + "/" + std::to_string(process);
  };
  const auto add = [this](const std::string& text) {
    for (const auto& name : nlohmann::json::parse(text)) all_.insert(name.get<std::string>());
  };
  if (link.process() != 0) {
    link.leave_text(text_name("own", link.process()), nlohmann::json(all_).dump());
    return add(rank.take_text(text_name("all", link.process())));
  }
  for (int other = 1; other < link.processes(); ++other)
    add(rank.take_text(text_name("own", other)));
  for (int other = 1; other < link.processes(); ++other)
    link.leave_text(text_name("all", other), nlohmann::json(all_).dump());
}

KeyDifference reconcile(runtime::RankContext& rank, NameUnion& names,
                        std::vector<LiveTensor>& wanted, const StoredKeys& stored,
                        const LoadStrictness& strictness) {
  KeyDifference difference;
  if (!strictness.is_checked) return difference;
  Requests requests = requests_of(wanted, stored.type);
  const std::set<std::string>& unexpected = names.of(rank, std::move(requests.unexpected));
  difference.unexpected.assign(unexpected.begin(), unexpected.end());
  if (strictness.missing != Action::kIgnore) {
    const std::set<std::string>& asked = names.of(rank, std::move(requests.asked));
    std::ranges::set_difference(stored.keys, asked, std::back_inserter(difference.missing));
  }
  Problems problems;
  const bool speaks = rank.rank() == 0;
  act(strictness.unexpected, difference.unexpected, "has no ", stored, speaks, problems);
  act(strictness.missing, difference.missing, "no rank asks for ", stored, speaks, problems);
  problems.throw_if_any();
  return difference;
}

}  // namespace trellis::checkpoint
