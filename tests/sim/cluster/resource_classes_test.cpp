#include "sim/cluster/resource_classes.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "sim/cluster/sparse_array.h"
#include "sim/config/load_system.h"

namespace trellis::sim {
namespace {

using ClassLoads = std::vector<std::int64_t>;

/// The load of each phase of each profile on one resource.
ClassLoads loads_of(const std::vector<CommProfile>& profiles, ResourceId resource) {
  ClassLoads loads;
  for (const CommProfile& profile : profiles) {
    for (const CommPhase& phase : profile.phases) {
      std::int64_t bytes = 0;
      for (const auto& load : phase.loads) bytes += load.resource == resource ? load.bytes : 0;
      loads.push_back(bytes);
    }
  }
  return loads;
}

std::vector<CommProfile> random_profiles(std::mt19937& random, int resources) {
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<CommProfile> profiles(static_cast<std::size_t>(number(1, 4)));
  for (CommProfile& profile : profiles) {
    profile.phases.resize(static_cast<std::size_t>(number(1, 3)));
    for (CommPhase& phase : profile.phases) {
      for (ResourceId id = 0; id < resources; ++id) {
        if (number(0, 2) > 0) phase.loads.push_back({id, number(1, 2)});
      }
    }
  }
  return profiles;
}

TEST(ResourceClasses, OneRepresentsThoseWithTheSameLoad) {
  const CommMachine machine(load_system("trn1.32xlarge"));
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    const int resources = 40;  // links of chips and between them
    const std::vector<CommProfile> before = random_profiles(random, resources);
    std::vector<CommProfile> after = before;
    std::vector<CommProfile*> all;
    for (CommProfile& profile : after) all.push_back(&profile);
    const ResourceClasses classes(all, machine);
    std::map<std::pair<double, ClassLoads>, std::vector<ResourceId>> expected;
    for (ResourceId id = 0; id < resources; ++id) {
      const ClassLoads loads = loads_of(before, id);
      if (loads != ClassLoads(loads.size()))
        expected[{machine.rate(id).value, loads}].push_back(id);
    }
    for (const auto& [use, members] : expected) {
      EXPECT_EQ(classes.members(members.front()), members);
      EXPECT_EQ(loads_of(after, members.front()), use.second);
      for (std::size_t m = 1; m < members.size(); ++m)
        EXPECT_EQ(loads_of(after, members[m]), ClassLoads(use.second.size()))
            << "another one represents it";
    }
  }
}

TEST(SparseArray, KeepsWhatWasWrittenAndNothingElse) {
  SparseArray<int> array;
  EXPECT_EQ(array.find(7), nullptr);
  array[5'000'000] = 3;
  array[1] = 2;
  EXPECT_EQ(*array.find(5'000'000), 3);
  EXPECT_EQ(array.find(100'000), nullptr);
  int sum = 0;
  std::size_t last = 0;
  array.for_each([&](std::size_t index, int value) {
    EXPECT_GE(index, last);
    last = index;
    sum += value;
  });
  EXPECT_EQ(sum, 5);
  array.clear();
  EXPECT_EQ(array.find(1), nullptr);
}

}  // namespace
}  // namespace trellis::sim
