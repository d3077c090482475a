#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "trainer/config/fields.h"
#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

std::optional<double> as_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

void tokenizer_fields(Fields& fields, TokenizerSection& s) {
  fields.form(
      "library",
      [&](SectionReader& r) {
        // NxDT's alignment data modules read nothing but the type.
        const std::string unnamed = r.has_value("type") ? "huggingface" : s.library;
        s.library =
            r.one_of("library", unnamed,
                     {"byte-level", "huggingface", "megatron", "sentencepiece", "tiktoken"});
      },
      [&](YamlWriter& out) { out.text("library", s.library); });
  fields.text_or_null("type", s.type);
  fields.text_or_null("model", s.model);
  fields.text_or_null("vocab_file", s.vocab_file);
  fields.text_or_null("merge_file", s.merge_file);
}

TokenizerSection read_tokenizer(SectionReader reader) {
  TokenizerSection section;
  Fields fields = Fields::reading(reader);
  tokenizer_fields(fields, section);
  if (!reader.good({"library"})) return section;
  const auto needs = [&](const char* key, const std::string& value, const char* example) {
    if (value.empty() && reader.good({key})) {
      reader.problem(key,
                     fmt::format("the library {} needs it, such as {}", section.library, example));
    }
  };
  if (section.library == "huggingface")
    needs("type", section.type, "a directory with tokenizer.json");
  if (section.library == "sentencepiece") needs("model", section.model, "/path/to/tokenizer.model");
  if (section.library == "tiktoken") needs("model", section.model, "/path/to/tokenizer.model");
  if (section.library == "megatron") needs("type", section.type, "GPT2BPETokenizer");
  if (section.library == "megatron" && section.type == "GPTSentencePieceTokenizer")
    needs("model", section.model, "/path/to/tokenizer.model");
  return section;
}

/// "[weight, path, weight, path, …]", "[path]" or "path".
std::vector<DataPrefix> read_prefixes(SectionReader& reader, const std::string& key) {
  if (const std::string path = reader.raw(key); !path.empty()) return {{1, path}};
  const auto entries = reader.optional<std::vector<std::string>>(key);
  if (!entries) return {};
  if (entries->size() == 1) return {{1, entries->front()}};
  if (entries->empty() || entries->size() % 2 != 0) {
    reader.problem(key,
                   fmt::format("expected [path] or [weight, path, weight, path, …], got {} entries",
                               entries->size()));
    return {};
  }
  std::vector<DataPrefix> prefixes;
  for (std::size_t i = 0; i < entries->size(); i += 2) {
    const auto weight = as_number((*entries)[i]);
    if (!weight || *weight <= 0) {
      reader.problem(key, fmt::format("expected a weight greater than 0 in front of {}, got '{}'",
                                      (*entries)[i + 1], (*entries)[i]));
      return {};
    }
    prefixes.push_back({*weight, (*entries)[i + 1]});
  }
  return prefixes;
}

/// Three numbers, separated by ',' or '/'.
std::vector<double> read_splits(SectionReader& reader, const std::string& text) {
  std::vector<double> splits;
  std::string part;
  const char separator = text.find('/') != std::string::npos ? '/' : ',';
  for (std::istringstream stream(text); std::getline(stream, part, separator);) {
    const auto begin = part.find_first_not_of(' ');
    const auto value = begin == std::string::npos
                           ? std::nullopt
                           : as_number(part.substr(begin, part.find_last_not_of(' ') + 1 - begin));
    if (!value || *value < 0) {
      reader.problem("splits_string",
                     fmt::format("expected three numbers such as 980,10,10, got '{}'", text));
      return {};
    }
    splits.push_back(*value);
  }
  if (splits.size() == 3 && splits[0] + splits[1] + splits[2] > 0) return splits;
  reader.problem("splits_string", splits.size() == 3
                                      ? "one of the three numbers must be greater than 0"
                                      : fmt::format("expected three numbers (training, validation, "
                                                    "test) such as 980,10,10, got {}: '{}'",
                                                    splits.size(), text));
  return {};
}

void read_prefixes_by_split(SectionReader& reader, DataSection& section) {
  SectionReader lists = reader.section("data_prefix");
  const std::vector<std::string> names = {"train", "validation", "test"};
  for (const std::string& name : names) {
    if (!lists.has_value(name)) {
      lists.problem(name, "a data_prefix by split needs all of train, validation and test");
    } else {
      section.data_prefix_by_split[name] = read_prefixes(lists, name);
    }
  }
  for (const std::string& key : lists.keys()) {
    if (std::ranges::find(names, key) == names.end())
      lists.problem(key, "unknown split; expected train, validation and test");
  }
  if (reader.has_value("splits_string"))
    reader.warn("splits_string", "has no effect: data_prefix names the data of each split");
}

