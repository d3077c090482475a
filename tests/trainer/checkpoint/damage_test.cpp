#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/sample_files.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

/// Files that are cut off, changed or made to harm.
namespace trellis::checkpoint::damage_test {
namespace {

using testing::HasSubstr;
using namespace testing_support;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

struct DamageTest : testing::Test {
  void put(const std::string& path, const std::string& bytes) { storage->write_text(path, bytes); }

  /// Cuts at every 97th byte and flips 300 random bits. `exact`: a checksum guards the content.
  void damage(const std::string& path, bool exact, const std::function<std::string()>& read) {
    const std::string good = storage->read_text(path), expected = read();
    storage->faults().set_hook({});
    for (std::size_t size = 0; size < good.size(); size += 97) {
      put(path, good.substr(0, size));
      EXPECT_THAT(error_of([&] { (void)read(); }), HasSubstr(directory.path().string())) << size;
    }
    std::mt19937_64 random(1);
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
      std::string bytes = good;
      const std::size_t at = random() % bytes.size();
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      put(path, bytes);
      try {
        const std::string got = read();
        if (exact) {
          EXPECT_EQ(got, expected) << "a changed bit went unnoticed at byte " << at;
        }
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr(directory.path().string()));
        ++refused;
      }
    }
    put(path, good);
    EXPECT_EQ(read(), expected);
    EXPECT_GT(refused, 30);
  }

  TemporaryDirectory directory;
  std::shared_ptr<Storage> storage = open_storage(directory.path().string());
};

TEST_F(DamageTest, TorchFile) {
  write_torch_sample(*storage, "model.pt");
  damage("model.pt", true, [&] { return read_torch(*storage, "model.pt"); });
}

TEST_F(DamageTest, Safetensors) {
  write_safetensors_sample(*storage, "model.safetensors");
  damage("model.safetensors", false,
         [&] { return read_safetensors(*storage, "model.safetensors"); });
}

TEST_F(DamageTest, DcpMetadata) {
  write_dcp_sample(*storage, "dcp");
  damage("dcp/.metadata", false, [&] { return read_dcp(storage, "dcp"); });
}

TEST_F(DamageTest, DcpDataFile) {
  write_dcp_sample(*storage, "dcp");
  damage("dcp/__1_0.distcp", true, [&] { return read_dcp(storage, "dcp"); });
}

/// Larger than a piece that is read at once.
constexpr std::int64_t kRows = 700, kColumns = 1000;

std::string large_file(Storage& storage, const std::string& path) {
  TorchFileWriter writer(storage.create(path));
  const std::vector<float> data = numbers(kRows * kColumns);
  const std::int64_t whole =
      writer.add_tensor({.shape = {kRows, kColumns}}, std::as_bytes(std::span(data)));
  const std::int64_t view = writer.add_view(whole, {.shape = {kColumns, kRows}}, 0, {1, kColumns});
  writer.finish(Value::list({Value::tensor(whole), Value::tensor(view)}));
  return storage.read_text(path);
}

TEST_F(DamageTest, APartIsReadOnlyFromARecordThatIsWhole) {
  const std::string good = large_file(*storage, "a.pt");
  const std::int64_t begin = TorchFileReader(storage->open("a.pt")).storages()[0].file_offset;
  std::vector<float> row(kColumns);
  const auto bytes = std::as_writable_bytes(std::span(row));
  const auto read = [&](std::int64_t tensor, std::int64_t first) {
    TorchFileReader(storage->open("a.pt")).read_bytes(tensor, first, bytes);
  };
  for (const std::int64_t at : {0L, 4 * kColumns * kRows / 2, 4 * kColumns * kRows - 1}) {
    std::string bad = good;
    bad[static_cast<std::size_t>(begin + at)] ^= 4;
    put("a.pt", bad);
    for (const std::int64_t tensor : {0L, 1L}) {
      for (const std::int64_t first : {0L, 4 * kColumns * 350, 4 * kColumns * (kRows - 1)})
        EXPECT_THAT(error_of([&] { read(tensor, first); }), HasSubstr("checksum differs"))
            << at << " " << tensor << " " << first;
    }
  }
  put("a.pt", good);
  const TorchFileReader reader(storage->open("a.pt"));
  for (std::int64_t i = 0; i < kRows; i += 99) {
    reader.read_rows(0, i, bytes);
    EXPECT_EQ(row.back(), static_cast<float>((i + 1) * kColumns));
  }
  std::vector<float> column(kRows);
  reader.read_rows(1, 3, std::as_writable_bytes(std::span(column)));
  EXPECT_EQ(column[2], 2.0F * kColumns + 4);
}

