#include "trainer/files/checkpoint/adapters/fitted_adapter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/adapters/adapter_weights.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::adapters {
namespace {

/// A separate projection's part of a tensor: all rows of an A that several share, or its rows of B.
struct Unit {
  std::string key;  ///< "model.layers.0.mlp.gate_proj.lora_B.weight"
  std::int64_t first = 0, rows = 0;
  bool is_shared = false;
};

struct FusedLayer {
  std::string name;                ///< ".gate_up_proj."
  std::vector<std::string> parts;  ///< ".gate_proj."
  std::vector<std::int64_t> rows;  ///< of each part's B
};

std::vector<Unit> units_of(const std::string& key, std::int64_t rows,
                           const ProjectionRows& projections) {
  const std::int64_t q = projections.query, kv = projections.key_value;
  const FusedLayer all[] = {
      {".gate_up_proj.", {".gate_proj.", ".up_proj."}, {rows / 2, rows - rows / 2}},
      {".qkv_proj.", {".q_proj.", ".k_proj.", ".v_proj."}, {q, kv, kv}}};
  for (const FusedLayer& layer : all) {
    const std::size_t at = key.find(layer.name);
    if (at == std::string::npos || !is_adapter_key(key)) continue;
    const std::string path = key.substr(0, at);
    const std::string end = key.substr(at + layer.name.size());  // "lora_B.weight_q"
    const bool is_a = end == "lora_A.weight";
    std::vector<Unit> units;
    for (std::size_t i = 0, first = 0; i < layer.parts.size(); ++i) {
      const std::string only = std::string("lora_B.weight_") + layer.parts[i][1];
      const std::string unit = path + layer.parts[i];
      if (is_a) {
        units.push_back({unit + end, 0, rows, true});
      } else if (end == only) {
        return {{unit + "lora_B.weight", 0, rows}};
      } else {
        units.push_back({unit + "lora_B.weight", static_cast<std::int64_t>(first), layer.rows[i]});
        first += static_cast<std::size_t>(layer.rows[i]);
      }
    }
    return units;
  }
  return {{key, 0, rows}};
}

std::string module_of(const std::string& key) {
  const std::size_t adapter = key.find(".lora_");
  return key.substr(0, adapter == std::string::npos ? key.rfind('.') : adapter);
}

}  // namespace

class FittedAdapter::Fitter {
 public:
  Fitter(FittedAdapter& fitted, const ProjectionRows& projections)
      : fitted_(fitted), source_(*fitted.source_), projections_(projections) {
    for (const TensorEntry& entry : source_.tensors()) index(entry);
  }

  void fit(const TrainedTensor& wanted) {
    const bool is_table = is_vocabulary_weight(wanted.key);
    const std::int64_t rows = wanted.shape.empty() ? 1 : wanted.shape.front();
    TensorEntry entry{wanted.key, DType::kFloat32, wanted.shape};
    std::vector<Rows> parts;
    const std::vector<Unit> units = units_of(wanted.key, rows, projections_);
    for (const Unit& unit : units) used_.insert(unit.key);
    for (const Unit& unit : units) {
      const auto found = saved_.find(unit.key);
      if (found == saved_.end()) return missing(unit.key);
      const Saved& saved = found->second;
      Shape got = saved.entry->shape, expected = wanted.shape;
      if (!got.empty()) got.front() = saved.rows;
      if (!expected.empty()) expected.front() = unit.rows;
      if (is_table && got.size() == expected.size()) {
        // Rows of tokens: their padding depends on the layout.
        entry.shape.front() = expected.front() = got.front();
      }
      if (got != expected) return other_shape(*saved.entry, unit.key, expected, got);
      const Rows part{saved.entry, saved.first, unit.is_shared ? 0 : unit.first, got.front()};
      if (unit.is_shared && !parts.empty()) {
        if (!is_equal(parts.front(), part)) return another_a(wanted.key, *saved.entry);
        continue;
      }
      parts.push_back(part);
    }
    add(std::move(entry), std::move(parts));
  }

  /// After all that is wanted.
  void finish() {
    for (const auto& [key, saved] : saved_) {
      const bool counts = is_adapter_key(key) || std::string(source_.format()) == "peft";
      if (used_.contains(key) || !counts) continue;
      extra_.insert(module_of(key));
    }
    list(missing_,
         "has no adapter, or no whole weight, of {}, which the configuration trains: "
         "expected the modules of peft.target_modules and peft.modules_to_save; correct them, or "
         "name the adapters of this training");
    list(extra_,
         "holds what was trained of {}, which the configuration does not train: expected the "
         "modules of peft.target_modules and peft.modules_to_save alone; add it there, or name "
         "other adapters");
    problems_.throw_if_any();
  }

 private:
  struct Saved {
    const TensorEntry* entry = nullptr;
    std::int64_t first = 0, rows = 0;
  };

