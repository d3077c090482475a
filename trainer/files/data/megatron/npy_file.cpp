#include "trainer/files/data/megatron/npy_file.h"

#include <charconv>
#include <system_error>

#include "base/check.h"
#include "base/error.h"
#include "base/files/atomic_file.h"

namespace trellis::trainer {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};
constexpr std::size_t kVersion1Header = 10;  // magic, version 1.0, uint16 length of the description

[[noreturn]] void corrupt(const std::filesystem::path& path, std::size_t offset,
                          const std::string& what) {
  throw ConfigError(path.string() + ": offset " + std::to_string(offset) + ": " + what +
                    "; remove the file: it is made again from the data");
}

/// The text after `'key':` in the header's Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::size_t place = header.find(key);
  if (place == std::string_view::npos) return {};
  const std::size_t begin = header.find_first_not_of(": ", place + key.size());
  return begin == std::string_view::npos ? std::string_view() : header.substr(begin);
}

std::vector<std::int64_t> parse_shape(std::string_view text) {
  std::vector<std::int64_t> shape;
  if (!text.starts_with('(')) return shape;
  for (std::size_t i = 1; i < text.size() && text[i] != ')';) {
    std::int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), extent);
    if (error != std::errc() || extent < 0) return {};
    shape.push_back(extent);
    i = text.find_first_not_of(", ", static_cast<std::size_t>(end - text.data()));
  }
  return shape;
}

std::size_t item_size(const std::string& descr) { return descr == "<i8" ? 8 : 4; }

}  // namespace

NpyArray::NpyArray(const std::filesystem::path& path) : file_(path) {
  if (file_.size() < kVersion1Header || !file_.text().starts_with(kMagic))
    corrupt(path, 0, "expected the magic \\x93NUMPY of a .npy file");
  if (file_.at<std::uint8_t>(6) != 1)
    corrupt(
        path, 6,
        "version of the .npy format: expected 1, got " + std::to_string(file_.at<std::uint8_t>(6)));
  first_ = kVersion1Header + file_.at<std::uint16_t>(8);
  if (first_ > file_.size())
    corrupt(path, 8,
            "the header ends after the file: expected " + std::to_string(first_) +
                " bytes or more, got " + std::to_string(file_.size()));
  const std::string_view header = file_.text().substr(kVersion1Header, first_ - kVersion1Header);
  const std::string_view descr = value_of(header, "'descr'");
  for (const char* known : {"'<i4'", "'<u4'", "'<i8'"}) {
    if (descr.starts_with(known)) descr_ = std::string(known).substr(1, 3);
  }
  if (descr_.empty())
    corrupt(path, kVersion1Header,
            "descr: expected '<i4', '<u4' or '<i8', got " + std::string(descr.substr(0, 8)));
  if (!value_of(header, "'fortran_order'").starts_with("False"))
    corrupt(path, kVersion1Header, "fortran_order: expected False");
  shape_ = parse_shape(value_of(header, "'shape'"));
  if (shape_.empty() || shape_.size() > 2)
    corrupt(path, kVersion1Header, "shape: expected one or two dimensions");
  const std::size_t items = (file_.size() - first_) / item_size(descr_);
  const bool fits = shape_.size() == 1
                        ? static_cast<std::uint64_t>(shape_[0]) == items
                        : shape_[1] > 0 &&
                              shape_[0] <= static_cast<std::int64_t>(items) / shape_[1] &&
                              static_cast<std::uint64_t>(shape_[0] * shape_[1]) == items;
  if (!fits || (file_.size() - first_) % item_size(descr_) != 0)
    corrupt(path, first_,
            "the file has " + std::to_string(items) + " items, its shape gives another number");
}

std::int64_t NpyArray::size() const {
  return shape_.size() == 1 ? shape_[0] : shape_[0] * shape_[1];
}

std::int64_t NpyArray::operator[](std::int64_t i) const {
  TRELLIS_CHECK(i >= 0 && i < size(), "index outside of the array");
  const std::size_t offset = first_ + static_cast<std::size_t>(i) * item_size(descr_);
  if (descr_ == "<i8") return file_.at<std::int64_t>(offset);
  return descr_ == "<u4" ? std::int64_t{file_.at<std::uint32_t>(offset)}
                         : std::int64_t{file_.at<std::int32_t>(offset)};
}

void write_npy(const std::filesystem::path& path, const NpyValues& values, std::int64_t columns) {
  constexpr const char* kDescr[] = {"<i4", "<u4", "<i8"};
  const std::size_t items = std::visit([](const auto& v) { return v.size(); }, values);
  const std::string shape = columns == 0
                                ? "(" + std::to_string(items) + ",)"
                                : "(" + std::to_string(items / static_cast<std::size_t>(columns)) +
                                      ", " + std::to_string(columns) + ")";
  std::string header = std::string("{'descr': '") + kDescr[values.index()] +
                       "', 'fortran_order': False, 'shape': " + shape + ", }";
  while ((kVersion1Header + header.size() + 1) % 64 != 0) header += ' ';  // NumPy aligns the data
  header += '\n';
  AtomicFile file(path);
  std::ostream& stream = file.stream();
  const auto length = static_cast<std::uint16_t>(header.size());
  stream << kMagic << '\x01' << '\0' << static_cast<char>(length & 0xFF)
         << static_cast<char>(length >> 8) << header;
  std::visit(
      [&](const auto& v) {
        stream.write(reinterpret_cast<const char*>(v.data()),
                     static_cast<std::streamsize>(v.size_bytes()));
      },
      values);
  file.commit();
}

}  // namespace trellis::trainer
