#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"

namespace trellis::checkpoint {

/// Fills a TorchFileReader from the archive: the pickle, and the tensors that it builds.
class TorchFileParser {
 public:
  TorchFileParser(TorchFileReader& reader, std::set<std::string> classes);
  void parse();

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void refuse_other_formats() const;
  void find_folder();
  [[nodiscard]] const ZipRecord* record(const std::string& name) const;
  [[nodiscard]] Value storage(const Value& id);
  [[nodiscard]] std::optional<Value> call(const std::string& function,
                                          const Value::List& arguments);
  [[nodiscard]] Value rebuild_tensor(const Value::List& arguments, bool untyped);
  void check_strides(const TorchTensor& tensor) const;

  TorchFileReader& reader_;
  std::set<std::string> classes_;
  std::optional<ZipReader> zip_;
  std::string folder_;  ///< of all records, with '/'
  std::map<std::string, std::int64_t> storage_by_key_;
};

}  // namespace trellis::checkpoint
