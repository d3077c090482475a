#include "trainer/checkpoint/training/torch_dist_copy.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "trainer/checkpoint/conversion/megatron_writer.h"
#include "trainer/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/checkpoint/formats/native/native_source.h"

namespace trellis::checkpoint {

std::string save_torch_dist(const trainer::RunConfig& config, const Place& checkpoint) {
  const native::NativeSource source(checkpoint);
  const std::string iteration = megatron::iteration_folder(source.point().step);
  const Place folder{checkpoint.storage, join_path(checkpoint.path, iteration)};
  try {
    write_megatron(source, folder, {},
                   {config.model.num_attention_heads, config.model.num_kv_heads}, {});
    checkpoint.storage->write_text(join_path(checkpoint.path, megatron::kTrackerFile),
                                   std::to_string(source.point().step));
    return "";
  } catch (const Error& error) {
    log_warning(folder.address() + ": the checkpoint is not saved as torch_dist: " + error.what() +
                "; " + checkpoint.address() + " is complete, and training goes on");
    return std::string("as torch_dist: ") + error.what();
  }
}

}  // namespace trellis::checkpoint
