#pragma once

#include "trainer/requests/trainer_library.h"

/// The verbs of libtrellis_trainer.so: see TrainerLibrary.
namespace trellis::trainer {

int run_training(const RunRequest& request);
int run_answer(const AnswerRequest& request);
int run_evaluate(const EvaluateRequest& request);
int run_verify(const VerifyRequest& request);
int run_resume_check(const ResumeCheckRequest& request);
int run_memory(const MemoryRequest& request, std::string& report);
int run_operators(const PortabilityRequest& request, std::string& report);
int run_check_operators(const DeviceRequest& request, const std::string& operators,
                        std::string& report);
int run_reshard(const ReshardRequest& request);
int run_nxd_content(NxdContentRequest& request);
int run_inspect_data(const DataInspectRequest& request);
int run_build_data(const BuildRequest& request);
[[nodiscard]] StepRunner* make_step_runner();

}  // namespace trellis::trainer
