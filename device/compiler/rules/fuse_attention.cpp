// softmax(scale · q kᵀ, masked) v written as single operations, with or without dropout of the
// probabilities, and its derivative, become the two flash kernels where nothing else reads a score,
// a probability or what was drawn: attention whose probabilities are recomputed or not needed
// again. Probabilities that an earlier graph saved are read by another graph: there the operations
// stay as they are.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "device/compiler/graph/scalars.h"
#include "device/compiler/rules/graph_editor.h"

namespace trellis::device {
namespace {

using Nodes = std::set<std::uint32_t>;

bool is_product(const std::string& name) {
  return name == "bmm" || name == "matmul" || name == "mm";
}

/// One element-wise operation between a product and a softmax.
struct Hop {
  std::uint32_t from = 0, to = 0;  ///< values
  double factor = 1;
  bool masks = false;  ///< above the diagonal
};

/// Probabilities are kept where `mask` is 1, and then count `factor` times.
struct Drop {
  std::uint32_t mask = 0;  ///< buffer
  std::uint32_t draw = 0;  ///< node
  double keep = 1, factor = 1;
};

class AttentionFusion {
 public:
  explicit AttentionFusion(GraphEditor& editor) : g_(editor) {}

  bool run() {
    bool changed = false;
    for (std::uint32_t n = 0; n < g_.graph().nodes.size(); ++n) {
      if (g_.name(n) != "_softmax" && g_.name(n) != "_safe_softmax") continue;
      const std::optional<Forward> forward = match_forward(n);
      if (forward) changed = fuse(*forward) || changed;
    }
    return changed;
  }

 private:
  struct Forward {
    Nodes nodes;
    Nodes inner;  ///< buffers of scores and probabilities
    std::uint32_t q = 0, k_transposed = 0, v = 0,
                  out = 0;                   ///< values [b, s, d], [b, d, s], [b, s, d], [b, s, d]
    std::uint32_t softmax = 0, product = 0;  ///< nodes
    std::uint32_t probabilities = 0,
                  narrow = 0;  ///< buffers: the softmax's result, and as the product reads it
    double factor = 1;
    bool causal = false;
    std::optional<Drop> drop = std::nullopt;
  };
  struct Backward {
    Nodes nodes;
    Nodes inner;
    std::uint32_t grad_out = 0, grad_q = 0, grad_k_transposed = 0, grad_v = 0;  ///< values
    double factor = 1;
    bool causal = false, drops = false;
    double drop_factor = 1;
    [[nodiscard]] std::uint32_t last() const { return *nodes.rbegin(); }
  };

  // ── one operation ──

  /// The effect of node n on the one tensor that runs through it; nullopt: something else than a
  /// copy, a factor or a mask that fills with `fill`.
  std::optional<Hop> hop(std::uint32_t n, double fill) const {
    const Node& node = g_.node(n);
    const std::string& name = g_.name(n);
    if (node.outputs.size() != 1 || node.inputs.empty()) return std::nullopt;
    Hop h{node.inputs[0], node.outputs[0]};
    if (const auto source = g_.copy_source(n)) {
      h.from = node.inputs[*source];
    } else if (name == "mul" && node.inputs.size() == 1) {
      h.factor = Scalars(node.scalars).number("other", Scalars(node.scalars).number("self", 1));
    } else if (name == "masked_fill" && node.inputs.size() == 2) {
      h.masks = true;
      if (Scalars(node.scalars).number("value", 0) != fill || !is_above_diagonal(node.inputs[1], n))
        return std::nullopt;
    } else {
      return std::nullopt;
    }
    if (!g_.is_whole(h.from) || !g_.is_whole(h.to) ||
        g_.view(h.from).elements() != g_.view(h.to).elements())
      return std::nullopt;
    return h;
  }

