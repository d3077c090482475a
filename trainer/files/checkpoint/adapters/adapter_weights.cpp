#include "trainer/files/checkpoint/adapters/adapter_weights.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::adapters {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.";

const TensorEntry* find(const TensorSource& source, const std::string& key) {
  const auto found = std::ranges::lower_bound(source.tensors(), key, {}, &TensorEntry::key);
  return found != source.tensors().end() && found->key == key ? &*found : nullptr;
}

/// Makes slices from an adapter's A, and from its B and weights under the names of the hub.
class Reader {
 public:
  explicit Reader(const TensorSource& source) : source_(source) {}

  void read(const TensorEntry& a) {
    const std::string path = a.key.substr(0, a.key.size() - kA.size());
    const std::size_t dot = path.rfind('.');
    const std::string layer = path.substr(0, dot), name = path.substr(dot + 1);
    if (name == "gate_up_proj")
      return fused_rows(a, needed(path + ".lora_B.weight"), layer, {"gate_proj", "up_proj"});
    if (name == "qkv_proj") return queries_keys_values(a, path, layer);
    const TensorEntry* b = needed(path + ".lora_B.weight");
    if (b == nullptr) return;
    const bool embedding = name == "embed_tokens";
    add({path, a, *b, 0, b->shape[0], embedding});
  }

  [[nodiscard]] std::vector<AdapterSlice> take() {
    problems_.throw_if_any();
    std::ranges::sort(slices_, {}, &AdapterSlice::module);
    return std::move(slices_);
  }

 private:
  void problem(const std::string& text) { problems_.add(source_.address(), text); }

  const TensorEntry* needed(const std::string& key) {
    const TensorEntry* entry = find(source_, key);
    if (entry == nullptr) problem("has no " + key + ", which the adapter's other half belongs to");
    return entry;
  }

  void queries_keys_values(const TensorEntry& a, const std::string& path,
                           const std::string& layer) {
    const std::vector<std::string> names = {"q_proj", "k_proj", "v_proj"};
    if (const TensorEntry* b = find(source_, path + ".lora_B.weight_qkv"))
      return fused_rows(a, b, layer, names);
    const char* keys[] = {".lora_B.weight_q", ".lora_B.weight_k", ".lora_B.weight_v"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      const TensorEntry* b = needed(path + keys[i]);
      if (b != nullptr) add({layer + "." + names[i], a, *b, 0, b->shape[0], false});
    }
  }

  /// One B for all, whose rows are those of the modules' weights one after the other.
  void fused_rows(const TensorEntry& a, const TensorEntry* b, const std::string& layer,
                  const std::vector<std::string>& names) {
    if (b == nullptr) return;
    std::int64_t first = 0;
    for (const std::string& name : names) {
      const std::string module = layer + "." + name;
      const TensorEntry* weight = needed(module + ".weight");
      if (weight == nullptr) return;
      add({module, a, *b, first, weight->shape[0], false});
      first += weight->shape[0];
    }
    if (first != b->shape[0])
      problem(b->key + ": expected " + std::to_string(first) +
              " rows, those of the weights that it adapts, got " + std::to_string(b->shape[0]));
  }

  void add(AdapterSlice slice) {
    const TensorEntry* weight = find(source_, slice.module + ".weight");
    if (weight == nullptr)
      return problem("has an adapter of " + slice.module + ", and no weight " + slice.module +
                     ".weight: the adapter is of another model, or of a family that Hugging Face "
                     "does not have");
    const std::int64_t in = slice.embedding ? slice.a.shape[0] : slice.a.shape[1];
    const Shape expected = slice.embedding ? Shape{in, slice.rows} : Shape{slice.rows, in};
    if (weight->shape != expected || slice.b.shape[1] != slice.rank())
      return problem(slice.a.key + " " + text_of(slice.a.shape) + " and " + slice.b.key + " " +
                     text_of(slice.b.shape) + " do not fit " + weight->key + " " +
                     text_of(weight->shape));
    slices_.push_back(std::move(slice));
  }

  const TensorSource& source_;
  std::vector<AdapterSlice> slices_;
  Problems problems_;
};

}  // namespace

bool is_adapter_key(const std::string& key) {
  return key.find(".lora_A.") != std::string::npos || key.find(kB) != std::string::npos;
}

std::vector<AdapterSlice> adapters_of(const TensorSource& source) {
  Reader reader(source);
  for (const TensorEntry& entry : source.tensors()) {
    if (parse_state_key(entry.key).state.empty() && entry.key.ends_with(kA)) reader.read(entry);
  }
  return reader.take();
}

}  // namespace trellis::checkpoint::adapters
