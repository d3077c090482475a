#include "trainer/verify/verify_journal.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kSchema = "trellis.verify_journal/1";
constexpr JournalKind kKind{kSchema, "verify", "verification", "layout is compared"};

double number_of(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::infinity() : value.get<double>();
}

Deviation deviation_of(const json& fields) {
  return {fields.at("what"), fields.at("layer"), number_of(fields.at("error")),
          fields.at("by_share"), fields.at("tolerance")};
}

json to_json(const Comparison& found) {
  json fields = {{"worst", trainer::to_json(found.worst)},
                 {"compared", found.num_compared},
                 {"bad", found.num_bad},
                 {"by_share", found.num_by_share},
                 {"largest_tolerance", found.largest_tolerance}};
  if (found.first_bad) fields["first_bad"] = trainer::to_json(*found.first_bad);
  if (found.first_bad_tensor)
    fields["first_bad_tensor"] = trainer::to_json(*found.first_bad_tensor);
  return fields;
}

Comparison comparison_of(const json& fields) {
  Comparison found;
  found.worst = deviation_of(fields.at("worst"));
  found.num_compared = fields.at("compared");
  found.num_bad = fields.at("bad");
  found.num_by_share = fields.at("by_share");
  found.largest_tolerance = fields.at("largest_tolerance");
  if (fields.contains("first_bad")) found.first_bad = deviation_of(fields.at("first_bad"));
  if (fields.contains("first_bad_tensor"))
    found.first_bad_tensor = deviation_of(fields.at("first_bad_tensor"));
  return found;
}

json head_of(const VerifyRequest& request, const Shard& shard, const json& facts) {
  return {{"schema", kKind.schema},
          {"shard", shard.text()},
          {"request",
           {{"config", fs::absolute(request.config_file).string()},
            {"overrides", request.overrides},
            {"layouts", request.layouts},
            {"ranks", request.ranks},
            {"steps", request.steps},
            {"tolerance", request.tolerance},
            {"device", request.device},
            {"device_library", request.device_library},
            {"device_plugin", request.device_plugin},
            {"backend", request.backend},
            {"instance", request.instance},
            {"seed_bug", request.seed_bug}}},
          {"facts", facts}};
}

[[noreturn]] void throw_damaged(const fs::path& file, std::size_t line, const char* why) {
  throw ConfigError(file.string() + ":" + std::to_string(line) + ": the journal is damaged: " +
                    terminal_line(why) + "; remove the line or the file");
}

std::vector<JournalFile> journals_in(const std::vector<std::string>& folders) {
  std::vector<JournalFile> journals;
  for (const std::string& folder : folders) journals.push_back(read_journal(kKind, folder));
  return journals;
}

}  // namespace

json to_json(const Deviation& deviation) {
  return {{"what", deviation.what},
          {"layer", deviation.layer},
          {"error", deviation.error},
          {"by_share", deviation.by_share},
          {"tolerance", deviation.tolerance}};
}

VerifyJournal::VerifyJournal(const VerifyRequest& request, const Shard& shard, const json& facts)
    : writer_(std::make_unique<JournalWriter>(kKind, request.out, head_of(request, shard, facts))) {
  take(writer_->found());
}

VerifyJournal::VerifyJournal(const VerifyRequest& request, const json& facts) {
  const std::vector<JournalFile> journals = journals_in(request.merge);
  check_all_shards(journals, facts);
  for (const JournalFile& journal : journals) take(journal);
}

void VerifyJournal::take(const JournalFile& journal) {
  for (std::size_t i = 0; i < journal.results.size(); ++i) {
    const json& line = journal.results[i];
    try {
      if (!line.contains("derived")) {
        found_[{line.at("layout"), line.at("precision")}] = comparison_of(line.at("comparison"));
        continue;
      }
      const json& derived = line.at("derived");
      derived_ = {derived.at("smallest"), derived.at("largest"), derived.at("times_the_noise"),
                  derived.at("capped")};
    } catch (const json::exception& error) {
      throw_damaged(journal.file, i + 2, error.what());
    }
  }
}

std::optional<Comparison> VerifyJournal::find(const Layout& layout,
                                              const std::string& precision) const {
  const auto found = found_.find({to_string(layout), precision});
  if (found == found_.end()) return std::nullopt;
  return found->second;
}

void VerifyJournal::add(const LayoutResult& result) {
  if (writer_)
    writer_->append({{"layout", to_string(result.layout)},
                     {"precision", result.precision},
                     {"comparison", to_json(*result.comparison)}});
}

void VerifyJournal::add(const DerivedTolerances& derived) {
  if (writer_)
    writer_->append({{"derived",
                      {{"smallest", derived.smallest},
                       {"largest", derived.largest},
                       {"times_the_noise", derived.times_the_noise},
                       {"capped", derived.num_capped}}}});
}

VerifyRequest merged_request(const std::vector<std::string>& folders) {
  const JournalFile first = journals_in(folders).front();
  VerifyRequest request;
  try {
    const json& fields = first.head.at("request");
    request.config_file = fields.at("config");
    request.overrides = fields.at("overrides").get<std::vector<std::string>>();
    request.layouts = fields.at("layouts");
    request.ranks = fields.at("ranks");
    request.steps = fields.at("steps");
    request.tolerance = fields.at("tolerance");
    request.device = fields.at("device");
    request.device_library = fields.at("device_library");
    request.device_plugin = fields.at("device_plugin");
    request.backend = fields.at("backend");
    request.instance = fields.at("instance");
    request.seed_bug = fields.at("seed_bug");
  } catch (const json::exception& error) {
    throw_damaged(first.file, 1, error.what());
  }
  request.merge = folders;
  return request;
}

}  // namespace trellis::trainer
