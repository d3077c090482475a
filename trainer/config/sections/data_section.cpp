#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "trainer/config/reader/fields.h"
#include "trainer/config/reader/yaml_writer.h"
#include "trainer/config/sections/sections.h"

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
  fields.own().one_of("special_tokens", s.special_tokens, {"nxdt", "post_processor"});
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

void read_splits_string(SectionReader& reader, DataSection& s) {
  if (s.kind != DataKind::kMegatron) {
    if (reader.has_value("splits_string"))
      reader.problem("splits_string", "splits the data of data_prefix, which is missing");
    return;
  }
  if (reader.is_map("data_prefix")) return;
  const auto splits = reader.optional<std::string>("splits_string");
  if (splits) s.splits = read_splits(reader, *splits);
  if (!reader.has_value("splits_string"))
    reader.problem("splits_string",
                   "this key is required and missing; expected three numbers such as 980,10,10");
}

void read_data_prefix(SectionReader& reader, DataSection& s) {
  if (s.kind != DataKind::kMegatron) return;
  if (reader.is_map("data_prefix")) {
    read_prefixes_by_split(reader, s);
  } else {
    s.data_prefix = read_prefixes(reader, "data_prefix");
  }
  if (!s.train_dir.empty()) reader.problem("train_dir", "excludes data_prefix; remove one of them");
}

void read_dataloader_type(SectionReader& reader, DataSection& s) {
  s.cyclic = reader.one_of("dataloader_type", "single", {"single", "cyclic"}) == "cyclic";
  if (s.kind == DataKind::kMegatron && !reader.has_value("dataloader_type"))
    reader.problem("dataloader_type",
                   "this key is required and missing; expected single or cyclic");
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

std::string prefix_list(const std::vector<DataPrefix>& prefixes) {
  std::string list;
  for (const DataPrefix& prefix : prefixes) {
    list += (list.empty() ? "" : ", ") +
            fmt::format("{}, {}", prefix.weight, YamlWriter::quoted(prefix.path));
  }
  return "[" + list + "]";
}

void write_data_prefix(YamlWriter& out, const DataSection& s) {
  if (s.kind != DataKind::kMegatron) return;
  if (s.data_prefix_by_split.empty()) return out.raw("data_prefix", prefix_list(s.data_prefix));
  out.open("data_prefix");
  for (const auto& [split, prefixes] : s.data_prefix_by_split)
    out.raw(split, prefix_list(prefixes));
  out.close();
}

/// Settings outside section `data` that decide the kind of the data.
struct DataSurroundings {
  bool hf = false;         ///< model_source is hf
  bool alignment = false;  ///< there is a model_alignment_strategy
};

DataKind kind_of(SectionReader& reader, const DataSection& s, const DataSurroundings& around) {
  if (around.alignment) return DataKind::kAlignment;
  if (reader.has_value("data_prefix")) return DataKind::kMegatron;
  // With a tokenizer, an hf model's train_dir is text.
  const bool tokenizes = !reader.section("tokenizer").empty();
  return around.hf && !s.train_dir.empty() && !tokenizes ? DataKind::kHfDataset : DataKind::kText;
}

void source_fields(Fields& fields, DataSection& s, const DataSurroundings& around) {
  fields.required_positive("micro_batch_size", s.micro_batch_size);
  fields.required_positive("global_batch_size", s.global_batch_size);
  fields.text_or_null("train_dir", s.train_dir);
  fields.text_or_null("val_dir", s.val_dir);
  fields.text_or_null("test_dir", s.test_dir);
  fields.only_read("seq_length");  // a rule between sections compares it with the model's length
  fields.rule([&](SectionReader& r) { s.kind = kind_of(r, s, around); });
  fields.form(
      "data_prefix", [&](SectionReader& r) { read_data_prefix(r, s); },
      [&](YamlWriter& out) { write_data_prefix(out, s); });
  fields.form(
      "splits_string", [&](SectionReader& r) { read_splits_string(r, s); },
      [&](YamlWriter& out) {
        if (s.kind == DataKind::kMegatron && s.data_prefix_by_split.empty())
          out.text("splits_string",
                   fmt::format("{},{},{}", s.splits.at(0), s.splits.at(1), s.splits.at(2)));
      });
}

void data_fields(Fields& fields, DataSection& s, const DataSurroundings& around) {
  source_fields(fields, s, around);
  fields.text_or_null("index_mapping_dir", s.index_mapping_dir);
  fields.form(
      "dataloader_type", [&](SectionReader& r) { read_dataloader_type(r, s); },
      [&](YamlWriter& out) { out.text("dataloader_type", s.cyclic ? "cyclic" : "single"); });
  fields.boolean("drop_last", s.drop_last);
  fields.boolean("validation_drop_last", s.validation_drop_last);
  fields.boolean("reset_position_ids", s.reset_position_ids);
  fields.boolean("eod_mask_loss", s.eod_mask_loss);
  fields.boolean("no_seqlen_plus_one_input_tokens", s.no_seqlen_plus_one_input_tokens);
  fields.non_negative("num_workers", s.num_workers);
  fields.rule([&](SectionReader& r) {
    s.num_workers = r.at_most("num_workers", s.num_workers, 1024, "so many batches are read ahead");
  });
  fields.form(
      "dev_choose_samples",
      [&](SectionReader& r) {
        s.records.dev_choose_samples = r.optional_positive("dev_choose_samples").value_or(0);
      },
      [&](YamlWriter& out) {
        if (s.kind == DataKind::kAlignment && s.records.dev_choose_samples > 0)
          out.integer("dev_choose_samples", s.records.dev_choose_samples);
      });
  fields.own().form(
      "shuffle",
      [&](SectionReader& r) { s.records.shuffle = r.get<bool>("shuffle", s.records.shuffle); },
      [&](YamlWriter& out) {
        if (s.kind == DataKind::kAlignment) out.boolean("shuffle", s.records.shuffle);
      });
  fields.rule([&](SectionReader& r) { warn_of_unread_keys(r, s); });
}

void write_tokenizer(YamlWriter& out, TokenizerSection section, const YamlMap& source) {
  out.open("tokenizer");
  Fields fields = Fields::writing(out);
  tokenizer_fields(fields, section);
  out.keep(source, "data.tokenizer");
  out.close();
}

}  // namespace

DataSection read_data(SectionReader& reader, bool hf, const AlignmentSection& alignment) {
  DataSection section;
  section.tokenizer = read_tokenizer(reader.section("tokenizer"));
  section.records = alignment.records;
  Fields fields = Fields::reading(reader);
  data_fields(fields, section, {hf, !alignment.strategy.empty()});
  return section;
}

void write_data(YamlWriter& out, DataSection section, const YamlMap& source) {
  out.open("data");
  Fields fields = Fields::writing(out);
  data_fields(fields, section, {});
  // With a tokenizer, an hf model's train_dir would be text.
  if (section.kind != DataKind::kHfDataset)
    write_tokenizer(out, section.tokenizer, source.map("tokenizer"));
  out.keep(source, "data");
  out.close();
}

void list_data_keys(Fields& fields) {
  DataSection section;
  data_fields(fields, section, {});
}

void list_tokenizer_keys(Fields& fields) {
  TokenizerSection section;
  tokenizer_fields(fields, section);
}

}  // namespace trellis::trainer
