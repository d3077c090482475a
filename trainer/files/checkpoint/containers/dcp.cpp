#include "trainer/files/checkpoint/containers/dcp.h"

#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/dcp_metadata.h"

namespace trellis::checkpoint {
namespace {

/// Open data files, and entries that are read in one go.
constexpr std::size_t kMostOpen = 64;
constexpr std::int64_t kSmallEntry = std::int64_t{256} << 10;
constexpr std::int64_t kMostMetadata = std::int64_t{4} << 30;

/// One entry of a data file, which goes on after it.
class EntryFile : public WritableFile {
 public:
  EntryFile(WritableFile& file, std::int64_t& length) : file_(file), length_(length) {}
  void write(std::span<const std::byte> bytes) override {
    file_.write(bytes);
    length_ += static_cast<std::int64_t>(bytes.size());
  }
  void close() override {}

 private:
  WritableFile& file_;
  std::int64_t& length_;
};

}  // namespace

struct DcpReader::Files {
  std::shared_ptr<RecordChecks> checks = std::make_shared<RecordChecks>();
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const ReadableFile>> open;
  std::string last_key;  ///< of the chunk that was read last: reads of one chunk come in a row
  std::shared_ptr<const TorchFileReader> last;
};

DcpReader::DcpReader(std::shared_ptr<Storage> storage, std::string folder)
    : storage_(std::move(storage)), folder_(std::move(folder)), files_(std::make_unique<Files>()) {
  const auto file = storage_->open(join_path(folder_, kDcpMetadataFile));
  if (file->size() > kMostMetadata)
    throw ConfigError(file->name() + ": " + std::to_string(file->size()) + " bytes");
  std::vector<std::byte> pickle(static_cast<std::size_t>(file->size()));
  file->read(0, pickle);
  metadata_ = parse_dcp_metadata(pickle, file->name());
}
DcpReader::~DcpReader() = default;

std::shared_ptr<const ReadableFile> DcpReader::part(const DcpPlace& place,
                                                    const std::string& what) const {
  std::shared_ptr<const ReadableFile> file;
  {
    const std::lock_guard lock(files_->mutex);
    if (const auto known = files_->open.find(place.file); known != files_->open.end())
      file = known->second;
  }
  if (!file) {
    file = storage_->open(join_path(folder_, place.file));
    const std::lock_guard lock(files_->mutex);
    if (files_->open.size() >= kMostOpen) files_->open.clear();
    files_->open.emplace(place.file, file);
  }
  const std::string name = file->name() + ", " + what;
  auto range = file_range(file, place.offset, place.length, name);
  if (place.length > kSmallEntry) return range;
  std::vector<std::byte> content(static_cast<std::size_t>(place.length));
  range->read(0, content);
  return file_in_memory(std::move(content), name);
}

void DcpReader::read_chunk(const std::string& tensor, std::size_t chunk, std::int64_t first_byte,
                           std::span<std::byte> into) const {
  const DcpTensor& whole = metadata_.tensors.at(tensor);
  const DcpChunk& box = whole.chunks.at(chunk);
  const std::string key = std::to_string(chunk) + ' ' + tensor;
  std::shared_ptr<const TorchFileReader> reader;
  {
    const std::lock_guard lock(files_->mutex);
    if (files_->last_key == key) reader = files_->last;
  }
  if (!reader) {
    const std::string what =
        "'" + terminal_line(tensor) + "' at " + Value::size(box.offsets).text(80);
    reader = std::make_shared<const TorchFileReader>(part(box.place, what), std::set<std::string>{},
                                                     files_->checks);
    if (!reader->root().is_tensor())
      throw ConfigError(reader->name() + ": expected a tensor, got " + reader->root().text(80));
    const TensorMeta& meta =
        reader->tensors()[static_cast<std::size_t>(reader->root().as_tensor())].meta;
    if (meta.dtype != whole.meta.dtype || meta.shape != box.sizes)
      throw ConfigError(reader->name() + ": is " + name(meta.dtype) + " " +
                        Value::size(meta.shape).text(80) + "; expected " + name(whole.meta.dtype) +
                        " " + Value::size(box.sizes).text(80));
    const std::lock_guard lock(files_->mutex);
    files_->last_key = key;
    files_->last = reader;
  }
  const std::int64_t index = reader->root().as_tensor();
  const std::int64_t bytes = reader->tensors()[static_cast<std::size_t>(index)].meta.bytes();
  if (first_byte == 0 && static_cast<std::int64_t>(into.size()) == bytes)
    reader->read_tensor(index, into);
  else
    reader->read_bytes(index, first_byte, into);
}

std::unique_ptr<TorchFileReader> DcpReader::open_object(const std::string& name,
                                                        std::set<std::string> classes) const {
  const auto place = metadata_.objects.find(name);
  if (place == metadata_.objects.end())
    throw ConfigError(join_path(storage_->address(), folder_) + ": holds no object '" +
                      terminal_line(name) + "'");
  return std::make_unique<TorchFileReader>(part(place->second, "'" + terminal_line(name) + "'"),
                                           std::move(classes), files_->checks);
}

std::string dcp_file_name(std::int64_t rank, std::int64_t n) {
  return "__" + std::to_string(rank) + "_" + std::to_string(n) + ".distcp";
}

struct DcpFileWriter::Impl {
  std::string name;
  std::unique_ptr<WritableFile> file;
  std::int64_t begin = 0, length = 0;  ///< of the current entry
  std::optional<TorchFileWriter> chunk;

