#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"

namespace trellis {

/// Builds a document while it is parsed. The parser's own callback, which could refuse the same
/// texts, looks through the whole parent when a value ends: a list of n values takes n² steps.
template <typename Json>
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  using Base = nlohmann::json_sax<Json>;

  struct Rules {
    std::size_t deepest = 200;  ///< of lists and objects
    bool unique_keys = false;
  };

  /// Throws ConfigError, without a place: what is no JSON, and what breaks the rules.
  static Json parse(std::string_view text, Rules rules) {
    JsonBuilder builder(rules);
    Json::sax_parse(text, &builder);
    return std::move(builder.root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Base::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Base::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Base::number_float_t value, const std::string&) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Base::binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& value) override {
    Open& object = open_.back();
    if (rules_.unique_keys && !object.keys.insert(value).second)
      throw ConfigError("key '" + terminal_line(value) + "' occurs twice");
    object.place = &(*object.value)[value];
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string text = error.what();  // "[json.exception.parse_error.101] parse error at …"
    const std::size_t end = text.find("] ");
    throw ConfigError("this is no JSON: " +
                      terminal_line(end == std::string::npos ? text : text.substr(end + 2)));
  }

 private:
  struct Open {
    Json* value;
    Json* place = nullptr;            ///< of an object: where its next value goes
    std::set<std::string> keys = {};  ///< of an object, with unique_keys
  };

  explicit JsonBuilder(Rules rules) : rules_(rules) {}

  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Open& parent = open_.back();
    if (parent.value->is_array()) {
      parent.value->push_back(std::move(value));
      return &parent.value->back();
    }
    *parent.place = std::move(value);
    return parent.place;
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= rules_.deepest)
      throw ConfigError("lists and objects are nested more than " + std::to_string(rules_.deepest) +
                        " deep");
    open_.push_back({put(std::move(value))});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Rules rules_;
  Json root_;
  std::vector<Open> open_;
};

}  // namespace trellis
