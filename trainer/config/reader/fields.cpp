#include "trainer/config/reader/fields.h"

namespace trellis::trainer {

void Fields::name(const char* key) {
  if (names_ != nullptr) names_->push_back({key, own_});
  own_ = false;
}

Fields& Fields::own() {
  own_ = true;
  return *this;
}

void Fields::boolean(const char* key, bool& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->get<bool>(key, value);
  if (out_ != nullptr) out_->boolean(key, value);
}

void Fields::integer(const char* key, int& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->get<int>(key, value);
  if (out_ != nullptr) out_->integer(key, value);
}

void Fields::required_positive(const char* key, int& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->required_positive(key);
  if (out_ != nullptr) out_->integer(key, value);
}

void Fields::positive(const char* key, int& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->positive(key, value);
  if (out_ != nullptr) out_->integer(key, value);
}

void Fields::positive(const char* key, std::optional<int>& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->optional_positive(key);
  if (out_ != nullptr) out_->integer_or_null(key, value);
}

void Fields::positive(const char* key, double& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->positive(key, value);
  if (out_ != nullptr) out_->number(key, value);
}

void Fields::size(const char* key, int& value) {
  name(key);
  if (reader_ != nullptr)
    value = value > 0 ? reader_->positive(key, value) : reader_->required_positive(key);
  if (out_ != nullptr) out_->integer(key, value);
}

void Fields::non_negative(const char* key, int& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->non_negative(key, value);
  if (out_ != nullptr) out_->integer(key, value);
}

void Fields::non_negative(const char* key, std::int64_t& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->non_negative(key, value);
  if (out_ != nullptr) out_->integer(key, value);
}

void Fields::non_negative(const char* key, double& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->non_negative(key, value);
  if (out_ != nullptr) out_->number(key, value);
}

void Fields::fraction(const char* key, double& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->fraction(key, value);
  if (out_ != nullptr) out_->number(key, value);
}

void Fields::number(const char* key, std::optional<double>& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->optional<double>(key);
  if (out_ != nullptr) out_->number_or_null(key, value);
}

void Fields::text(const char* key, std::string& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->get<std::string>(key, value);
  if (out_ != nullptr) out_->text(key, value);
}

void Fields::text_or_null(const char* key, std::string& value) {
  name(key);
  if (reader_ != nullptr) value = reader_->get<std::string>(key, value);
  if (out_ != nullptr) out_->text_or_null(key, value);
}

void Fields::texts(const char* key, std::vector<std::string>& values) {
  name(key);
  if (reader_ != nullptr) values = reader_->get<std::vector<std::string>>(key, values);
  if (out_ != nullptr) out_->texts(key, values);
}

void Fields::one_of(const char* key, std::string& value, const std::vector<std::string>& legal) {
  name(key);
  if (reader_ != nullptr) value = reader_->one_of(key, value, legal);
  if (out_ != nullptr) out_->text(key, value);
}

void Fields::form(const char* key, const Read& read, const Write& write) {
  name(key);
  if (reader_ != nullptr) read(*reader_);
  if (out_ != nullptr) write(*out_);
}

void Fields::only_read(const char* key, const Read& read) {
  name(key);
  if (reader_ != nullptr && read) read(*reader_);
}

void Fields::section(const Read& read, const Write& write) {
  if (reader_ != nullptr) read(*reader_);
  if (out_ != nullptr) write(*out_);
}

void Fields::rule(const Read& check) {
  if (reader_ != nullptr) check(*reader_);
}

}  // namespace trellis::trainer