/// Counts what is read.
struct CountingFile : ReadableFile {
  explicit CountingFile(std::shared_ptr<const ReadableFile> from) : file(std::move(from)) {}
  [[nodiscard]] const std::string& name() const override { return file->name(); }
  [[nodiscard]] std::int64_t size() const override { return file->size(); }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    bytes += static_cast<std::int64_t>(into.size());
    file->read(offset, into);
  }
  std::shared_ptr<const ReadableFile> file;
  mutable std::int64_t bytes = 0;
};

TEST_F(DamageTest, ARecordIsCheckedOnce) {
  (void)large_file(*storage, "a.pt");
  const auto file = std::make_shared<CountingFile>(storage->open("a.pt"));
  const auto checks = std::make_shared<RecordChecks>();
  std::vector<float> all(kRows * kColumns);
  const auto bytes = std::as_writable_bytes(std::span(all));
  TorchFileReader(file, {}, checks).read_tensor(0, bytes);
  EXPECT_LT(file->bytes, std::ssize(bytes) + 5000) << "while it is read";
  file->bytes = 0;
  const TorchFileReader again(file, {}, checks);
  again.read_rows(0, 5, bytes.first(4 * kColumns));
  EXPECT_LT(file->bytes, 4 * kColumns + 5000) << "another reader of the same file";
}

TEST_F(DamageTest, OtherFormatsAreNamed) {
  const auto open = [&] { (void)TorchFileReader(storage->open("file")); };
  put("file", std::string("\x80\x02\x8a\x0al\xfc\x9c"
                          "F\xf9 j\xa8P\x19.\x80\x02M",
                          18));
  EXPECT_THAT(error_of(open), HasSubstr("PyTorch 1.5 and before"));
  put("file", std::string(257, '\0') + "ustar" + std::string(300, '\0'));
  EXPECT_THAT(error_of(open), HasSubstr("tar archive"));
  put("file", "");
  EXPECT_THAT(error_of(open), HasSubstr("no file of torch.save"));
  put("file", "\x80\x04N.");
  EXPECT_THAT(error_of(open), HasSubstr("bare pickle"));
  const auto zip = [&](const std::string& record) {
    ZipWriter writer(storage->create("file"));
    writer.add(record, "1");
    writer.finish();
  };
  zip("other/text");
  EXPECT_THAT(error_of(open), HasSubstr("not of torch.save"));
  for (const char* name :
       {"../data.pkl", "/data.pkl", "a/../../data.pkl", "a\\data.pkl", "a//data.pkl"}) {
    zip(name);
    EXPECT_THAT(error_of(open), HasSubstr("zip record: path")) << name;
  }
}

