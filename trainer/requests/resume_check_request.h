#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/run_source.h"
#include "trainer/requests/device_source.h"

namespace trellis::trainer {

/// Arguments of `trellis resume-check`. Plain data: the program hands it to libtrellis_trainer.so.
struct ResumeCheckRequest : RunSource, DeviceSource {
  std::int64_t steps = 6;
  std::vector<std::int64_t> cuts = {3};  ///< steps after which the run is cut; ascending
  std::vector<std::string> after_cut;    ///< overrides of the runs that go on: another layout
  double tolerance = 0;  ///< relative, in another layout; 0: by precision, see resume_check.h
  std::string folder;    ///< where the checkpoints are saved; local or s3://
  std::string seed_bug;  ///< a mistake to put in after each cut; "" none
  bool json = false;     ///< one JSON document on stdout
};

}  // namespace trellis::trainer
