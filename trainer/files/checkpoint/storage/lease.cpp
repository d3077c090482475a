#include "trainer/files/checkpoint/storage/lease.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/run_lock.h"
#include "base/log.h"
#include "base/output_error.h"

namespace trellis::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A process of this host, also when its number is given to another one later.
struct ProcessName {
  std::string boot, space, pid, started;

  static ProcessName of(const std::string& pid) {
    std::error_code ignored;
    std::string boot = text_of("/proc/sys/kernel/random/boot_id");
    while (boot.ends_with('\n')) boot.pop_back();
    // The 22nd field; the second one, in brackets, may contain anything.
    const std::string stat = text_of("/proc/" + pid + "/stat");
    std::istringstream fields(stat.substr(std::min(stat.rfind(')'), stat.size())));
    std::string field, started;
    for (int i = 2; i <= 22 && fields >> field; ++i) started = field;
    return {boot.empty() ? "-" : boot, fs::read_symlink("/proc/self/ns/pid", ignored).string(), pid,
            started};
  }
  static ProcessName of_this() { return of(std::to_string(::getpid())); }
  [[nodiscard]] std::string text() const { return boot + " " + space + " " + pid + " " + started; }
};

/// Certainly; processes of other hosts and other containers are not seen from here.
bool has_ended(const std::string& process) {
  ProcessName name;
  std::istringstream(process) >> name.boot >> name.space >> name.pid >> name.started;
  const ProcessName now = ProcessName::of(name.pid);
  const bool is_here =
      name.boot == now.boot && name.boot != "-" && name.space == now.space && !name.space.empty();
  return is_here && name.started != now.started;
}

/// Content of a lease: the number of its renewals, the process, and the same as text for people.
struct Content {
  std::string count, process, who;
};

Content parse(const std::string& text) {
  Content content;
  std::istringstream stream(text);
  std::getline(stream, content.count);
  std::getline(stream, content.process);
  std::getline(stream, content.who);
  return content;
}

/// "": it is gone.
std::string read(Storage& storage, const std::string& path) {
  try {
    return storage.exists(path) ? storage.read_text(path, 1 << 16) : "";
  } catch (const ConfigError&) {
    if (!storage.exists(path)) return "";
    throw;
  }
}

std::string new_name() {
  std::random_device random;
  std::ostringstream name;
  for (int i = 0; i < 4; ++i) name << std::hex << random();
  return name.str();
}

}  // namespace

Lease::Lease(std::shared_ptr<Storage> storage, const std::string& advice, Times times)
    : storage_(std::move(storage)), times_(times), path_(join_path(kFolder, new_name())) {
  write();
  thread_ = std::thread([this] { renew(); });
  try {
    for (std::string found = other(); !found.empty(); found = other()) wait_for(found, advice);
  } catch (...) {
    end();
    throw;
  }
}

Lease::~Lease() { end(); }

void Lease::end() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  try {
    storage_->remove_file(path_);
  } catch (const Error& error) {
    log_warning(std::string(error.what()) + "; the next run waits until the lease has expired");
  }
}

void Lease::write() {
  storage_->write_text(path_, std::to_string(++count_) + "\n" + ProcessName::of_this().text() +
                                  "\n" + this_process() + "\n");
  const std::lock_guard lock(mutex_);
  written_ = Clock::now();
}

/// Another run's; "": there is none.
std::string Lease::other() {
  if (!storage_->exists(kFolder)) return "";
  for (const Entry& entry : storage_->list(kFolder, false))
    if (!entry.is_directory && entry.path != path_) return entry.path;
  return "";
}

void Lease::wait_for(const std::string& path, const std::string& advice) {
  const std::string first = read(*storage_, path);
  const Content content = parse(first);
  const std::string who =
      content.who.empty() ? "its name is not known" : terminal_line(content.who);
  const auto pause = std::min<std::chrono::milliseconds>(times_.renewed, std::chrono::seconds(1));
  if (!has_ended(content.process)) {
    if (!first.empty())
      log_info(storage_->address() +
               ": waiting until the lease of another run has expired: " + who);
    for (const auto start = Clock::now(); Clock::now() - start < times_.expired;
         std::this_thread::sleep_for(pause)) {
      const std::string now = read(*storage_, path);
      if (now.empty()) return;
      if (now != first)
        throw ConfigError(storage_->address() + ": another process saves there now: " + who +
                          "; wait for its end, or " + advice);
    }
  }
  storage_->remove_file(path);
}

void Lease::renew() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, times_.renewed, [this] { return ends_; })) {
    lock.unlock();
    std::string lost;
    try {
      if (read(*storage_, path_).empty())
        lost = "another run took the folder, because the lease was not renewed in time";
      else
        write();
    } catch (const Error& error) {
      log_warning(std::string("the lease of the folder of checkpoints is not renewed: ") +
                  error.what());
    }
    lock.lock();
    if (!lost.empty()) lost_ = lost;
  }
}

void Lease::check() {
  const std::lock_guard lock(mutex_);
  if (lost_.empty() && Clock::now() - written_ > times_.expired)
    lost_ = "the lease was not renewed in time, and another run may have taken the folder";
  if (!lost_.empty())
    throw OutputError(storage_->address() + ": " + lost_ +
                      ": this run ends before it writes there; start it again with --resume, or in "
                      "another folder");
}

}  // namespace trellis::checkpoint
