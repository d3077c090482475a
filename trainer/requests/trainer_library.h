#pragma once

#include <string>

namespace trellis::trainer {

struct AnswerRequest;
struct BuildRequest;
struct DataInspectRequest;
struct DeviceRequest;
struct EvaluateRequest;
struct MemoryRequest;
struct NxdContentRequest;
struct PortabilityRequest;
struct ReshardRequest;
struct ResumeCheckRequest;
struct RunRequest;
struct VerifyRequest;
class StepRunner;

/// libtrellis_trainer.so, which the verbs load that need it. Each call does what was asked for and
/// prints it, returns the exit code and throws nothing.
struct TrainerLibrary {
  int (*run)(const RunRequest&);
  int (*answer)(const AnswerRequest&);
  int (*evaluate)(const EvaluateRequest&);
  int (*verify)(const VerifyRequest&);
  int (*resume_check)(const ResumeCheckRequest&);
  /// Trains without data on cores that never refuse memory; nothing is compiled, timed or written.
  /// `report`: one JSON document (schema trellis.memory_plan/1 without its changes). Returns the
  /// exit code of errors, 0 also when the run does not fit.
  int (*memory)(const MemoryRequest&, std::string& report);
  /// One step without data on the emulated device. `report`: the operators that it ran (schema
  /// trellis.portability/1).
  int (*operators)(const PortabilityRequest&, std::string& report);
  /// Which of `operators` (trellis.portability/1) the device does not have:
  /// trellis.device_operators/1. REQUIRES: a process that has no device yet.
  int (*check_operators)(const DeviceRequest&, const std::string& operators, std::string& report);
  int (*reshard)(const ReshardRequest&);
  int (*nxd_content)(NxdContentRequest&);
  int (*inspect_data)(const DataInspectRequest&);
  int (*build_data)(const BuildRequest&);
  StepRunner* (*step_runner)();  ///< the caller deletes it
};

}  // namespace trellis::trainer

/// The library's one entry.
extern "C" const trellis::trainer::TrainerLibrary* trellis_trainer_library();
using trellis_trainer_library_fn = const trellis::trainer::TrainerLibrary* (*)();
