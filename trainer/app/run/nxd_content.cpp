#include "trainer/requests/nxd_content_request.h"

#include "base/error.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/run/verbs.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"

namespace trellis::trainer {
namespace {

int fill(NxdContentRequest& request) {
  RunConfig config = load_run_config(request.config_file, {}, request.instance);
  use_machine({.device = "cpu", .instance = request.instance}, config);
  checkpoint::NxdContent content = checkpoint::read_nxd(
      checkpoint::native::with_checksums(checkpoint::open_place(request.checkpoint)), config);
  // The text of a manifest lists its files; no one hashed these.
  for (const auto& tensor : content.manifest.tensors) content.manifest.files[tensor.file];
  request.format = content.format;
  request.manifest = content.manifest.to_json();
  request.is_renamed = content.is_renamed;
  request.has_stacked_experts = content.has_stacked_experts;
  request.heads = content.attention.heads;
  request.kv_heads = content.attention.kv_heads;
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
int run_nxd_content(NxdContentRequest& request) {
  return guarded([&] { return fill(request); });
}

}  // namespace trellis::trainer