  void index(const TensorEntry& entry) {
    const StateKey key = parse_state_key(entry.key);
    const bool is_master = key.state == kMasterState;
    if (!key.state.empty() && !is_master) return;
    const std::int64_t rows = entry.shape.empty() ? 1 : entry.shape.front();
    for (const Unit& unit : units_of(key.weight, rows, projections_)) {
      Saved& saved = saved_[unit.key];
      // Training goes on from its masters.
      if (saved.entry == nullptr || is_master) saved = {&entry, unit.first, unit.rows};
    }
  }

  void missing(const std::string& key) { missing_.insert(module_of(key)); }

  void other_shape(const TensorEntry& saved, const std::string& unit, const Shape& expected,
                   const Shape& got) {
    const bool other_rank = is_adapter_key(unit) && got.size() == 2 && expected.size() == 2 &&
                            ((got[0] == expected[0]) != (got[1] == expected[1]));
    problem(saved.key, "expected " + text_of(expected) + ", as the configuration's, got " +
                           text_of(got) +
                           (other_rank ? ": of another rank, or of another base model; correct "
                                         "peft.lora_rank, or name the adapters of this model"
                                       : ": of another base model; name the adapters of this one"));
  }

  void another_a(const std::string& wanted, const TensorEntry& other) {
    const bool gate = wanted.find(".gate_up_proj.") != std::string::npos;
    problem(other.key,
            std::string("expected the same A as that of ") + (gate ? "gate_proj" : "q_proj") +
                ", because " + wanted.substr(0, wanted.find(".lora_")) +
                " holds these layers in one and has one A, got another; separate them: " +
                (gate ? "model.fuse_gate_up false" : "model.qkv_linear false"));
  }

  [[nodiscard]] bool is_equal(const Rows& a, const Rows& b) const {
    if (a.from == b.from && a.first == b.first) return true;
    return a.from->dtype == b.from->dtype && bytes_of(a) == bytes_of(b);
  }

  [[nodiscard]] std::vector<std::byte> bytes_of(const Rows& rows) const {
    Box box{Shape(rows.from->shape.size(), 0), rows.from->shape};
    box.offset.front() = rows.first;
    box.shape.front() = rows.count;
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(box.elements() * element_bytes(rows.from->dtype)));
    source_.read(*rows.from, box, bytes);
    return bytes;
  }

  void add(TensorEntry entry, std::vector<Rows> parts) {
    entry.dtype = parts.front().from->dtype;
    for (const Rows& part : parts) {
      if (part.from->dtype != entry.dtype)
        return problem(part.from->key, std::string("expected the type ") + name(entry.dtype) +
                                           " of the layers that lie in one with it, got " +
                                           name(part.from->dtype));
    }
    fitted_.rows_.emplace(entry.key, std::move(parts));
    fitted_.tensors_.push_back(std::move(entry));
  }

  void problem(const std::string& key, const std::string& text) {
    problems_.add(source_.address() + ": " + terminal_line(key), text);
  }

  void list(const std::set<std::string>& modules, const std::string& text) {
    constexpr std::size_t kMost = 6;
    if (modules.empty()) return;
    std::string names;
    std::size_t count = 0;
    for (const std::string& module : modules) {
      if (++count > kMost) break;
      names += (names.empty() ? "" : ", ") + terminal_line(module);
    }
    if (modules.size() > kMost) names += ", … (" + std::to_string(modules.size()) + " in all)";
    std::string line = text;
    problems_.add(source_.address(), line.replace(line.find("{}"), 2, names));
  }

  FittedAdapter& fitted_;
  const TensorSource& source_;
  ProjectionRows projections_;
  std::map<std::string, Saved> saved_;  ///< by unit
  std::set<std::string> used_, missing_, extra_;
  Problems problems_;
};

FittedAdapter::FittedAdapter(std::unique_ptr<TensorSource> source,
                             const std::vector<TrainedTensor>& wanted,
                             const ProjectionRows& projections)
    : source_(std::move(source)) {
  Fitter fitter(*this, projections);
  for (const TrainedTensor& tensor : wanted) fitter.fit(tensor);
  fitter.finish();
  std::ranges::sort(tensors_, {}, &TensorEntry::key);
}

void FittedAdapter::read(const TensorEntry& tensor, const Box& box,
                         std::span<std::byte> into) const {
  const std::int64_t first = box.offset.front(), end = first + box.shape.front();
  const auto row_bytes = static_cast<std::size_t>(
      box.shape.front() == 0 ? 0
                             : box.elements() / box.shape.front() * element_bytes(tensor.dtype));
  for (const Rows& rows : rows_.at(tensor.key)) {
    const std::int64_t begin = std::max(first, rows.into),
                       stop = std::min(end, rows.into + rows.count);
    if (begin >= stop) continue;
    Box part = box;
    part.offset.front() = rows.first + begin - rows.into;
    part.shape.front() = stop - begin;
    source_->read(*rows.from, part,
                  into.subspan(static_cast<std::size_t>(begin - first) * row_bytes,
                               static_cast<std::size_t>(stop - begin) * row_bytes));
  }
}

}  // namespace trellis::checkpoint::adapters
