#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

/// One direction of a storage. Limits of 0: there is none.
struct StorageSide {
  BytesPerSecond connection;       ///< one of a rank's connections
  BytesPerSecond node;             ///< all ranks of an instance together
  BytesPerSecond cluster;          ///< all instances together
  Picoseconds file_latency;        ///< of one file, in addition to its bytes
  double requests_per_second = 0;  ///< all instances together
};

/// Where checkpoints lie: a file of sim/configs/storage, or a user's own in the same form.
struct StorageConfig {
  std::string name, description;
  bool shared = false;     ///< one for all instances, over the network; else each has its own
  bool page_cache = true;  ///< what was just read is in host memory
  int connections = 1;     ///< of a rank at a time
  Bytes part;              ///< larger files are moved in parts of this size; 0: none are
  Bytes capacity;          ///< of an instance, or of all of a shared one; 0: not limited
  StorageSide write, read;
  std::vector<Parameter> parameters;

  /// Most that one rank moves.
  [[nodiscard]] BytesPerSecond rank_rate(const StorageSide& side) const {
    return side.connection * static_cast<double>(connections);
  }
  [[nodiscard]] std::int64_t parts(std::int64_t bytes) const;
  /// Requests that a file takes: its parts, and what begins and ends an upload in several.
  [[nodiscard]] std::int64_t requests(std::int64_t bytes) const;
  /// Round trips of a file, one after the other, that take StorageSide::file_latency each.
  [[nodiscard]] std::int64_t round_trips(std::int64_t bytes) const;
};

/// Costs on the host of saving and of starting again: sim/configs/storage/host.yaml.
struct HostCosts {
  BytesPerSecond copy_rate;  ///< device memory to a buffer in host memory, all ranks of an instance
  double buffer_share = 0;   ///< of the host's memory that such buffers may take
  Picoseconds process_start, program_load, compile;
  std::vector<Parameter> parameters;
};

/// Names of the shipped storages.
[[nodiscard]] std::vector<std::string> storage_names();
/// The file of a shipped storage or, of a name with ".yaml" at its end, the file of that name.
/// Throws ConfigError with the nearest name.
[[nodiscard]] std::filesystem::path storage_file(const std::string& name);
/// The storage as an instance of `system` sees it: its own disks, or what its network interfaces
/// let through. `overrides`: "storage.capacity=12 TiB". Throws ConfigError with all problems of the
/// file, and for an instance that the file has no figures of.
[[nodiscard]] StorageConfig load_storage(const std::string& name, const SystemConfig& system,
                                         const std::vector<std::string>& overrides = {});
/// `overrides`: "host.restart.compile=40 s".
[[nodiscard]] HostCosts load_host_costs(const std::vector<std::string>& overrides = {});

/// Takes the overrides of storage and host, "storage.…" and "host.…", out of those of a machine.
struct StorageOverrides {
  std::vector<std::string> machine, storage, host;
};
[[nodiscard]] StorageOverrides split_overrides(const std::vector<std::string>& all);

}  // namespace trellis::sim
