#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Fully sharded data parallelism: ZeRO stage 3 (Rajbhandari et al., 2020), PyTorch's FSDP. Each
/// rank of a data-parallel group keeps its rows of every weight; a unit of the model, such as a
/// layer, has them whole only while it runs:
///
///   forward    gather 0 | run 0, gather 1 | run 1, gather 2, release 0 | …
///   backward   … | run 2, gather 1 | run 1, gather 0, release 2, reduce-scatter 2
///
/// With copies of the weights (hybrid sharding, PyTorch's HYBRID_SHARD) a group is that of one
/// copy: its gathers and reductions stay inside, and the optimizer adds up what the copies have.
///
/// The gather of the next unit travels while one runs, and so do the gradients of the one before.
/// The units whose backward is first stay whole after forward. Released weights read as
/// not-a-numbers, so that a use outside of its unit cannot go unseen.
class FullySharding {
 public:
  explicit FullySharding(const ParallelState& parallel);
  ~FullySharding();

  /// The weights that were made since the last call are one unit from now on; they are released.
  void end_unit(ParameterList& parameters);
  /// The last unit reads the weights of the first one too: a word embedding that is the head.
  void tie_last_to_first() { tied_ = true; }

  using Module = std::function<at::Tensor(const at::Tensor& input)>;
  /// Runs the module that has the weights of `unit`; with gradients they are there again when its
  /// backward runs. `input`: undefined for the first one, whose backward reads no weight.
  [[nodiscard]] at::Tensor run(int unit, const at::Tensor& input, const Module& module);

  /// All weights are whole while it lives. Values that are written to them stay. Collective.
  class Whole {
   public:
    explicit Whole(FullySharding* sharding);  ///< null: weights are whole anyway
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    FullySharding* sharding_;
  };

 private:
  struct Unit;
  [[nodiscard]] int num_units() const { return static_cast<int>(units_.size()); }
  void start_gather(int unit);
  void gather(int unit);
  void release(int unit);
  [[nodiscard]] bool is_kept(int unit) const;
  [[nodiscard]] ParallelGroup group_of(const Parameter& parameter) const;
  void keep_rows(Parameter& parameter) const;
  [[nodiscard]] at::Tensor released(const at::Tensor& weight);

  ParallelState parallel_;
  std::map<at::ScalarType, at::Tensor> not_a_number_;  ///< one element each
  bool tied_ = false;
  std::size_t seen_ = 0;  ///< parameters that are in units
  std::vector<std::unique_ptr<Unit>> units_;
};

}  // namespace trellis::trainer
