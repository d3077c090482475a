#include "device/plugin.h"

#include <memory>
#include <string>

#include <torch/headeronly/version.h>

#include "base/error.h"
#include "device/aten/hooks/plugin_border.h"
#include "device/torch_device/session.h"

/// The C ABI over devices of LibTorch: forwards to one session of the process.
namespace {

using trellis::Error;
using trellis::ExitCode;
using trellis::device::guarded;
using trellis::device::TorchDeviceSession;

std::unique_ptr<TorchDeviceSession>& process_session() {
  static std::unique_ptr<TorchDeviceSession> session;  // a device is the process's
  return session;
}

TorchDeviceSession& session() {
  if (!process_session())
    throw Error(ExitCode::kInternal, "torch_device: not set up: call configure() first");
  return *process_session();
}

int configure(const char* text) {
  return guarded([&] {
    process_session() = std::make_unique<TorchDeviceSession>(
        trellis::device::parse_torch_device_options(text == nullptr ? "" : text));
    return 0;
  });
}

int bind_rank(std::int32_t rank) {
  return guarded([&] { return session().bind(rank), 0; });
}

int device_of_rank(std::int32_t rank, std::int32_t* type, std::int32_t* index) {
  return guarded([&] {
    const c10::Device device = session().device_of(rank);
    *type = static_cast<std::int32_t>(device.type());
    *index = device.index();
    return 0;
  });
}

int begin_step(std::int64_t) {
  return guarded([] { return session().begin_step(), 0; });
}

int end_step(std::int64_t) {
  return guarded([] { return session().end_step(), 0; });
}

int text_of(std::string& kept, std::string said, const char** text) {
  kept = std::move(said);
  *text = kept.c_str();
  return 0;
}

int measured_report(const char** report) {
  static std::string kept;
  return guarded([&] { return text_of(kept, session().measured().dump(), report); });
}

int check_operators(const char* operators, const char** report) {
  static std::string kept;
  return guarded([&] {
    const auto document = nlohmann::json::parse(operators);
    return text_of(kept, session().check_operators(document).dump(), report);
  });
}

int new_backend(const trellis_backend_request* request, void** backend,
                std::int32_t* takes_device) {
  return guarded([&] { return session().backends().make(*request, backend, *takes_device), 0; });
}

int give_accounts(const std::int32_t*, std::int32_t, const char** bytes, std::int64_t* size) {
  static std::string kept;
  return guarded([&] {
    text_of(kept, session().give_accounts(), bytes);
    *size = static_cast<std::int64_t>(kept.size());
    return 0;
  });
}

int take_accounts(const char* bytes, std::int64_t size) {
  return guarded([&] {
    session().take_accounts({bytes, static_cast<std::size_t>(size)});
    return 0;
  });
}

constexpr trellis_device_plugin_t kPlugin = {
    .abi_version = TRELLIS_PLUGIN_ABI_VERSION,
    .struct_size = sizeof(trellis_device_plugin_t),
    .device_type = nullptr,
    .provider = "trellis-torch-device " TRELLIS_VERSION,
    .torch_version = TORCH_VERSION,
    .last_error = trellis::device::last_plugin_error,
    .configure = configure,
    .bind_rank = bind_rank,
    .device_of_rank = device_of_rank,
    .begin_step = begin_step,
    .end_step = end_step,
    .measured_report = measured_report,
    .check_operators = check_operators,
    .new_backend = new_backend,
    .give_accounts = give_accounts,
    .take_accounts = take_accounts,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const trellis_device_plugin_t*
trellis_device_plugin(std::uint32_t, const char*) {
  return &kPlugin;
}