  /// The mask is true exactly above the diagonal of its last two dimensions: triu(ones, 1).
  bool is_above_diagonal(std::uint32_t mask, std::uint32_t before) const {
    const TensorView& v = g_.view(mask);
    for (std::size_t d = 0; d + 2 < v.sizes.size(); ++d) {
      if (v.sizes[d] != 1 && v.strides[d] != 0) return false;
    }
    const auto triangle = g_.writer(g_.buffer(mask), before);
    if (!triangle || g_.name(*triangle) != "triu" ||
        Scalars(g_.node(*triangle).scalars).number("diagonal", 0) != 1)
      return false;
    const Node& node = g_.node(*triangle);
    if (node.inputs.size() != 1 || !g_.is_whole(node.inputs[0]) || !g_.is_whole(node.outputs[0]))
      return false;
    const auto ones = g_.writer(g_.buffer(node.inputs[0]), *triangle);
    if (!ones) return false;
    const Scalars scalars(g_.node(*ones).scalars);
    return g_.name(*ones) == "ones" ||
           (g_.name(*ones) == "fill" &&
            scalars.number(scalars.has("fill_value") ? "fill_value" : "value", 0) == 1);
  }

  /// Node n multiplies what runs through it by a mask that was drawn for it: by whom; nullopt: it
  /// does not.
  std::optional<std::pair<Hop, Drop>> drop(std::uint32_t n) const {
    const Node& node = g_.node(n);
    if (g_.name(n) != "mul" || node.inputs.size() != 2 || node.outputs.size() != 1)
      return std::nullopt;
    for (const std::size_t side : {1, 0}) {
      const std::uint32_t mask = node.inputs[side], from = node.inputs[1 - side],
                          to = node.outputs[0];
      const auto draw = g_.writer(g_.buffer(mask), n);
      if (!draw || g_.name(*draw) != "random_mask" || !g_.is_whole(mask) || !g_.is_whole(from) ||
          !g_.is_whole(to))
        continue;
      if (g_.view(mask).elements() != g_.view(from).elements() ||
          g_.view(from).elements() != g_.view(to).elements())
        continue;
      return std::pair{Hop{from, to}, Drop{g_.buffer(mask), *draw,
                                           Scalars(g_.node(*draw).scalars).number("p", 1)}};
    }
    return std::nullopt;
  }

  // ── forward ──

  std::optional<Forward> match_forward(std::uint32_t softmax) const {
    Forward f;
    f.softmax = softmax;
    f.nodes.insert(softmax);
    const Node& node = g_.node(softmax);
    if (node.inputs.size() != 1 || node.outputs.size() != 1 || !g_.is_whole(node.inputs[0]) ||
        !g_.is_whole(node.outputs[0]))
      return std::nullopt;
    const auto dim = Scalars(node.scalars).integer("dim", -1);
    const TensorView& shape = g_.view(node.inputs[0]);
    if (dim != -1 && dim != static_cast<std::int64_t>(shape.sizes.size()) - 1) return std::nullopt;
    if (!match_scores(f) || !match_product(f)) return std::nullopt;
    return f;
  }

  /// From the softmax back to the product that made the scores.
  bool match_scores(Forward& f) const {
    std::uint32_t value = g_.node(f.softmax).inputs[0], at = f.softmax;
    for (int hops = 0; hops < 8; ++hops) {
      f.inner.insert(g_.buffer(value));
      const auto writer = g_.writer(g_.buffer(value), at);
      if (!writer) return false;
      at = *writer;
      f.nodes.insert(at);
      if (is_product(g_.name(at))) {
        f.q = g_.node(at).inputs[0];
        f.k_transposed = g_.node(at).inputs[1];
        return g_.view(f.q).sizes.size() == 3 && g_.view(f.k_transposed).sizes.size() == 3 &&
               g_.is_whole(g_.node(at).outputs[0]);
      }
      const auto h = hop(at, -std::numeric_limits<double>::infinity());
      if (!h || (h->masks && f.causal)) return false;
      f.causal = f.causal || h->masks;
      f.factor *= h->factor;
      value = h->from;
    }
    return false;
  }