TEST_F(DamageTest, TensorsStayInTheirStorage) {
  // The writer refuses such views, so the pickle is made by hand.
  const auto write = [&](const std::string& size, const std::string& stride,
                         const std::string& offset) {
    ZipWriter writer(storage->create("file"));
    writer.add("a/data/0", std::string(16, 'x'));
    const std::string id = "(X\x07" + std::string(3, '\0') + "storagectorch\nFloatStorage\nX\x01" +
                           std::string(3, '\0') + "0X\x03" + std::string(3, '\0') + "cpuK\x04tQ";
    writer.add("a/data.pkl",
               "\x80\x02"
               "ctorch._utils\n_rebuild_tensor_v2\n(" +
                   id + offset + size + stride + "\x89)tR.");
    writer.finish();
    return error_of([&] { (void)TorchFileReader(storage->open("file")); });
  };
  const std::string zero("K\0", 2), two("K\x02", 2), five("K\x05", 2),
      huge = "\x8a\x08" + std::string(7, '\0') + "\x40", minus = "J\xff\xff\xff\xff";
  EXPECT_EQ(write(two + "\x85", two + "\x85", zero), "no error");
  EXPECT_THAT(write(five + "\x85", two + "\x85", zero), HasSubstr("leaves its storage"));
  EXPECT_THAT(write(two + "\x85", two + "\x85", two), HasSubstr("leaves its storage"));
  EXPECT_THAT(write(two + "\x85", minus + "\x85", two), HasSubstr("leaves its storage"));
  EXPECT_THAT(write(minus + "\x85", two + "\x85", zero), HasSubstr("of size -1"));
  EXPECT_THAT(write(two + "\x85", two + two + "\x86", zero), HasSubstr("strides"));
  EXPECT_THAT(write(huge + "\x85", zero + "\x85", zero), HasSubstr("64 bits"));
  EXPECT_THAT(write(huge + zero + "\x86", two + huge + "\x86", zero), HasSubstr("64 bits"));
  EXPECT_THAT(write("J\0\0\0\x7f\x85" + std::string(), zero + "\x85", zero), HasSubstr("file"));
  const std::string billion("J\0\0\0\x40", 5);
  EXPECT_THAT(write(billion + "\x85", zero + "\x85", zero), HasSubstr("elements over a storage"));
}

TEST_F(DamageTest, TensorsWithAttributesDoNotNest) {
  ZipWriter writer(storage->create("file"));
  const std::string zero("\0", 1);
  // A list that holds itself, as the arguments of a call whose function is the call's own.
  writer.add("a/data.pkl",
             "\x80\x02"
             "ctorch._tensor\n_rebuild_from_type_v2\nq" +
                 zero + "]q\x01(h" + zero + "Nh\x01Ne0(h" + zero + "Nh\x01NtR.");
  writer.finish();
  EXPECT_THAT(error_of([&] { (void)TorchFileReader(storage->open("file")); }),
              HasSubstr("a kind of tensor that is not supported"));
}

std::string safetensors_file(std::uint64_t length, const std::string& rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes + rest;
}

