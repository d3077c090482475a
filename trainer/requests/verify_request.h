#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_source.h"
#include "trainer/requests/device_source.h"

namespace trellis::trainer {

/// Arguments of `trellis verify`. Plain data: the program hands it to libtrellis_trainer.so.
struct VerifyRequest : RunSource, DeviceSource {
  std::string layouts = "all";  ///< see LayoutFilter
  int ranks = 8;
  int steps = 2;
  double tolerance = 1e-10;  ///< relative, in fp64
  std::string seed_bug;      ///< a mistake to put into every layout that can show it; "" none
  bool json = false;         ///< one JSON document on stdout
  std::string out;           ///< folder of the journal; "": nothing is kept
  std::string shard;         ///< "2/8" of the layouts, with `out`; "": all
  /// Folders of the journals of all shards, whose result is given instead; see merged_request().
  std::vector<std::string> merge;
};

}  // namespace trellis::trainer