  /// From the softmax on to the product with the values.
  bool match_product(Forward& f) const {
    f.probabilities = f.narrow = g_.buffer(g_.node(f.softmax).outputs[0]);
    f.inner.insert(f.probabilities);
    for (std::optional<std::uint32_t> n = next_reader(f.narrow, f.softmax); n && take_step(f, *n);
         n = next_reader(f.narrow, *n)) {
      f.inner.insert(f.narrow);
      f.nodes.insert(*n);
    }
    for (const auto& use : g_.uses(f.narrow)) {
      if (use.node <= f.softmax || !use.reads || !is_product(g_.name(use.node))) continue;
      const Node& node = g_.node(use.node);
      if (g_.buffer(node.inputs[0]) != f.narrow || !g_.is_whole(node.inputs[0])) return false;
      f.product = use.node;
      f.v = node.inputs[1];
      f.out = node.outputs[0];
      f.nodes.insert(use.node);
      return g_.view(f.v).sizes.size() == 3 && g_.view(f.out).sizes.size() == 3;
    }
    return false;
  }

  std::optional<std::uint32_t> next_reader(std::uint32_t buffer, std::uint32_t after) const {
    const auto& uses = g_.uses(buffer);
    const auto found = std::find_if(uses.begin(), uses.end(),
                                    [&](const auto& use) { return use.node > after && use.reads; });
    return found == uses.end() ? std::nullopt : std::optional(found->node);
  }

  /// A cast of the probabilities, dropout's mask or, after it, dropout's factor.
  bool take_step(Forward& f, std::uint32_t n) const {
    if (const auto dropped = drop(n); dropped && !f.drop) {
      if (g_.buffer(dropped->first.from) != f.narrow) return false;
      f.drop = dropped->second;
      f.nodes.insert(f.drop->draw);
      f.inner.insert(f.drop->mask);
      return f.narrow = g_.buffer(dropped->first.to), true;
    }
    const auto h = hop(n, 0);
    if (!h || h->masks || g_.buffer(h->from) != f.narrow || (h->factor != 1 && !f.drop))
      return false;
    if (f.drop) f.drop->factor *= h->factor;
    return f.narrow = g_.buffer(h->to), true;
  }

  // ── backward ──

  std::optional<Backward> match_backward(const Forward& f) const {
    for (const auto& use : g_.uses(f.probabilities)) {
      if (g_.name(use.node) != "_softmax_backward_data") continue;
      const Node& node = g_.node(use.node);
      if (node.inputs.size() != 2 || g_.buffer(node.inputs[1]) != f.probabilities)
        return std::nullopt;
      Backward b;
      b.nodes.insert(use.node);
      if (!match_grad_of_probabilities(b, f, use.node) || !match_grad_of_scores(b, f, use.node) ||
          !match_grad_of_values(b, f))
        return std::nullopt;
      return b;
    }
    return std::nullopt;
  }

  /// grad_out · vᵀ on its way into the softmax's derivative.
  bool match_grad_of_probabilities(Backward& b, const Forward& f, std::uint32_t softmax) const {
    std::uint32_t value = g_.node(softmax).inputs[0], at = softmax;
    for (int hops = 0; hops < 6; ++hops) {
      b.inner.insert(g_.buffer(value));
      const auto writer = g_.writer(g_.buffer(value), at);
      if (!writer) return false;
      at = *writer;
      b.nodes.insert(at);
      if (is_product(g_.name(at))) {
        b.grad_out = g_.node(at).inputs[0];
        return g_.view(b.grad_out).sizes == g_.view(f.out).sizes &&
               g_.buffer(g_.node(at).inputs[1]) == g_.buffer(f.v);
      }
      if (const auto dropped = drop(at);
          dropped && f.drop && dropped->second.mask == f.drop->mask && !b.drops) {
        b.drops = true;
        value = dropped->first.from;
        continue;
      }
      const auto h = hop(at, 0);
      if (!h || h->masks) return false;
      b.drop_factor *= h->factor;
      value = h->from;
    }
    return false;
  }

