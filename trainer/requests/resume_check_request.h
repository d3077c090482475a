#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis resume-check` was asked for. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct ResumeCheckRequest {
  std::string config_file;
  std::vector<std::string> overrides;  ///< key.path=value
  std::int64_t steps = 6;
  std::vector<std::int64_t> cuts = {3};  ///< steps after which the run is cut; ascending
  std::vector<std::string> after_cut;    ///< overrides of the runs that go on: another layout
  double tolerance = 0;  ///< relative, in another layout; 0: by precision, see resume_check.h
  std::string folder;    ///< where the checkpoints are saved; local or s3://
  std::string device = "cpu";
  std::string device_library, device_plugin, backend;  ///< see RunRequest
  std::string instance = "trn1.32xlarge";  ///< the machine to emulate, for another device
  int host_threads = 0;                    ///< 0: one per host core
  std::string seed_bug;                    ///< a mistake to put in after each cut; "" none
  bool json = false;                       ///< one JSON document on stdout
};

}  // namespace trellis::trainer

/// Checks, prints, returns the exit code; throws nothing.
extern "C" int trellis_trainer_resume_check(const trellis::trainer::ResumeCheckRequest* request);
using trellis_trainer_resume_check_fn = int (*)(const trellis::trainer::ResumeCheckRequest*);
