/* The C ABI between the trainer and the library of a device. A plugin is a shared library that
 * exports one function, trellis_device_plugin. Two providers are here: the emulator
 * (libtrellis_neuron.so), which registers the device `neuron` when it is loaded, and
 * libtrellis_torch_device.so, which serves any device that LibTorch or a library for it has.
 * Members marked "optional" may be NULL. All strings are UTF-8; JSON documents carry a "schema".
 * Errors: non-zero result and a text from last_error(), valid on the calling thread until its next
 * call. */
#ifndef TRELLIS_DEVICE_PLUGIN_H
#define TRELLIS_DEVICE_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRELLIS_PLUGIN_ABI_VERSION 3
#define TRELLIS_NOT_RECORDED INT64_MAX /* the handle of a communication without a record */

enum trellis_comm_kind { /* same order as trellis::sim::CollectiveKind */
                         TRELLIS_ALL_REDUCE,
                         TRELLIS_ALL_GATHER,
                         TRELLIS_REDUCE_SCATTER,
                         TRELLIS_ALL_TO_ALL,
                         TRELLIS_BROADCAST,
                         TRELLIS_SEND_RECV,
                         TRELLIS_BARRIER
};

/* One rank's side of a communication. */
typedef struct trellis_comm {
  int32_t kind;     /* trellis_comm_kind */
  const char* axis; /* "tp", "dp", "pp", "world": what exposed time is charged to */
  const int32_t*
      ranks; /* the group's global ranks in member order; send/receive: {sender, receiver} */
  int32_t num_ranks;
  uint64_t sequence; /* n-th communication of this group; send/receive: n-th of this ordered pair */
  int64_t elements;  /* gathered size for all-gather and reduce-scatter; the buffer or message
                        otherwise */
  int32_t scalar_type; /* c10::ScalarType */
  void* const* inputs; /* at::Tensor* that this rank contributes (read), may be empty */
  int32_t num_inputs;
  void* const* outputs; /* at::Tensor* that this rank receives (written), may be empty */
  int32_t num_outputs;
} trellis_comm;

/* A c10d backend that is to be made for one rank's side of a group. */
typedef struct trellis_backend_request {
  const char* backend; /* "nccl", …: as the user named it */
  void* store;         /* c10::intrusive_ptr<c10d::Store>*: of this group alone */
  int32_t member;      /* of the group, from 0 */
  int32_t num_members;
  int64_t timeout_ms;
} trellis_backend_request;

