#include "base/address.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"

namespace trellis {
namespace {

constexpr std::string_view kSeparator = "://";
constexpr std::string_view kEnd = " \t\r\n\"'`<>,;()[]{}|";  // an address in a text ends here
/// Parameters of a query that are secret when their name has one of these in it.
constexpr std::array<std::string_view, 6> kSecretNames = {"secret",    "token",      "password",
                                                          "signature", "access_key", "credential"};

bool is_s3(std::string_view before) {
  if (before.size() < 2) return false;
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return lower(before[before.size() - 2]) == 's' && before.back() == '3' &&
         (before.size() == 2 ||
          std::isalnum(static_cast<unsigned char>(before[before.size() - 3])) == 0);
}

/// Length of the user name and password at the start of `rest`, the part of an address after "://".
/// Bucket names have neither ':' nor '@'; a secret may hold a '/' that no one encoded.
std::size_t keys_in_front(std::string_view rest, bool s3) {
  const std::string_view path = rest.substr(0, std::min(rest.find_first_of("?#"), rest.size()));
  const std::string_view host = path.substr(0, std::min(path.find('/'), path.size()));
  if (const std::size_t at = host.rfind('@'); at != std::string_view::npos)
    return s3 || host.substr(0, at).find(':') != std::string_view::npos ? at + 1 : 0;
  if (!s3 || host.find(':') == std::string_view::npos) return 0;
  const std::size_t at = path.rfind('@');
  return at == std::string_view::npos ? host.size() : at + 1;
}

bool is_secret(std::string_view parameter) {
  std::string name(parameter.substr(0, parameter.find('=')));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(kSecretNames, [&](std::string_view secret) {
    return name.find(secret) != std::string::npos;
  });
}

/// The query of an address without its secret parameters.
std::string open_part(std::string_view query) {
  std::string kept;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    if (!is_secret(query.substr(0, end)))
      kept.append(kept.empty() ? "?" : "&").append(query.substr(0, end));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return kept;
}

}  // namespace

const char* const kKeysAdvice =
    "expected an address without keys: it is written into files and messages; set "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) in the environment, or a "
    "profile of the AWS SDK (AWS_PROFILE)";

std::string without_keys(std::string_view text) {
  std::string clean;
  for (std::size_t found = text.find(kSeparator); found != std::string_view::npos;
       found = text.find(kSeparator)) {
    const bool s3 = is_s3(text.substr(0, found));
    const std::size_t start = found + kSeparator.size();
    clean += text.substr(0, start);
    text.remove_prefix(start);
    std::string_view address = text.substr(0, std::min(text.find_first_of(kEnd), text.size()));
    text.remove_prefix(address.size());
    address.remove_prefix(keys_in_front(address, s3));
    const std::size_t query = std::min(address.find('?'), address.size());
    clean += address.substr(0, query);
    if (query < address.size()) {
      const std::string_view parameters = address.substr(query + 1);
      const std::string open = open_part(parameters);
      clean +=
          open.size() == parameters.size() + 1 ? address.substr(query) : std::string_view(open);
    }
  }
  return clean.append(text);
}

bool has_keys(std::string_view text) {
  return text.find(kSeparator) != std::string_view::npos && without_keys(text) != text;
}

void refuse_keys(const std::string& address) {
  if (has_keys(address)) throw ConfigError("'" + without_keys(address) + "': " + kKeysAdvice);
}

}  // namespace trellis
