#include "trainer/requests/trainer_library.h"

#include "trainer/app/run/verbs.h"

extern "C" __attribute__((visibility("default"))) const trellis::trainer::TrainerLibrary*
trellis_trainer_library() {
  namespace t = trellis::trainer;
  static constexpr t::TrainerLibrary kLibrary{.run = t::run_training,
                                              .answer = t::run_answer,
                                              .evaluate = t::run_evaluate,
                                              .verify = t::run_verify,
                                              .resume_check = t::run_resume_check,
                                              .memory = t::run_memory,
                                              .operators = t::run_operators,
                                              .check_operators = t::run_check_operators,
                                              .reshard = t::run_reshard,
                                              .nxd_content = t::run_nxd_content,
                                              .inspect_data = t::run_inspect_data,
                                              .build_data = t::run_build_data,
                                              .step_runner = t::make_step_runner};
  return &kLibrary;
}
