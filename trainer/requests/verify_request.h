#pragma once

#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis verify` was asked for. Plain data: the program hands it to libtrellis_trainer.so.
struct VerifyRequest {
  std::string config_file;
  std::vector<std::string> overrides;  ///< key.path=value
  std::string layouts = "all";         ///< see LayoutFilter
  int ranks = 8;
  int steps = 2;
  double tolerance = 1e-10;    ///< relative, in fp64
  std::string device = "cpu";  ///< of the ranks of a layout; the reference rank is on the CPU
  std::string device_library, device_plugin, backend;  ///< see RunRequest
  std::string instance =
      "trn1.32xlarge";   ///< the machine to emulate, for a device other than the CPU
  std::string seed_bug;  ///< a mistake to put into every layout that can show it; "" none
  int host_threads = 0;  ///< 0: one per host core
  bool json = false;     ///< one JSON document on stdout
  std::string out;       ///< folder of the journal; "": nothing is kept
  std::string shard;     ///< "2/8" of the layouts, with `out`; "": all
  /// Folders of the journals of all shards, whose result is given instead; see merged_request().
  std::vector<std::string> merge;
};

}  // namespace trellis::trainer

/// Verifies, prints, returns the exit code; throws nothing.
extern "C" int trellis_trainer_verify(const trellis::trainer::VerifyRequest* request);
using trellis_trainer_verify_fn = int (*)(const trellis::trainer::VerifyRequest*);