void read_megatron(SectionReader& reader, DataSection& section) {
  section.kind = DataKind::kMegatron;
  if (reader.is_map("data_prefix")) {
    read_prefixes_by_split(reader, section);
  } else {
    section.data_prefix = read_prefixes(reader, "data_prefix");
    const auto splits = reader.optional<std::string>("splits_string");
    if (splits) section.splits = read_splits(reader, *splits);
    if (!reader.has_value("splits_string"))
      reader.problem("splits_string",
                     "this key is required and missing; expected three numbers such as 980,10,10");
  }
  if (!reader.has_value("dataloader_type"))
    reader.problem("dataloader_type",
                   "this key is required and missing; expected single or cyclic");
}

void read_flags(SectionReader& reader, DataSection& section) {
  section.index_mapping_dir = reader.get<std::string>("index_mapping_dir", "");
  section.cyclic = reader.one_of("dataloader_type", "single", {"single", "cyclic"}) == "cyclic";
  section.drop_last = reader.get<bool>("drop_last", section.drop_last);
  section.validation_drop_last =
      reader.get<bool>("validation_drop_last", section.validation_drop_last);
  section.reset_position_ids = reader.get<bool>("reset_position_ids", section.reset_position_ids);
  section.eod_mask_loss = reader.get<bool>("eod_mask_loss", section.eod_mask_loss);
  section.no_seqlen_plus_one_input_tokens =
      reader.get<bool>("no_seqlen_plus_one_input_tokens", section.no_seqlen_plus_one_input_tokens);
  section.num_workers = reader.get<int>("num_workers", section.num_workers);
  if (section.num_workers < 0)
    reader.problem("num_workers", fmt::format("must not be negative, got {}", section.num_workers));
  section.num_workers =
      reader.at_most("num_workers", section.num_workers, 1024, "so many batches are read ahead");
}

/// Keys that one kind of data reads.
void warn_of_unread_keys(SectionReader& reader, const DataSection& section) {
  const auto warn = [&](const char* key, bool written, const char* kind) {
    if (written) reader.warn(key, fmt::format("has no effect: {} it", kind));
  };
  const bool megatron = section.kind == DataKind::kMegatron;
  if (!megatron) {
    constexpr const char* kOnlyMegatron = "only indexed data (data_prefix) read";
    warn("index_mapping_dir", !section.index_mapping_dir.empty(), kOnlyMegatron);
    warn("reset_position_ids", section.reset_position_ids, kOnlyMegatron);
    warn("eod_mask_loss", section.eod_mask_loss, kOnlyMegatron);
    warn("no_seqlen_plus_one_input_tokens", section.no_seqlen_plus_one_input_tokens, kOnlyMegatron);
  }
  if (section.kind != DataKind::kAlignment) {
    constexpr const char* kOnlyRecords = "only records of model_alignment_strategy have";
    warn("dev_choose_samples", section.records.dev_choose_samples > 0, kOnlyRecords);
    warn("shuffle", !section.records.shuffle, kOnlyRecords);
  } else {
    warn("dataloader_type", section.cyclic, "records are shuffled as `shuffle` says, without");
  }
  if (section.kind == DataKind::kText)
    warn("dataloader_type", section.cyclic,
         "text is shuffled in every epoch; indexed and Hugging Face data read");
  if (!section.cyclic) warn("drop_last", !section.drop_last, "only dataloader_type cyclic reads");
}

}  // namespace

DataSection read_data(SectionReader& reader, bool hf, const AlignmentSection& alignment) {
  DataSection section;
  section.micro_batch_size = reader.required_positive("micro_batch_size");
  section.global_batch_size = reader.required_positive("global_batch_size");
  section.train_dir = reader.get<std::string>("train_dir", "");
  section.val_dir = reader.get<std::string>("val_dir", "");
  section.test_dir = reader.get<std::string>("test_dir", "");
  section.tokenizer = read_tokenizer(reader.section("tokenizer"));
  read_flags(reader, section);
  const bool tokenizes = !reader.section("tokenizer").empty();
  section.records = alignment.records;
  section.records.dev_choose_samples = reader.optional_positive("dev_choose_samples").value_or(0);
  section.records.shuffle = reader.get<bool>("shuffle", section.records.shuffle);
  if (!alignment.strategy.empty()) {
    section.kind = DataKind::kAlignment;
  } else if (reader.has_value("data_prefix")) {
    read_megatron(reader, section);
    if (!section.train_dir.empty())
      reader.problem("train_dir", "excludes data_prefix; remove one of them");
  } else if (hf && !section.train_dir.empty() && !tokenizes) {
    section.kind = DataKind::kHfDataset;
  }
  if (section.kind != DataKind::kMegatron && reader.has_value("splits_string")) {
    reader.problem("splits_string", "splits the data of data_prefix, which is missing");
  }
  warn_of_unread_keys(reader, section);
  return section;
}

void write_tokenizer(YamlWriter& out, TokenizerSection section, const YamlMap& source) {
  out.open("tokenizer");
  Fields fields = Fields::writing(out);
  tokenizer_fields(fields, section);
  out.keep(source, "data.tokenizer");
  out.close();
}

void list_tokenizer_keys(Fields& fields) {
  TokenizerSection section;
  tokenizer_fields(fields, section);
}

}  // namespace trellis::trainer
