#include "trainer/files/data/hf_dataset.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "trainer/files/data/records/saved_dataset.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kNoLoss = -100;
constexpr std::array<const char*, 3> kColumns = {"input_ids", "labels", "attention_mask"};
enum Column { kInputIds, kLabels, kAttentionMask };

template <typename T>
T value_of(arrow::Result<T> result, const std::string& file, const std::string& what) {
  if (!result.ok())
    throw ConfigError(file + ": " + what + ": " + result.status().message() +
                      "; save the data set again with datasets' save_to_disk");
  return std::move(result).ValueUnsafe();
}

/// Values begin … begin + length − 1 of an integer array.
template <typename Array>
void copy_values(const arrow::Array& values, std::int64_t begin, std::int64_t length,
                 std::int64_t* out) {
  const auto* raw = static_cast<const Array&>(values).raw_values() + begin;
  std::copy_n(raw, length, out);
}

bool copy_integers(const arrow::Array& values, std::int64_t begin, std::int64_t length,
                   std::int64_t* out) {
  switch (values.type_id()) {
    case arrow::Type::INT8: copy_values<arrow::Int8Array>(values, begin, length, out); return true;
    case arrow::Type::INT16:
      copy_values<arrow::Int16Array>(values, begin, length, out);
      return true;
    case arrow::Type::INT32:
      copy_values<arrow::Int32Array>(values, begin, length, out);
      return true;
    case arrow::Type::INT64:
      copy_values<arrow::Int64Array>(values, begin, length, out);
      return true;
    case arrow::Type::UINT8:
      copy_values<arrow::UInt8Array>(values, begin, length, out);
      return true;
    case arrow::Type::UINT16:
      copy_values<arrow::UInt16Array>(values, begin, length, out);
      return true;
    case arrow::Type::UINT32:
      copy_values<arrow::UInt32Array>(values, begin, length, out);
      return true;
    default: return false;
  }
}

/// Where row `row` of a list column lies in its values.
std::optional<std::pair<std::int64_t, std::int64_t>> range_of(const arrow::Array& lists,
                                                              std::int64_t row) {
  const auto range = [&](const auto& list) {
    return std::pair<std::int64_t, std::int64_t>{list.value_offset(row), list.value_length(row)};
  };
  switch (lists.type_id()) {
    case arrow::Type::LIST: return range(static_cast<const arrow::ListArray&>(lists));
    case arrow::Type::LARGE_LIST: return range(static_cast<const arrow::LargeListArray&>(lists));
    case arrow::Type::FIXED_SIZE_LIST:
      return range(static_cast<const arrow::FixedSizeListArray&>(lists));
    default: return std::nullopt;
  }
}

const arrow::Array& values_of(const arrow::Array& lists) {
  switch (lists.type_id()) {
    case arrow::Type::LIST: return *static_cast<const arrow::ListArray&>(lists).values();
    case arrow::Type::LARGE_LIST: return *static_cast<const arrow::LargeListArray&>(lists).values();
    default: return *static_cast<const arrow::FixedSizeListArray&>(lists).values();
  }
}

/// One record batch: rows first … first + rows − 1 of the data set.
struct Batch {
  std::int64_t first = 0, rows = 0;
  std::size_t file = 0;
  std::array<std::shared_ptr<arrow::Array>, kColumns.size()>
      columns;  ///< null: the column is absent
};

class HfDataset : public SampleSource {
 public:
  HfDataset(const std::string& directory, std::int64_t sequence_length, const std::string& key)
      : files_(files_of_saved_dataset(directory, key + ": " + directory)),
        sequence_length_(sequence_length) {
    for (std::size_t file = 0; file < files_.size(); ++file) read_file(file);
    if (num_samples_ == 0) throw ConfigError(key + ": " + directory + ": the data set has no rows");
  }

  std::int64_t num_samples() const override { return num_samples_; }
  std::int64_t num_tokens() const override { return num_samples_ * sequence_length_; }

  Sample item(std::int64_t index) const override {
    const std::int64_t row = index < 0 ? num_samples_ - 1 : index;
    const Batch& batch = *std::prev(std::ranges::upper_bound(batches_, row, {}, &Batch::first));
    Sample sample;
    sample.tokens = column(batch, kInputIds, row);
    const std::vector<std::int64_t> labels =
        batch.columns[kLabels] ? column(batch, kLabels, row) : sample.tokens;
    std::vector<std::int64_t> attention(sample.tokens.size(), 1);
    if (batch.columns[kAttentionMask]) attention = column(batch, kAttentionMask, row);
    check_attention(batch, row, attention);
    sample.labels.assign(labels.size(), kNoLoss);
    for (std::size_t i = 0; i + 1 < labels.size(); ++i) {
      if (attention[i + 1] != 0) sample.labels[i] = labels[i + 1];
    }
    if (index < 0) sample.loss_mask.assign(sample.tokens.size(), 0.0F);
    return sample;
  }