  /// The softmax's derivative on its way into the products with keys and queries.
  bool match_grad_of_scores(Backward& b, const Forward& f, std::uint32_t softmax) const {
    std::uint32_t buffer = g_.buffer(g_.node(softmax).outputs[0]), at = softmax;
    for (int hops = 0; hops < 8; ++hops) {
      b.inner.insert(buffer);
      std::vector<std::uint32_t> readers;
      for (const auto& use : g_.uses(buffer)) {
        if (use.node > at && use.reads) readers.push_back(use.node);
      }
      if (readers.empty()) return false;
      if (is_product(g_.name(readers[0])))
        return readers.size() == 2 && take_products(b, f, buffer, readers);
      const auto h = hop(readers[0], 0);
      if (!h || g_.buffer(h->from) != buffer ||
          (readers.size() > 1 && g_.buffer(h->to) != buffer) || (h->masks && b.causal))
        return false;
      b.causal = b.causal || h->masks;
      b.factor *= h->factor;
      buffer = g_.buffer(h->to);
      at = readers[0];
      b.nodes.insert(at);
    }
    return false;
  }

  bool take_products(Backward& b, const Forward& f, std::uint32_t grad_scores,
                     const std::vector<std::uint32_t>& readers) const {
    int found = 0;
    for (const std::uint32_t n : readers) {
      const Node& node = g_.node(n);
      if (!is_product(g_.name(n)) || node.outputs.size() != 1) return false;
      if (g_.buffer(node.inputs[0]) == grad_scores &&
          g_.buffer(node.inputs[1]) == g_.buffer(f.k_transposed)) {
        b.grad_q = node.outputs[0], found |= 1;
      } else if (g_.buffer(node.inputs[1]) == grad_scores &&
                 g_.buffer(node.inputs[0]) == g_.buffer(f.q)) {
        b.grad_k_transposed = node.outputs[0], found |= 2;
      }
      b.nodes.insert(n);
    }
    return found == 3 && g_.view(b.grad_q).sizes == g_.view(f.q).sizes &&
           g_.view(b.grad_k_transposed).sizes == g_.view(f.k_transposed).sizes;
  }

  bool match_grad_of_values(Backward& b, const Forward& f) const {
    for (const auto& use : g_.uses(f.narrow)) {
      if (use.node <= f.product || !is_product(g_.name(use.node))) continue;
      const Node& node = g_.node(use.node);
      if (g_.buffer(node.inputs[0]) != f.narrow ||
          g_.buffer(node.inputs[1]) != g_.buffer(b.grad_out) || b.nodes.contains(use.node))
        continue;
      b.grad_v = node.outputs[0];
      b.nodes.insert(use.node);
      return g_.view(b.grad_v).sizes == g_.view(f.v).sizes;
    }
    return false;
  }

  // ── the change ──

  /// No one but `nodes` sees what is in `inner`.
  bool is_private(const Nodes& inner, const Nodes& nodes) const {
    return std::all_of(inner.begin(), inner.end(), [&](std::uint32_t buffer) {
      const auto& uses = g_.uses(buffer);
      return g_.is_temporary(buffer) && std::all_of(uses.begin(), uses.end(), [&](const auto& use) {
               return nodes.contains(use.node);
             });
    });
  }

  /// No one reads it until node `until`, and it is not written again until then.
  bool waits(std::uint32_t value, const Nodes& nodes, std::uint32_t until) const {
    const auto& uses = g_.uses(g_.buffer(value));
    return std::all_of(uses.begin(), uses.end(), [&](const auto& use) {
      return use.node >= until || nodes.contains(use.node) || use.node < *nodes.begin();
    });
  }

  bool fuse(const Forward& f) {
    const std::int64_t depth = g_.view(f.q).sizes[2], queries = g_.view(f.q).sizes[1],
                       keys = g_.view(f.v).sizes[1];
    if (depth > 128 || f.factor <= 0 || (f.causal && queries != keys) ||
        g_.view(f.v).sizes[2] != depth)
      return false;
    std::optional<Backward> b = match_backward(f);
    if (b && !belongs(*b, f)) b.reset();
    Nodes nodes = f.nodes, inner = f.inner;
    if (b)
      nodes.insert(b->nodes.begin(), b->nodes.end()),
          inner.insert(b->inner.begin(), b->inner.end());
    if (!is_private(inner, nodes)) return false;
    for (const std::uint32_t input : {f.q, f.k_transposed, f.v}) {
      if (g_.written_between(g_.buffer(input), *f.nodes.begin(), b ? b->last() : f.product))
        return false;
    }
    write(f, b);
    return true;
  }

