#include "trainer/files/data/hf_dataset_builder.h"

#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>
#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/output_error.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kData = "data-00000-of-00001.arrow";
constexpr const char* kInfo = "dataset_info.json";
constexpr const char* kState = "state.json";
constexpr std::int64_t kBatchRows = 1000;  ///< of a record batch, as `datasets` has them

/// Columns in the types that `datasets` gives a tokenizer's output.
constexpr std::array<std::pair<const char*, const char*>, 3> kFeatures = {
    {{"input_ids", "int32"}, {"attention_mask", "int8"}, {"labels", "int64"}}};

/// "Sequence" is the word of every version of `datasets`; the newest ones write "List".
ordered_json features() {
  ordered_json result;
  for (const auto& [name, type] : kFeatures)
    result[name] = {{"feature", {{"dtype", type}, {"_type", "Value"}}}, {"_type", "Sequence"}};
  return result;
}

bool is_own(const fs::path& file) {
  const fs::path name = file.extension() == ".partial" ? file.stem() : file.filename();
  return name == kData || name == kInfo || name == kState;
}

/// Makes the folder. Returns true if it is new; throws ConfigError if it holds files of others.
bool prepare(const fs::path& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  const auto wrong = [&](const std::string& what) {
    throw ConfigError("--output " + directory.string() + ": " + what);
  };
  if (error) wrong("the folder cannot be made: " + error.message());
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!is_own(entry.path()))
      wrong("the folder holds " + entry.path().filename().string() +
            ", which is of no data set that this command writes: name another folder");
  }
  if (error) wrong(error.message());
  return made;
}

}  // namespace

struct HfDatasetBuilder::Impl {
  explicit Impl(fs::path folder)
      : directory(std::move(folder)), partial(directory / (std::string(kData) + ".partial")) {
    made_folder = prepare(directory);
    out = value(arrow::io::FileOutputStream::Open(partial.string()));
    const ordered_json metadata = {{"info", {{"features", features()}}}};
    schema = arrow::schema({arrow::field("input_ids", arrow::list(arrow::int32())),
                            arrow::field("attention_mask", arrow::list(arrow::int8())),
                            arrow::field("labels", arrow::list(arrow::int64()))},
                           arrow::KeyValueMetadata::Make({"huggingface"}, {metadata.dump()}));
    writer = value(arrow::ipc::MakeStreamWriter(out, schema));
  }
  ~Impl() {
    std::error_code ignored;
    if (finished) return;
    fs::remove(partial, ignored);
    if (made_folder) fs::remove(directory, ignored);
  }

  void check(const arrow::Status& status) const {
    if (!status.ok()) throw OutputError(directory.string() + ": " + status.message());
  }
  template <typename T>
  T value(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

  void write_batch() {
    if (ids.length() == 0) return;
    const std::int64_t length = ids.length();
    const arrow::ArrayVector columns = {value(ids.Finish()), value(mask.Finish()),
                                        value(labels.Finish())};
    check(writer->WriteRecordBatch(*arrow::RecordBatch::Make(schema, length, columns)));
  }

  fs::path directory, partial;
  std::shared_ptr<arrow::Schema> schema;
  std::shared_ptr<arrow::io::FileOutputStream> out;
  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer;
  std::shared_ptr<arrow::Int32Builder> id_values = std::make_shared<arrow::Int32Builder>();
  std::shared_ptr<arrow::Int8Builder> mask_values = std::make_shared<arrow::Int8Builder>();
  std::shared_ptr<arrow::Int64Builder> label_values = std::make_shared<arrow::Int64Builder>();
  arrow::ListBuilder ids{arrow::default_memory_pool(), id_values},
      mask{arrow::default_memory_pool(), mask_values},
      labels{arrow::default_memory_pool(), label_values};
  ContentHasher content;
  std::int64_t rows = 0;
  bool made_folder = false, finished = false;
};

HfDatasetBuilder::HfDatasetBuilder(std::string directory)
    : impl_(std::make_unique<Impl>(std::move(directory))) {}

HfDatasetBuilder::~HfDatasetBuilder() = default;

std::int64_t HfDatasetBuilder::num_rows() const { return impl_->rows; }

void HfDatasetBuilder::add(const HfRow& row) {
  Impl& data = *impl_;
  const auto length = static_cast<std::int64_t>(row.input_ids.size());
  std::vector<std::int8_t> attention(row.input_ids.size(), 0);
  std::fill_n(attention.begin(), row.attended, 1);
  data.check(data.ids.Append());
  data.check(data.id_values->AppendValues(row.input_ids.data(), length));
  data.check(data.mask.Append());
  data.check(data.mask_values->AppendValues(attention.data(), length));
  data.check(data.labels.Append());
  data.check(data.label_values->AppendValues(row.labels.data(), length));
  data.content.value(length);
  data.content.value(row.attended);
  data.content.bytes(row.input_ids.data(), row.input_ids.size() * sizeof row.input_ids[0]);
  data.content.bytes(row.labels.data(), row.labels.size() * sizeof row.labels[0]);
  if (++data.rows % kBatchRows == 0) data.write_batch();
}

void HfDatasetBuilder::finish() {
  Impl& data = *impl_;
  data.write_batch();
  data.check(data.writer->Close());
  data.check(data.out->Close());
  std::error_code error;
  fs::remove(data.directory / kState, error);  // it names the data of before
  fs::rename(data.partial, data.directory / kData, error);
  if (error) throw OutputError(data.directory / kData, error.value());
  data.finished = true;
  const ordered_json info = {{"citation", ""},
                             {"description", ""},
                             {"features", features()},
                             {"homepage", ""},
                             {"license", ""}};
  write_file_atomically(data.directory / kInfo, info.dump(2) + "\n");
  const ordered_json state = {{"_data_files", {{{"filename", kData}}}},
                              {"_fingerprint", data.content.finish().to_string().substr(0, 16)},
                              {"_format_columns", nullptr},
                              {"_format_kwargs", ordered_json::object()},
                              {"_format_type", nullptr},
                              {"_output_all_columns", false},
                              {"_split", nullptr}};
  write_file_atomically(data.directory / kState, state.dump(2) + "\n");
}

}  // namespace trellis::trainer
