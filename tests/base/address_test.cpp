// Keys in addresses: found, taken out, refused, and never in what the program says.
#include "base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml/yaml.h"

namespace trellis {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Address, KeysAreTakenOutOfEachForm) {
  struct Case {
    const char *with, *without;
  };
  const Case cases[] = {
      {"s3://KEY:SECRET@bucket/run", "s3://bucket/run"},
      {"S3://KEY:SECRET@bucket", "S3://bucket"},
      {"s3://KEY@bucket/run", "s3://bucket/run"},
      {"s3://KEY:SEC/RET+x/y=@bucket/run?region=us-east-1", "s3://bucket/run?region=us-east-1"},
      {"s3://KEY:SECRET/bucket/run", "s3:///bucket/run"},
      {"s3://bucket/run?region=r&secret_key=SECRET&scheme=http",
       "s3://bucket/run?region=r&scheme=http"},
      {"s3://bucket/run?X-Amz-Security-Token=SECRET", "s3://bucket/run"},
      {"https://user:SECRET@host/path", "https://host/path"},
      {"a=s3://K:SECRET@one/x, \"s3://K:SECRET@two\"", "a=s3://one/x, \"s3://two\""},
  };
  for (const Case& each : cases) {
    EXPECT_TRUE(has_keys(each.with)) << each.with;
    EXPECT_EQ(without_keys(each.with), each.without);
    EXPECT_FALSE(has_keys(each.without)) << each.without;
  }
}

TEST(Address, OthersStayAsTheyAre) {
  for (const char* address :
       {"s3://bucket/run@5/a:b?region=us-east-1&endpoint_override=127.0.0.1:9000&scheme=http",
        "runs/a@b:c", "tcp://host:29500", "https://host:80/a@b", "ssh://git@host/x", "s3://", "://",
        "", "a s3://bucket b"}) {
    EXPECT_FALSE(has_keys(address)) << address;
    EXPECT_EQ(without_keys(address), address);
    EXPECT_NO_THROW(refuse_keys(address));
  }
}

TEST(Address, NeitherErrorsNorTheLogHaveKeys) {
  std::string heard;
  {
    const LogTap tap([&](LogLevel, std::string_view text) { heard += text; });
    log_warning("cannot reach s3://KEY:SECRET@bucket/run");
  }
  EXPECT_EQ(heard, "cannot reach s3://bucket/run");
  EXPECT_STREQ(ConfigError("s3://KEY:SECRET@bucket/run: missing").what(),
               "s3://bucket/run: missing");
  Problems problems;
  problems.add("a.yaml:3:key", "expected a folder, got s3://KEY:SECRET@bucket");
  EXPECT_EQ(problems.lines().front(), "a.yaml:3:key: expected a folder, got s3://bucket");
  try {
    refuse_keys("s3://KEY:SECRET@bucket/run");
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("s3://bucket/run"), HasSubstr("AWS_SECRET_ACCESS_KEY"),
                               Not(HasSubstr("KEY:")), Not(HasSubstr("SECRET@"))));
  }
}

TEST(Address, ADocumentSaysWhereTheyWere) {
  const YamlDocument document = YamlDocument::parse(
      "a: {b: s3://KEY:SECRET@bucket/x}\nlist:\n  - plain\n  - s3://${word}@two\nword: "
      "'K:SECRET'\n",
      "run.yaml", {"c.d=s3://KEY:SECRET@three"});
  EXPECT_EQ(document.addresses_with_keys(),
            (std::vector<std::string>{"run.yaml:1:a.b", "run.yaml:4:list.1", "command line:c.d"}));
  EXPECT_THAT(document.resolved_text(),
              testing::AllOf(HasSubstr("s3://bucket/x"), HasSubstr("s3://two"),
                             HasSubstr("s3://three"), Not(HasSubstr("SECRET@"))));
  EXPECT_TRUE(document.problems().empty()) << "for whoever only shows it";
}

}  // namespace
}  // namespace trellis