 private:
  void read_file(std::size_t file) {
    const std::string& path = files_[file];
    check_end(path);
    const auto stream = value_of(arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ),
                                 path, "cannot map");
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.use_threads = false;
    const auto reader = value_of(arrow::ipc::RecordBatchStreamReader::Open(stream, options), path,
                                 "no Arrow stream");
    while (true) {
      const auto record =
          value_of(reader->Next(), path, "record batch " + std::to_string(batches_.size()));
      if (!record) return;
      add_batch(*record, file);
    }
  }

  /// Arrow takes the end of a file for the end of its stream, and so misses files cut between two
  /// batches: the end marker shows them.
  static void check_end(const std::string& path) {
    const MappedFile file(path);
    if (file.size() < 8 || file.at<std::uint32_t>(file.size() - 4) != 0) {
      throw ConfigError(
          path + ": offset " + std::to_string(file.size()) +
          ": the Arrow stream has no end marker: the file is truncated; copy the data set again");
    }
  }

  void add_batch(const arrow::RecordBatch& record, std::size_t file) {
    Batch batch{num_samples_, record.num_rows(), file, {}};
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      const auto array = record.GetColumnByName(kColumns[c]);
      if (!array) continue;
      if (const auto status = array->ValidateFull(); !status.ok())
        corrupt(file, num_samples_, kColumns[c], status.message());
      if (!range_of_type(*array))
        corrupt(file, num_samples_, kColumns[c],
                "expected lists of whole numbers, got " + array->type()->ToString());
      batch.columns[c] = array;
    }
    if (!batch.columns[kInputIds])
      corrupt(file, num_samples_, kColumns[kInputIds],
              "there is no such column; the file has " + record.schema()->ToString());
    if (batch.rows == 0) return;
    num_samples_ += batch.rows;
    batches_.push_back(std::move(batch));
  }

  static bool range_of_type(const arrow::Array& lists) {
    const auto id = lists.type_id();
    if (id != arrow::Type::LIST && id != arrow::Type::LARGE_LIST &&
        id != arrow::Type::FIXED_SIZE_LIST)
      return false;
    return copy_integers(values_of(lists), 0, 0, nullptr);
  }

  std::vector<std::int64_t> column(const Batch& batch, Column which, std::int64_t row) const {
    const arrow::Array& lists = *batch.columns[which];
    const arrow::Array& values = values_of(lists);
    const auto [begin, length] = *range_of(lists, row - batch.first);
    if (lists.IsNull(row - batch.first))
      corrupt(batch.file, row, kColumns[which], "expected a list, got null");
    if (length != sequence_length_) {
      corrupt(batch.file, row, kColumns[which],
              "expected model.encoder_seq_length = " + std::to_string(sequence_length_) +
                  " numbers, got " + std::to_string(length) +
                  ": tokenise the data to that length, or change it");
    }
    if (values.null_count() > 0)
      corrupt(batch.file, row, kColumns[which], "expected numbers, got nulls among them");
    std::vector<std::int64_t> out(static_cast<std::size_t>(length));
    copy_integers(values, begin, length, out.data());
    return out;
  }

  void check_attention(const Batch& batch, std::int64_t row,
                       const std::vector<std::int64_t>& attention) const {
    const auto padding = std::ranges::find(attention, 0);
    if (std::any_of(padding, attention.end(), [](std::int64_t a) { return a != 0; })) {
      corrupt(batch.file, row, kColumns[kAttentionMask],
              "expected ones, then zeros (padding at the right), got a one after a zero at place " +
                  std::to_string(padding - attention.begin()) + ": pad at the right");
    }
  }

  [[noreturn]] void corrupt(std::size_t file, std::int64_t row, const std::string& column,
                            const std::string& what) const {
    throw ConfigError(files_[file] + ": row " + std::to_string(row) + " of the data set, column " +
                      column + ": " + what);
  }

  std::vector<std::string> files_;
  std::int64_t sequence_length_;
  std::vector<Batch> batches_;
  std::int64_t num_samples_ = 0;
};

}  // namespace

std::shared_ptr<const SampleSource> open_hf_dataset(const std::string& directory,
                                                    std::int64_t sequence_length,
                                                    const std::string& key) {
  return std::make_shared<const HfDataset>(directory, sequence_length, key);
}

}  // namespace trellis::trainer
