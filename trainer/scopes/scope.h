#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

namespace trellis::trainer {

/// Names what the calling thread does, for the device's recorder and for any LibTorch profiler.
/// Nesting order: "phase=…", "microbatch=N", "layer=<module path>". `name` must outlive the scope:
/// keep it in the module, build no strings per call.
class Scope {
 public:
  explicit Scope(std::string_view name) : guard_(at::RecordScope::USER_SCOPE) {
    if (guard_.isActive()) guard_.before(name);
  }

 private:
  at::RecordFunction guard_;
};

/// A counter of the calling thread's rank has this value from here on: "counter=<name>=<value>", a
/// scope with nothing in it, for the same readers.
inline void count_for_tools(const std::string& name, std::int64_t value) {
  at::RecordFunction guard(at::RecordScope::USER_SCOPE);
  if (!guard.isActive()) return;
  const std::string text = "counter=" + name + "=" + std::to_string(value);
  guard.before(std::string_view(text));
  guard.end();
}

/// The layer whose backward runs now. Backward has no call tree of modules, so each module's output
/// announces its module when the gradient arrives there; the announcement holds until the next one,
/// or until close().
class BackwardLayer {
 public:
  void switch_to(std::string_view name) {
    scope_.reset();
    scope_.emplace(name);
  }
  void close() { scope_.reset(); }

  /// Sees each module's output ("layer=<module path>", output) while it is set: a search for the
  /// first wrong number.
  using Watch = std::function<void(const std::string& layer, const at::Tensor& output)>;
  void watch(Watch watch) { watch_ = std::move(watch); }
  void leaves(const std::string& layer, const at::Tensor& output) const {
    if (watch_) watch_(layer, output);
  }

 private:
  std::optional<Scope> scope_;
  Watch watch_;
};

/// One module's name, in forward and in backward.
class LayerScope {
 public:
  LayerScope(const std::string& path, std::shared_ptr<BackwardLayer> backward)
      : name_(std::make_shared<const std::string>("layer=" + path)),
        backward_(std::move(backward)) {}

  [[nodiscard]] Scope enter() const { return Scope(*name_); }

  /// Marks `output` as this module's: the backward operations after it carry the module's name.
  at::Tensor leave(at::Tensor output) const {
    if (backward_) backward_->leaves(*name_, output);
    if (const auto& node = output.grad_fn())
      node->add_pre_hook(std::make_unique<Announce>(name_, backward_));
    return output;
  }

 private:
  struct Announce : torch::autograd::FunctionPreHook {
    Announce(std::shared_ptr<const std::string> n, std::shared_ptr<BackwardLayer> b)
        : name(std::move(n)), backward(std::move(b)) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& grads) override {
      backward->switch_to(*name);
      return grads;
    }
    std::shared_ptr<const std::string> name;
    std::shared_ptr<BackwardLayer> backward;
  };

  std::shared_ptr<const std::string> name_;
  std::shared_ptr<BackwardLayer> backward_;
};

}  // namespace trellis::trainer
