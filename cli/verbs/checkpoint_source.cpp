#include "cli/verbs/checkpoint_source.h"

#include "base/error.h"
#include "cli/launch/load_trainer.h"
#include "trainer/files/checkpoint/conversion/nxd_content.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/requests/nxd_content_request.h"

namespace trellis::cli {

using checkpoint::TensorSource;

std::unique_ptr<TensorSource> CheckpointReader::open(const std::string& address) {
  const checkpoint::Place place = checkpoint::open_place(address);
  if (config_file_.empty() || !checkpoint::nxd::is_nxd_folder(place))
    return checkpoint::open_for_reading(address);
  is_used_ = true;
  trainer::NxdContentRequest request{.checkpoint = address, .config_file = config_file_};
  exit_code_ = call_trainer(&trainer::TrainerLibrary::nxd_content, request);
  if (exit_code_ != 0) return nullptr;
  checkpoint::NxdContent content{.format = request.format,
                                 .is_renamed = request.is_renamed,
                                 .attention = {request.heads, request.kv_heads},
                                 .has_stacked_experts = request.has_stacked_experts};
  content.manifest = checkpoint::native::Manifest::from_json(request.manifest, address);
  content.manifest.files.clear();  // they have no hashes
  return checkpoint::nxd_source(checkpoint::native::with_checksums(place), std::move(content));
}

void CheckpointReader::check_config_is_used() const {
  if (!config_file_.empty() && !is_used_)
    throw ConfigError(
        "--config: is about folders of NxD, NxDT and NNM; the checkpoint says itself "
        "what its tensors are; leave it out");
}

}  // namespace trellis::cli
