#include "traces/report/json_form.h"

#include <cstdint>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/escape.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

const char* name_of(Form form) {
  static constexpr const char* kNames[] = {"a text",
                                           "an integer",
                                           "an integer above 0",
                                           "an integer from 0 to 2147483647",
                                           "a number",
                                           "true or false",
                                           "a list",
                                           "a map"};
  return kNames[static_cast<int>(form)];
}

bool is_exact(const json& value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  if (value.is_number_unsigned())
    return value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost);
  return value.is_number_integer() && value.get<std::int64_t>() >= -kMost &&
         value.get<std::int64_t>() <= kMost;
}

bool has_form(const json& value, Form form) {
  switch (form) {
    case Form::kText: return value.is_string();
    case Form::kInteger: return is_exact(value);
    case Form::kCount: return is_exact(value) && value.get<std::int64_t>() > 0;
    case Form::kSize:
      return is_exact(value) && value.get<std::int64_t>() >= 0 &&
             value.get<std::int64_t>() <= std::numeric_limits<std::int32_t>::max();
    case Form::kNumber: return value.is_number();
    case Form::kBool: return value.is_boolean();
    case Form::kList: return value.is_array();
    case Form::kMap: return value.is_object();
  }
  return false;
}

}  // namespace

bool check_value(const json& value, Form form, const std::string& where, Problems& problems) {
  if (has_form(value, form)) return true;
  const std::string got = value.is_number() ? value.dump()
                          : value.is_null() ? "nothing"
                                            : value.type_name();
  problems.add(terminal_line(where), std::string("expected ") + name_of(form) + ", got " + got);
  return false;
}

bool check_form(const json& map, std::span<const Key> keys, const std::string& where,
                Problems& problems) {
  if (!check_value(map, Form::kMap, where, problems)) return false;
  bool good = true;
  for (const Key& key : keys) {
    const auto found = map.find(key.name);
    good = check_value(found == map.end() ? json() : *found, key.form, where + "." + key.name,
                       problems) &&
           good;
  }
  return good;
}

void check_forms(const json& list, std::span<const Key> keys, const std::string& where,
                 Problems& problems) {
  std::size_t i = 0;
  for (const json& row : list) {
    if (!check_form(row, keys, where + "[" + std::to_string(i++) + "]", problems)) return;
  }
}

}  // namespace trellis::analysis