TEST_F(DamageTest, SafetensorsHeaders) {
  const auto error = [&](const std::string& bytes) {
    put("file", bytes);
    return error_of([&] { (void)SafetensorsReader(storage->open("file")); });
  };
  const auto with_header = [&](const std::string& header, std::size_t data) {
    return error(safetensors_file(header.size(), header + std::string(data, 'x')));
  };
  EXPECT_THAT(error(safetensors_file(std::uint64_t{1} << 60, "{}")),
              HasSubstr("a header of 1152921504606846976 bytes"));
  EXPECT_THAT(error("1234"), HasSubstr("4 bytes"));
  EXPECT_THAT(with_header("[]", 0), HasSubstr("JSON object"));
  EXPECT_THAT(with_header(std::string(100'000, '['), 0), HasSubstr("nested more than 8 deep"));
  const auto tensor = [](const std::string& name, const std::string& shape, int begin, int end) {
    return "\"" + name + R"(":{"dtype":"U8","shape":)" + shape + ",\"data_offsets\":[" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  EXPECT_EQ(with_header("{" + tensor("a", "[4]", 0, 4) + "," + tensor("b", "[4]", 4, 8) + "}", 8),
            "no error");
  EXPECT_THAT(with_header("{" + tensor("a", "[4]", 0, 4) + "," + tensor("b", "[4]", 3, 7) + "}", 8),
              HasSubstr("where the one before ends"));
  EXPECT_THAT(with_header("{" + tensor("a", "[4]", 0, 4) + "," + tensor("b", "[3]", 5, 8) + "}", 8),
              HasSubstr("where the one before ends"));
  EXPECT_THAT(with_header("{" + tensor("a", "[4]", 0, 4) + "}", 8), HasSubstr("for its tensors"));
  EXPECT_THAT(with_header("{" + tensor("a", "[5]", 0, 4) + "}", 4), HasSubstr("for its shape"));
  EXPECT_THAT(with_header("{" + tensor("a", "[-1]", 0, 4) + "}", 4), HasSubstr("whole number"));
  EXPECT_THAT(
      with_header("{" + tensor("a", "[4611686018427387903,4611686018427387903]", 0, 4) + "}", 4),
      HasSubstr("64 bits"));
  EXPECT_THAT(with_header("{" + tensor("a", "[2]", 0, 2) + "," + tensor("a", "[2]", 2, 4) + "}", 4),
              HasSubstr("occurs twice"));
  EXPECT_THAT(with_header(R"({"a":{"dtype":"Q4","shape":[],"data_offsets":[0,0]}})", 0),
              HasSubstr("'Q4' is not supported"));
}

/// Twice as many tensors take about twice as long, not four times.
TEST_F(DamageTest, SafetensorsOfManyTensors) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  header += "}";
  put("file", safetensors_file(header.size(), header));
  EXPECT_EQ(SafetensorsReader(storage->open("file")).tensors().size(), 100'000U);
}

TEST_F(DamageTest, NamesOfFilesStayInTheFolder) {
  put("index.json", R"({"weight_map":{"a":"../../etc/passwd"}})");
  EXPECT_THAT(error_of([&] { (void)read_safetensors_index(*storage, "index.json"); }),
              HasSubstr("has a part '..'"));
  put("index.json", R"({"weight_map":{"a":"/etc/passwd"}})");
  EXPECT_THAT(error_of([&] { (void)read_safetensors_index(*storage, "index.json"); }),
              HasSubstr("is absolute"));
  write_dcp_sample(*storage, "dcp");
  std::string metadata = storage->read_text("dcp/.metadata");
  const std::string name = "__0_0.distcp";
  metadata.replace(metadata.find(name), name.size(), "../../../etc");
  put("dcp/.metadata", metadata);
  EXPECT_THAT(error_of([&] { (void)DcpReader(storage, "dcp"); }), HasSubstr("has a part '..'"));
}

TEST_F(DamageTest, DcpThatIsNotWhole) {
  write_dcp_sample(*storage, "dcp");
  storage->remove_file("dcp/__1_0.distcp");
  EXPECT_THAT(error_of([&] { (void)read_dcp(storage, "dcp"); }), HasSubstr("__1_0.distcp"));
  DcpMetadata metadata;
  metadata.tensors["w"] = {
      .meta = {.shape = {4}},
      .chunks = {{.offsets = {0}, .sizes = {2}}, {.offsets = {1}, .sizes = {2}}}};
  EXPECT_THAT(error_of([&] { write_dcp_metadata(*storage, "x", metadata); }), HasSubstr("overlap"));
  metadata.tensors["w"].chunks.pop_back();
  EXPECT_THAT(error_of([&] { write_dcp_metadata(*storage, "x", metadata); }),
              HasSubstr("expected 4"));
  metadata.tensors["w"].chunks.push_back({.offsets = {3}, .sizes = {2}});
  EXPECT_THAT(error_of([&] { write_dcp_metadata(*storage, "x", metadata); }),
              HasSubstr("leaves the tensor"));
}

TEST_F(DamageTest, AnUnfinishedFileLeavesNothing) {
  {
    TorchFileWriter writer(storage->create("half.pt"));
    (void)writer.add_tensor({.shape = {4}});
    writer.write(std::vector<std::byte>(8));
    EXPECT_THROW(writer.finish(Value::tensor(0)), std::exception) << "bytes are missing";
  }
  EXPECT_TRUE(storage->list("", true).empty());
}

}  // namespace
}  // namespace trellis::checkpoint::damage_test
