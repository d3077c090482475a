#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"

/// Checks a document of JSON, which another program may have written, before it is read.
namespace trellis::analysis {

/// An integer is one that a double holds exactly (2^53): sums of some of them stay in 64 bits. A
/// size is 0 … 2^31 − 1.
enum class Form { kText, kInteger, kCount, kSize, kNumber, kBool, kList, kMap };

struct Key {
  const char* name;
  Form form;
};

/// Adds a problem at `where` when the value is of another form; true when it is not.
bool check_value(const nlohmann::json& value, Form form, const std::string& where,
                 Problems& problems);
/// Adds a problem at "where.key" for each key that is missing or of another form; true when there
/// was none.
bool check_form(const nlohmann::json& map, std::span<const Key> keys, const std::string& where,
                Problems& problems);
/// The same for the rows of a list, up to the first bad one: the same program wrote the others.
void check_forms(const nlohmann::json& list, std::span<const Key> keys, const std::string& where,
                 Problems& problems);

}  // namespace trellis::analysis