typedef struct trellis_device_plugin_t {
  uint32_t abi_version; /* TRELLIS_PLUGIN_ABI_VERSION of the plugin's build */
  uint32_t struct_size;
  const char* device_type; /* "neuron"; NULL: the device that configure's option "device" names */
  const char* provider;    /* name and version, e.g. "trellis-emulator 1.2.3" */
  const char* torch_version;

  const char* (*last_error)(int* exit_code); /* exit_code: trellis::ExitCode of the failed call */
  /* Before the first use of the device. options (JSON, schema trellis.device_options/1): instance,
   * nodes, world_size, shape_only, record; optional: first_rank and process_ranks (those that run
   * in this process, one device index each; without them all); logical_core_size, estimate_unknown,
   * hardware
   * ("key=value" texts: other numbers of the machine), calibrated (false: without its fitted
   * numbers); software ("none", "nxd", "megatron@2.18", …: whose cost in addition to the
   * device's work counts); unlimited_memory (needs shape_only): allocations past a core's capacity
   * are given, and memory_report says how many (num_ooms), which was the first and what lived at
   * the peak; slow (texts: "core:RANK=FACTOR", "link:NAME=FACTOR"): parts whose work takes so many
   * times as long; replay (needs shape_only and record): ranks may call repeat_period; equal_ranks
   * (needs shape_only): {mesh: sizes, fastest axis first; along: per axis, whether ranks that
   * differ along it are equal}; then only the lowest of equal ranks run, one device index each, and
   * represent the others; axes (a list of {name, stride, size}): how traces name the place of a
   * rank, which is rank / stride % size on each. A later call replaces the machine; it fails while
   * tensors are alive on the device. A provider of several devices takes other options (schema
   * trellis.torch_device_options/1): device ("cpu", "cuda", "privateuse1", …), library (loaded
   * first; "": none), backend, world_size, first_local_rank (lowest rank of this process), seed. */
  int (*configure)(const char* options);
  /* Binds the calling thread to a rank of the world: current device, recorder, memory account. */
  int (*bind_rank)(int32_t rank);
  /* Optional: the device of a rank as c10::DeviceType and index. NULL: PrivateUse1 with the rank's
   * place among those that run in this process, whose tensors lie in host memory. */
  int (*device_of_rank)(int32_t rank, int32_t* type, int32_t* index);

  /* Optional: the emulator's view of communication. start records it in the bound rank's stream and
   * returns a handle ≥ 0; wait marks where the rank's device work needs the result. On a thread
   * that is bound to no rank neither is recorded, as operators are not, and start returns
   * TRELLIS_NOT_RECORDED. A real device times itself and leaves both NULL. */
  int64_t (*comm_start)(const trellis_comm* comm);
  int (*comm_wait)(int64_t handle);

  /* Optional: tags the tensor's (void* = at::Tensor*) buffer for memory accounting; category as
   * trellis::device::BufferCategory. */
  int (*set_category)(const void* tensor, int32_t category);

  /* Optional: training step `step` begins for the bound rank. */
  int (*begin_step)(int64_t step);
  /* Optional: ends training step `step` for the bound rank: cuts its last graph, or waits for the
   * device and reads the clock. */
  int (*end_step)(int64_t step);
  /* Optional: after all ranks ended `step`, from one thread: compiles, simulates; *report (JSON,
   * schema trellis.step_report/1) is owned by the plugin until the next call. */
  int (*simulate_step)(int64_t step, const char** report);
  /* Optional, of a device that times itself: what the steps so far took by the clock, and memory
   * where the device counts it (JSON, schema trellis.measured/1), owned by the plugin until the
   * next call. After all ranks ended a step, from one thread. */
  int (*measured_report)(const char** report);
  /* Optional: writes the last simulated step's timeline. format: "perfetto" or "text". */
  int (*write_trace)(const char* path, const char* format);
  /* Optional: memory per rank by category and phase, current, at its peak and at the peak of each
   * phase (JSON, schema trellis.memory/1), owned by the plugin until the next call. */
  int (*memory_report)(const char** report);
  /* Optional: operators × types that ran and those that the hardware does not have (JSON, schema
   * trellis.portability/1), owned by the plugin until the next call. */
  int (*portability_report)(const char** report);

  /* Optional: which of a run's operators the device does not have. `operators`: a document of
   * portability_report; *report: {lacking, falls_back}, lists of {operator, places} (JSON, schema
   * trellis.device_operators/1), owned by the plugin until the next call. */
  int (*check_operators)(const char* operators, const char** report);
  /* Optional: a c10d backend by name; never asked for "gloo", which the host has. *backend: a new
   * c10::intrusive_ptr<c10d::Backend>, which the caller deletes; *takes_device: 1 when it takes
   * tensors of the device, 0 when only the CPU's. */
  int (*new_backend)(const trellis_backend_request* request, void** backend, int32_t* takes_device);

  /* Optional, with the option replay: passes that are like those before them need not be executed.
   * A rank's schedule comes back to the same point, some micro-batches later: mark_period says so,
   * between two passes. */
  int (*mark_period)(void);
  /* What the bound rank did between its last two marks is done `times` more times, micro-batch
   * numbers going on, without being executed: graphs, communications, memory. Tensors and
   * communications under way afterwards represent those of the last repetition. `kept`
   * (at::Tensor*): made in the last period and still alive, one of each period; `copies` receives
   * `times` · num_kept new at::Tensor*, period by period, which the caller deletes. Returns 1,
   * having done nothing, when the last two periods differ. Once per step. */
  int (*repeat_period)(int64_t times, void* const* kept, int32_t num_kept, void** copies);

  /* Optional, for a job of several processes with a plugin of the same version each: what ranks of
   * this process did in the step that ended last, as bytes that are owned by the plugin until the
   * next call. A plugin that takes them simulates the step as if they had run there. Each process
   * gives to one other, every step: what did not change since the step before is left out. From one
   * thread, after all ranks of the process ended the step. */
  int (*give_step)(const int32_t* ranks, int32_t num_ranks, const char** bytes, int64_t* size);
  int (*take_step)(const char* bytes, int64_t size);
  /* The same for memory_report and portability_report, once, at the end. */
  int (*give_accounts)(const int32_t* ranks, int32_t num_ranks, const char** bytes, int64_t* size);
  int (*take_accounts)(const char* bytes, int64_t size);
} trellis_device_plugin_t;

/* The one exported symbol. Returns NULL when the plugin cannot serve this host. */
const trellis_device_plugin_t* trellis_device_plugin(uint32_t host_abi_version,
                                                     const char* host_torch_version);
typedef const trellis_device_plugin_t* (*trellis_device_plugin_fn)(uint32_t, const char*);

#ifdef __cplusplus
}
#endif
#endif
