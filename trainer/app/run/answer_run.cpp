#include <iostream>

#include "base/activity.h"
#include "base/error.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/report/answer_time.h"
#include "trainer/app/run/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"
#include "trainer/evaluation/evaluate.h"
#include "trainer/requests/answer_request.h"

namespace trellis::trainer {
namespace {

int run(const AnswerRequest& request) {
  Activity activity("reading the configuration");
  RunConfig config = load_run_config(request);
  refuse_unsupported(config, true);
  config = answers_config(std::move(config), request.config_file);
  const DeviceChoice choice{.device = "neuron",
                            .instance = request.instance,
                            .nodes = request.nodes,
                            .hardware = request.hardware,
                            .calibrated = request.calibrated};
  use_machine(choice, config);
  activity.now("simulating prefill and decoding");
  const AnswerSizes sizes{request.batch, request.prompt_tokens, request.max_new_tokens};
  const AnswerTime time = time_answers(choice, config, sizes, request.host_threads);
  std::cout << (request.json ? to_json(time, sizes, config).dump(1) + "\n"
                             : to_text(time, sizes, config))
            << std::flush;
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
int run_answer(const AnswerRequest& request) {
  return guarded([&] { return run(request); });
}

}  // namespace trellis::trainer