  [[nodiscard]] std::unique_ptr<WritableFile> entry() {
    TRELLIS_CHECK(!chunk, "the chunk before has not ended");
    begin += std::exchange(length, 0);
    return std::make_unique<EntryFile>(*file, length);
  }
  [[nodiscard]] DcpPlace place() const { return {.file = name, .offset = begin, .length = length}; }
};

DcpFileWriter::DcpFileWriter(Storage& storage, const std::string& folder, std::string name)
    : DcpFileWriter(storage.create(join_path(folder, name)), name) {}
DcpFileWriter::DcpFileWriter(std::unique_ptr<WritableFile> file, std::string name)
    : impl_(std::make_unique<Impl>()) {
  impl_->file = std::move(file);
  impl_->name = std::move(name);
}
DcpFileWriter::~DcpFileWriter() = default;

void DcpFileWriter::begin_chunk(const TensorMeta& meta) {
  impl_->chunk.emplace(impl_->entry());
  impl_->chunk->add_tensor({.dtype = meta.dtype, .shape = meta.shape});
}

void DcpFileWriter::write(std::span<const std::byte> bytes) {
  TRELLIS_CHECK(impl_->chunk.has_value(), "no chunk has begun");
  impl_->chunk->write(bytes);
}

DcpPlace DcpFileWriter::end_chunk() {
  TRELLIS_CHECK(impl_->chunk.has_value(), "no chunk has begun");
  impl_->chunk->finish(Value::tensor(0));
  impl_->chunk.reset();
  return impl_->place();
}

DcpPlace DcpFileWriter::add_object(const Value& value) {
  TorchFileWriter(impl_->entry()).finish(value);
  return impl_->place();
}

DcpPlace DcpFileWriter::add_object_file(std::string_view torch_file) {
  impl_->entry()->write(std::as_bytes(std::span(torch_file)));
  return impl_->place();
}

void DcpFileWriter::close() {
  TRELLIS_CHECK(!impl_->chunk, "the last chunk has not ended");
  impl_->file->close();
}

void write_dcp_metadata(Storage& storage, const std::string& folder, const DcpMetadata& metadata) {
  const std::string path = join_path(folder, kDcpMetadataFile);
  check_dcp_cover(metadata, join_path(storage.address(), path));
  storage.write_text(path, pickle_dcp_metadata(metadata));
}

}  // namespace trellis::checkpoint