  /// The derivative has the same mask and factor, and what it needs is still there when it ends.
  bool belongs(const Backward& b, const Forward& f) const {
    const auto equal = [](double x, double y) { return std::abs(x - y) <= 1e-12 * std::abs(y); };
    if (b.causal != f.causal || !equal(b.factor, f.factor) || b.drops != f.drop.has_value() ||
        !equal(b.drop_factor, f.drop ? f.drop->factor : 1))
      return false;
    if (g_.written_between(g_.buffer(f.out), f.product, b.last()) ||
        g_.written_between(g_.buffer(b.grad_out), *b.nodes.begin(), b.last()))
      return false;
    return waits(b.grad_q, b.nodes, b.last()) && waits(b.grad_k_transposed, b.nodes, b.last()) &&
           waits(b.grad_v, b.nodes, b.last());
  }

  void write(const Forward& f, const std::optional<Backward>& b) {
    std::string scalars = fmt::format("is_causal={} scale={}", f.causal ? 1 : 0, f.factor);
    if (f.drop) scalars += fmt::format(" keep={} factor={}", f.drop->keep, f.drop->factor);
    const std::uint32_t q = heads(f.q), k = heads(swapped(f.k_transposed)), v = heads(f.v),
                        out = heads(f.out);
    for (const std::uint32_t n : f.nodes) g_.absorb(n);
    std::vector<std::uint32_t> results{out};
    if (b) results.push_back(logsumexp(f));
    if (b && f.drop) results.push_back(kept(f));
    g_.replace(f.product, "_scaled_dot_product_flash_attention_for_cpu", scalars, {q, k, v},
               results);
    if (!b) return;
    const std::uint32_t grad_out = heads(b->grad_out), grad_q = heads(b->grad_q),
                        grad_k = heads(swapped(b->grad_k_transposed)), grad_v = heads(b->grad_v);
    std::vector<std::uint32_t> sides{grad_out, q, k, v, out, results[1]};
    if (f.drop) sides.push_back(results[2]);
    for (const std::uint32_t n : b->nodes) g_.absorb(n);
    g_.replace(b->last(), "_scaled_dot_product_flash_attention_for_cpu_backward", scalars, sides,
               {grad_q, grad_k, grad_v});
  }

  /// [b, s, d] as [1, b, s, d].
  std::uint32_t heads(std::uint32_t value) {
    TensorView view = g_.view(value);
    view.sizes.insert(view.sizes.begin(), 1);
    view.strides.insert(view.strides.begin(), 0);
    return g_.add_value(g_.buffer(value), view);
  }
  std::uint32_t swapped(std::uint32_t value) {
    TensorView view = g_.view(value);
    std::swap(view.sizes[1], view.sizes[2]);
    std::swap(view.strides[1], view.strides[2]);
    return g_.add_value(g_.buffer(value), view);
  }
  std::uint32_t logsumexp(const Forward& f) {
    const std::int64_t heads = g_.view(f.q).sizes[0], rows = g_.view(f.q).sizes[1];
    return g_.add_value(g_.add_buffer(heads * rows * 4),
                        {{1, heads, rows}, {heads * rows, rows, 1}, 0, DType::kFp32});
  }

  /// Which probabilities are kept, a byte each.
  std::uint32_t kept(const Forward& f) {
    const std::int64_t heads = g_.view(f.q).sizes[0], rows = g_.view(f.q).sizes[1],
                       keys = g_.view(f.v).sizes[1];
    return g_.add_value(
        g_.add_buffer(heads * rows * keys),
        {{1, heads, rows, keys}, {heads * rows * keys, rows * keys, keys, 1}, 0, DType::kUInt8});
  }

  GraphEditor& g_;
};

}  // namespace

bool fuse_attention(GraphEditor& editor) { return AttentionFusion(editor).run(); }

}  // namespace trellis::device
