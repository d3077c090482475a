#include <cstdlib>

#include <gtest/gtest.h>

// libsystemc.so contains a main() that needs sc_main(): both are given here, once, so that neither
// wins by link order.
extern "C" int sc_main(int, char**) { return 0; }

int main(int argc, char** argv) {
  setenv("TRELLIS_CACHE", "off",
         1);  // tests see this code's timings, not those of an earlier process
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
