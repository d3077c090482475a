// A device of LibTorch for tests, as a vendor's library would bring it: `sealed`, on PrivateUse1.
// Its kernels are the CPU's, but its memory is closed to everyone else: an address of the device
// that the host reads or writes ends the process. Two devices, events with times, an allocator that
// counts. $SEALED_WITHOUT=silu,mm: operators that it does not have.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_local_scalar_dense_cpu_dispatch.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::kPrivateUse1;

constexpr DeviceIndex kDevices = 2;
constexpr std::size_t kArena = std::size_t{16} << 30;  // reserved, not used
constexpr std::size_t kGrain = 256;

thread_local DeviceIndex current = 0;

/// The same pages twice: closed at the device's addresses, open at the host's.
struct Memory {
  Memory() {
    const int file = memfd_create("sealed device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kArena) == 0, "sealed: no memory");
    device = map(file, PROT_NONE);
    host = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }
  static char* map(int file, int rights) {
    void* place = mmap(nullptr, kArena, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(place != MAP_FAILED, "sealed: no address space");
    return static_cast<char*>(place);
  }
  char* device;
  char* host;
};

Memory& memory() {
  static auto* memory = new Memory;  // outlives all tensors
  return *memory;
}

void* to_host(const void* address) {
  return memory().host + (static_cast<const char*>(address) - memory().device);
}

struct Block {
  void* address;
  std::size_t bytes;
  DeviceIndex device;
};

/// Free lists by size; nothing goes back.
class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t rounded = std::max(kGrain, (bytes + kGrain - 1) / kGrain * kGrain);
    const std::lock_guard lock(mutex_);
    auto& free = free_[rounded];
    void* address = nullptr;
    if (free.empty()) {
      if (used_ + rounded > kArena) throw c10::OutOfMemoryError({}, "sealed: out of memory");
      address = memory().device + used_;
      used_ += rounded;
    } else {
      address = free.back();
      free.pop_back();
    }
    bytes_[static_cast<std::size_t>(current)].increase(rounded);
    return {address, new Block{address, rounded, current}, &give_back, {kPrivateUse1, current}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to_host(to), to_host(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocated_bytes[kAll] = bytes_[static_cast<std::size_t>(device)];
    stats.reserved_bytes[kAll].increase(used_);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex) override {
    return {kArena - used_, kArena};
  }

 private:
  static void give_back(void* context);
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;
  std::size_t used_ = 0;
  std::array<c10::CachingAllocator::Stat, kDevices> bytes_;
};

Allocator& allocator() {
  static auto* allocator = new Allocator;
  return *allocator;
}

void Allocator::give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  const std::lock_guard lock(allocator().mutex_);
  allocator().free_[block->bytes].push_back(block->address);
  allocator().bytes_[static_cast<std::size_t>(block->device)].decrease(block->bytes);
}

// ── guard, events, generators ──

using Clock = std::chrono::steady_clock;

/// Work is done when a call returns, so an event is the time of its record().
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPrivateUse1; }
  Device getDevice() const override { return {kPrivateUse1, current}; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "sealed: no device ", device);
    if (device.has_index()) current = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void synchronizeDevice(DeviceIndex) const override {}
  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void synchronizeEvent(void*) const override {}
  bool queryEvent(void*) const override { return true; }
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(to) -
                                                     *static_cast<Clock::time_point*>(from))
        .count();
  }
};

void grow(const c10::Storage& storage, std::size_t bytes) {
  c10::DataPtr larger = allocator().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) allocator().copy_data(larger.get(), storage.data(), kept);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current; }
  /// The CPU's numbers: its kernels draw them.
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    grow(storage, bytes);
  }
};

// ── kernels ──

/// The same bytes at the host's address.
at::Tensor opened(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  if (tensor.numel() == 0)
    return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  at::Tensor host = at::from_blob(to_host(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                                  tensor.options().device(c10::kCPU));
  if (tensor.is_conj()) host._set_conj(true);
  return host;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

at::Tensor sealed(const at::Tensor& host) {
  if (!host.defined() || !host.is_cpu()) return host;
  at::Tensor tensor = empty_strided(host.sizes(), host.strides(), host.scalar_type());
  if (host.numel() > 0) opened(tensor).copy_(host);
  return tensor;
}

c10::IValue opened(const c10::IValue& value) {
  if (value.isTensor()) return opened(value.toTensor());
  if (value.isDevice()) return Device(c10::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(opened(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional(opened(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

/// The result of the CPU's kernel: an argument that it wrote to, or something new.
c10::IValue result_of(const c10::Argument& declared, const c10::IValue& value,
                      const c10::FunctionSchema& schema,
                      const std::vector<c10::IValue>& arguments) {
  if (declared.alias_info() != nullptr && declared.alias_info()->isWrite()) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* info = schema.arguments()[i].alias_info();
      if (info != nullptr && *info == *declared.alias_info()) return arguments[i];
    }
  }
  if (value.isTensor()) return sealed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(sealed(tensor));
    return list;
  }
  return value;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count),
                                           stack->end());
  torch::jit::drop(*stack, count);
  torch::jit::Stack host;
  for (const c10::IValue& argument : arguments) host.push_back(opened(argument));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
  for (std::size_t i = 0; i < host.size(); ++i)
    stack->push_back(result_of(schema.returns()[i], host[i], schema, arguments));
}

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout>, std::optional<Device> device,
                               std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(Device(kPrivateUse1)));
  return at::detail::empty_generic(sizes, &allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_with_strides(at::IntArrayRef sizes, at::IntArrayRef strides,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(Device(kPrivateUse1)));
  return empty_strided(sizes, strides, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.numel() > 0) opened(to).copy_(opened(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const std::size_t needed =
      self.itemsize() * static_cast<std::size_t>(self.numel() + self.storage_offset());
  if (needed > self.storage().nbytes()) grow(self.storage(), needed);
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  return at::cpu::_local_scalar_dense(opened(self));
}

std::set<std::string> left_out() {
  std::set<std::string> names;
  const char* text = std::getenv("SEALED_WITHOUT");
  std::stringstream words(text == nullptr ? "" : text);
  for (std::string name; std::getline(words, name, ',');) names.insert("aten::" + name);
  return names;
}

/// Every operator that the CPU computes itself; the others are made of those.
void register_rest(torch::Library& library) {
  const std::set<std::string> without = left_out();
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!name.name.starts_with("aten::") || !op || without.contains(name.name) ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    library.impl(c10::toString(name).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_with_strides);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("view",
         [](const at::Tensor& self, at::IntArrayRef sizes) { return at::cpu::view(self, sizes); });
  m.impl("as_strided", [](const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                          std::optional<std::int64_t> offset) {
    return at::cpu::as_strided(self, sizes, strides, offset);
  });
  m.impl("_reshape_alias",
         [](const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
           return at::cpu::_reshape_alias(self, sizes, strides);
         });
  m.impl("unfold", [](const at::Tensor& self, std::int64_t dim, std::int64_t size,
                      std::int64_t step) { return at::cpu::unfold(self, dim, size, step); });
  register_rest(m);
}

const bool registered = [] {
  c10::register_privateuse1_backend("sealed");
  c10::SetAllocator(kPrivateUse1, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
