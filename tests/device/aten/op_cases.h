#pragma once

#include <functional>

#include "tests/device/aten/neuron_fixture.h"

/// Small programs of operators, to be run on two devices and compared.
namespace trellis::device::testing {

using at::Tensor;

/// Makes the same arguments on either device.
class Arguments {
 public:
  explicit Arguments(at::Device device)
      : device_(device), generator_(at::detail::createCPUGenerator(7)) {}
  Tensor real(at::IntArrayRef size, at::ScalarType type = at::kFloat) {
    return at::randn(size, generator_, at::TensorOptions(at::kFloat)).to(type).to(device_);
  }
  Tensor positive(at::IntArrayRef size, at::ScalarType type = at::kFloat) {
    return (at::rand(size, generator_, at::TensorOptions(at::kFloat)) + 0.5).to(type).to(device_);
  }
  Tensor integer(std::int64_t below, at::IntArrayRef size, at::ScalarType type = at::kLong) {
    return at::randint(0, below, size, generator_, at::TensorOptions(at::kLong))
        .to(type)
        .to(device_);
  }
  Tensor mask(at::IntArrayRef size) {
    return at::randint(0, 2, size, generator_, at::TensorOptions(at::kLong))
        .to(at::kBool)
        .to(device_);
  }
  at::Device device() const { return device_; }

 private:
  at::Device device_;
  at::Generator generator_;
};

using Results = std::vector<Tensor>;
struct Case {
  std::string name;
  std::function<Results(Arguments&, at::ScalarType)> run;
};

struct Group {
  std::vector<Case> cases;
  std::vector<at::ScalarType> types;
};

template <typename Body>
void for_each_case(const Group& group, Body body) {
  for (const Case& one : group.cases) {
    for (const at::ScalarType type : group.types) body(one, type);
  }
}

#define CASE(name, ...)                                    \
  Case {                                                   \
    name, [](Arguments& in, at::ScalarType t) -> Results { \
      static_cast<void>(t);                                \
      __VA_ARGS__                                          \
    }                                                      \
  }
#define UNARY(op)                                                               \
  CASE(#op, {                                                                   \
    return {at::op(in.positive({3, 5}, t)), at::op(in.positive({5, 3}, t).t()), \
            at::op(in.positive({0, 2}, t)), at::op(in.positive({}, t))};        \
  })
#define BINARY(op)                                                           \
  CASE(#op, {                                                                \
    const Tensor a = in.positive({3, 5}, t), b = in.positive({5, 3}, t).t(), \
                 row = in.positive({5}, t), scalar = in.positive({}, t);     \
    return {at::op(a, b), at::op(a, row), at::op(a, scalar),                 \
            at::op(a.slice(1, 0, 5, 2), b.slice(1, 0, 5, 2)),                \
            at::op(a.slice(0, 0, 0), b.slice(0, 0, 0))};                     \
  })

inline const std::vector<at::ScalarType> kFloating = {at::kFloat, at::kBFloat16, at::kDouble};
inline const std::vector<at::ScalarType> kNumbers = {at::kFloat, at::kBFloat16, at::kDouble,
                                                     at::kLong};
inline const std::vector<at::ScalarType> kAll = {at::kFloat, at::kBFloat16, at::kDouble, at::kLong,
                                                 at::kBool};

inline std::vector<Group> unary_groups() {
  return {
      {{UNARY(abs),   UNARY(neg),         UNARY(exp),   UNARY(log),        UNARY(sqrt),
        UNARY(rsqrt), UNARY(sin),         UNARY(cos),   UNARY(tanh),       UNARY(sigmoid),
        UNARY(relu),  UNARY(silu),        UNARY(gelu),  UNARY(erf),        UNARY(floor),
        UNARY(ceil),  UNARY(round),       UNARY(sign),  UNARY(reciprocal), UNARY(square),
        UNARY(log1p), UNARY(expm1),       UNARY(isnan), UNARY(isfinite),   UNARY(softplus),
        UNARY(mish),  UNARY(log_sigmoid), UNARY(trunc), UNARY(atan),       UNARY(leaky_relu),
        UNARY(elu),   UNARY(hardtanh)},
       kFloating},
      {{CASE("abs of complex numbers",
             {
               const Tensor a = in.positive({3, 5}, t);
               return {at::abs(at::complex(a, a).t())};
             })},
       {at::kFloat, at::kDouble}},
  };
}

inline std::vector<Group> binary_groups() {
  return {
      {{BINARY(add), BINARY(sub), BINARY(mul), BINARY(div), BINARY(maximum), BINARY(minimum),
        BINARY(eq), BINARY(lt), BINARY(ge), BINARY(ne), BINARY(pow), BINARY(fmod),
        BINARY(remainder), BINARY(atan2)},
       {at::kFloat, at::kDouble}},
      {{BINARY(add), BINARY(mul), BINARY(sub), BINARY(eq), BINARY(gt), BINARY(maximum)},
       {at::kBFloat16, at::kLong}},
      {{BINARY(logical_and), BINARY(logical_or), BINARY(bitwise_and), BINARY(bitwise_xor)},
       {at::kBool}},
  };
}

inline std::vector<Group> scalars_and_type_promotion_groups() {
  return {
      {{CASE("scalar right",
             {
               return {in.real({3, 4}, t) + 2, in.real({3, 4}, t) * 0.5, 2 - in.real({3, 4}, t),
                       in.real({3, 4}, t).pow(2)};
             }),
        CASE("promotion",
             {
               return {in.real({3}, t) + in.real({3}, at::kDouble),
                       in.integer(9, {3}) * in.real({3}, t), in.mask({3}) + in.integer(5, {3})};
             }),
        CASE("clamp",
             {
               return {in.real({4, 4}, t).clamp(-0.5, 0.5), in.real({4, 4}, t).clamp_min(0),
                       in.real({4, 4}, t).clamp_max(0)};
             }),
        CASE("addcmul",
             {
               return {at::addcmul(in.real({3, 3}, t), in.real({3, 3}, t), in.real({3, 3}, t), 2),
                       at::addcdiv(in.real({3}, t), in.real({3}, t), in.positive({3}, t), 2)};
             }),
        CASE("lerp", { return {at::lerp(in.real({5}, t), in.real({5}, t), 0.25)}; }),
        CASE("where",
             {
               return {at::where(in.mask({3, 4}), in.real({3, 4}, t), in.real({4}, t)),
                       at::where(in.mask({3, 4}), in.real({3, 4}, t), 0.0)};
             }),
        CASE("masked_fill",
             {
               return {in.real({3, 4}, t).masked_fill(in.mask({3, 4}), -1.0),
                       in.real({3, 4}, t).masked_fill(in.mask({4}), in.real({}, t))};
             })},
       {at::kFloat, at::kDouble}},
  };
}

inline std::vector<Group> reductions_groups() {
  return {
      {{CASE("sum",
             {
               const Tensor a = in.integer(5, {3, 4, 5}, t);
               return {a.sum(), a.sum(1), a.sum({0, 2}, true), a.transpose(0, 2).sum(0)};
             }),
        CASE("prod", { return {in.integer(3, {3, 4}, t).prod(1)}; }),
        CASE("argmax", { return {in.integer(50, {3, 9}, t).argmax(1)}; }),
        CASE("max",
             {
               auto [v, i] = in.integer(50, {3, 9}, t).max(1);
               return {v, i, in.integer(50, {7}, t).max(), in.integer(50, {7}, t).min()};
             }),
        CASE("cumsum", { return {in.integer(9, {3, 4}, t).cumsum(1)}; })},
       kNumbers},
      {{CASE("mean",
             {
               const Tensor a = in.real({3, 4, 5}, t);
               return {a.mean(), a.mean(1), a.mean({0, 2}, true)};
             }),
        CASE("var",
             {
               const Tensor a = in.real({3, 8}, t);
               auto [v, m] = at::var_mean(a, 1);
               return {a.var(1), a.std(1), v, m, a.std()};
             }),
        CASE("norm",
             {
               const Tensor a = in.real({3, 8}, t);
               return {a.norm(), at::linalg_vector_norm(a, 2, 1, true), a.norm(1)};
             }),
        CASE("logsumexp", { return {in.real({3, 8}, t).logsumexp(1)}; }),
        CASE("amax", { return {in.real({3, 8}, t).amax(1), in.real({3, 8}, t).amin(0)}; })},
       kFloating},
      {{CASE("all any",
             { return {in.mask({3, 4}).all(), in.mask({3, 4}).any(1), in.mask({3, 4}).sum(0)}; })},
       {at::kBool}},
  };
}

inline std::vector<Group> products_groups() {
  return {
      {{CASE("mm",
             {
               return {in.real({3, 4}, t).mm(in.real({4, 5}, t)),
                       in.real({4, 3}, t).t().mm(in.real({5, 4}, t).t()),
                       in.real({0, 4}, t).mm(in.real({4, 2}, t))};
             }),
        CASE("bmm", { return {in.real({2, 3, 4}, t).bmm(in.real({2, 4, 5}, t))}; }),
        CASE("addmm",
             { return {at::addmm(in.real({5}, t), in.real({3, 4}, t), in.real({4, 5}, t))}; }),
        CASE("baddbmm",
             {
               return {at::baddbmm(in.real({2, 3, 5}, t), in.real({2, 3, 4}, t),
                                   in.real({2, 4, 5}, t), 0.5, 2)};
             }),
        CASE("linear",
             {
               const Tensor w = in.real({5, 4}, t);
               return {at::linear(in.real({3, 4}, t), w),
                       at::linear(in.real({2, 3, 4}, t), w, in.real({5}, t))};
             }),
        CASE("matmul",
             {
               return {at::matmul(in.real({2, 3, 4}, t), in.real({4, 5}, t)),
                       at::matmul(in.real({4}, t), in.real({4}, t)),
                       at::matmul(in.real({2, 1, 3, 4}, t), in.real({3, 4, 2}, t))};
             }),
        CASE("einsum",
             {
               return {at::einsum("bhld,bhmd->bhlm",
                                  {in.real({2, 3, 4, 5}, t), in.real({2, 3, 6, 5}, t)})};
             }),
        CASE("outer",
             {
               return {at::outer(in.real({3}, t), in.real({4}, t)),
                       at::mv(in.real({3, 4}, t), in.real({4}, t)),
                       at::dot(in.real({4}, t), in.real({4}, t))};
             })},
       kFloating},
  };
}

inline std::vector<Group> shapes_and_views_groups() {
  return {
      {{CASE("view",
             {
               const Tensor a = in.integer(9, {4, 6}, t);
               return {a.view({2, 12}),     a.t(),          a.reshape({6, 4}),
                       a.t().reshape({24}), a.unsqueeze(1), a.view({2, 2, 6}).permute({2, 0, 1})};
             }),
        CASE("slice",
             {
               const Tensor a = in.integer(9, {4, 6}, t);
               return {a.slice(0, 1, 3),  a.select(1, 2), a.narrow(1, 2, 3),  a.slice(1, 0, 6, 2),
                       a.unfold(1, 3, 2), a.diagonal(),   a.expand({3, 4, 6})};
             }),
        CASE("split",
             {
               const Tensor a = in.integer(9, {4, 6}, t);
               Results r = a.split(2, 1);
               for (auto& p : a.chunk(2)) r.push_back(p);
               for (auto& p : a.unbind(0)) r.push_back(p);
               return r;
             }),
        CASE("cat",
             {
               const Tensor a = in.integer(9, {2, 3}, t);
               return {at::cat({a, a, in.integer(9, {1, 3}, t)}), at::stack({a, a}, 1),
                       at::cat({a.t(), a.t()}, 1)};
             }),
        CASE("contiguous",
             {
               const Tensor a = in.integer(9, {4, 6}, t);
               return {a.t().contiguous(), a.slice(1, 0, 6, 3).clone(), at::flatten(a.t())};
             }),
        CASE("flip roll",
             {
               const Tensor a = in.integer(9, {4, 6}, t);
               return {a.flip({0, 1}), a.roll({1}, {0}), a.repeat({2, 1}),
                       a.tril(),       a.triu(1),        a.repeat_interleave(2, 1)};
             }),
        CASE("pad",
             {
               return {at::constant_pad_nd(in.integer(9, {2, 3}, t), {1, 2}, 1),
                       in.integer(9, {2, 3}, t).index({at::indexing::Slice(), 1})};
             })},
       kAll},
  };
}

inline std::vector<Group> indexing_groups() {
  return {
      {{CASE("index_select",
             {
               return {in.real({5, 4}, t).index_select(0, in.integer(5, {7})),
                       in.real({5, 4}, t).index_select(1, in.integer(4, {2}))};
             }),
        CASE("gather", { return {in.real({5, 4}, t).gather(1, in.integer(4, {5, 2}))}; }),
        CASE("scatter",
             {
               return {in.real({5, 4}, t).scatter(1, in.integer(4, {5, 1}), 0.0),
                       at::zeros({5, 4}, in.real({1}, t).options())
                           .scatter_add(1, in.integer(4, {5, 4}), in.real({5, 4}, t))};
             }),
        CASE("index",
             {
               return {in.real({5, 4}, t).index({in.integer(5, {3})}),
                       in.real({5, 4}, t).index({in.integer(5, {3}), in.integer(4, {3})})};
             }),
        CASE("index_put",
             {
               Tensor a = in.real({5, 4}, t);
               a.index_put_({in.integer(5, {3})}, in.real({3, 4}, t));
               Tensor b = in.real({5, 4}, t).index_put({in.mask({5, 4})}, in.real({}, t));
               return {a, b};
             }),
        CASE("index cpu indices", { return {in.real({5, 4}, t).index({at::tensor({0, 3})})}; }),
        CASE("index_add",
             { return {in.real({5, 4}, t).index_add(0, in.integer(5, {3}), in.real({3, 4}, t))}; }),
        CASE("embedding",
             {
               return {at::embedding(in.real({7, 4}, t), in.integer(7, {2, 3})),
                       at::embedding_dense_backward(in.real({2, 3, 4}, t), in.integer(7, {2, 3}), 7,
                                                    -1, false)};
             }),
        CASE("sort",
             {
               auto [v, i] = in.real({3, 7}, t).sort(1);
               auto [tv, ti] = in.real({3, 7}, t).topk(3, 1);
               return {v, i, tv, ti, in.real({3, 7}, t).argsort(std::int64_t{1}, false)};
             }),
        CASE("one_hot", { return {at::one_hot(in.integer(5, {6}), 5)}; })},
       {at::kFloat, at::kDouble}},
  };
}

/// The sizes of their results depend on data.
inline std::vector<Group> data_dependent_groups() {
  return {
      {{CASE("masked_select", { return {in.real({4, 5}, t).masked_select(in.mask({4, 5}))}; }),
        CASE("nonzero", { return {at::nonzero(in.mask({4, 5}))}; }),
        CASE("index by mask", { return {in.real({5, 4}, t).index({in.mask({5, 4})})}; }),
        CASE("bincount", { return {at::bincount(in.integer(5, {6}), {}, 5)}; }),
        CASE("unique", { return {std::get<0>(at::_unique(in.integer(5, {6})))}; })},
       {at::kFloat}},
  };
}

inline std::vector<Group> neural_network_groups() {
  return {
      {{CASE("softmax",
             {
               const Tensor a = in.real({3, 7}, t);
               return {a.softmax(1), a.log_softmax(1), a.softmax(0)};
             }),
        CASE("layer_norm",
             {
               auto [y, m, r] = at::native_layer_norm(in.real({3, 8}, t), {8}, in.real({8}, t),
                                                      in.real({8}, t), 1e-5);
               return {y, m, r};
             }),
        CASE("rms_norm",
             {
               return {at::rms_norm(in.real({3, 8}, t), {8}, in.real({8}, t), 1e-6),
                       at::rms_norm(in.real({3, 8}, t), {8})};
             }),
        CASE("group_norm",
             {
               return {at::group_norm(in.real({2, 4, 3}, t), 2, in.real({4}, t), in.real({4}, t))};
             }),
        CASE("convolution",
             {
               return {at::conv1d(in.real({2, 3, 8}, t), in.real({4, 3, 3}, t), in.real({4}, t)),
                       at::conv2d(in.real({1, 3, 6, 6}, t), in.real({4, 3, 3, 3}, t), {}, 2, 1)};
             }),
        CASE("attention",
             {
               return {at::scaled_dot_product_attention(in.real({2, 2, 6, 8}, t),
                                                        in.real({2, 2, 6, 8}, t),
                                                        in.real({2, 2, 6, 8}, t), {}, 0.0, true)};
             }),
        CASE("attention mask",
             {
               return {at::scaled_dot_product_attention(
                   in.real({2, 2, 6, 8}, t), in.real({2, 2, 6, 8}, t), in.real({2, 2, 6, 8}, t),
                   in.real({6, 6}, t))};
             }),
        CASE("glu",
             {
               return {at::glu(in.real({3, 8}, t), 1),
                       at::silu_backward(in.real({3, 4}, t), in.real({3, 4}, t)),
                       at::gelu_backward(in.real({3, 4}, t), in.real({3, 4}, t), "tanh")};
             })},
       kFloating},
      {{CASE("cross_entropy",
             {
               return {at::cross_entropy_loss(in.real({4, 9}, t), in.integer(9, {4})),
                       at::cross_entropy_loss(in.real({4, 9}, t), in.integer(9, {4}), {}, 0)};
             }),
        CASE("mse",
             {
               return {at::mse_loss(in.real({4, 9}, t), in.real({4, 9}, t)),
                       at::binary_cross_entropy_with_logits(in.real({4}, t), in.positive({4}, t)),
                       at::huber_loss(in.real({4}, t), in.real({4}, t))};
             })},
       {at::kFloat, at::kDouble}},
  };
}

inline std::vector<Group> in_place_and_out_groups() {
  return {
      {{CASE("in place",
             {
               Tensor a = in.positive({3, 4}, t);
               a.add_(2)
                   .mul_(a)
                   .sub_(in.positive({4}, t))
                   .neg_()
                   .abs_()
                   .sqrt_()
                   .zero_()
                   .fill_(3)
                   .div_(2);
               return {a};
             }),
        CASE("in place view",
             {
               Tensor a = in.positive({4, 4}, t);
               a.t().select(0, 1).mul_(3);
               a.slice(0, 0, 2).copy_(a.slice(0, 2, 4));
               a.diagonal().zero_();
               return {a};
             }),
        CASE("out",
             {
               Tensor o = at::empty({0}, in.real({1}, t).options());
               at::mm_out(o, in.real({3, 4}, t), in.real({4, 5}, t));
               Tensor s = at::empty({2, 2}, o.options());
               at::add_out(s, in.real({2, 2}, t), in.real({2, 2}, t));
               return {o, s};
             }),
        CASE("out slice",
             {
               Tensor o = at::zeros({6, 5}, in.real({1}, t).options());
               Tensor part = o.slice(0, 1, 4);
               at::mm_out(part, in.real({3, 4}, t), in.real({4, 5}, t));
               return {o};
             }),
        CASE("foreach",
             {
               std::vector<Tensor> a = {in.real({3}, t), in.real({2, 2}, t)},
                                   b = {in.real({3}, t), in.real({2, 2}, t)};
               at::_foreach_add_(a, b, 2);
               at::_foreach_mul_(a, 0.5);
               Results r = at::_foreach_norm(a);
               r.insert(r.end(), a.begin(), a.end());
               return r;
             }),
        CASE("resize",
             {
               Tensor a = in.real({2, 3}, t);
               a.resize_({2, 2});
               return {a.clone(), a.resize_({0}), at::ones_like(a.resize_({3}))};
             }),
        CASE("set_",
             {
               Tensor a = in.real({2, 3}, t), b = at::empty({0}, a.options());
               b.set_(a);
               Tensor c = at::empty({0}, a.options());
               c.set_(a.storage(), 1, {2, 2}, {3, 1});
               return {b, c};
             }),
        CASE("to",
             {
               const Tensor a = in.positive({3, 4}, t);
               return {a.to(at::kDouble), a.t().to(at::kBFloat16), a.to(at::kLong), a.to(at::kBool),
                       a.to(at::kHalf)};
             })},
       kFloating},
  };
}

inline std::vector<Group> factories_groups() {
  return {
      {{CASE("factories",
             {
               const auto o = at::TensorOptions(t).device(in.device());
               return {at::zeros({2, 3}, o),
                       at::ones({2}, o),
                       at::full({2, 2}, 7, o),
                       at::arange(5, o),
                       at::arange(1, 9, 2, o),
                       at::eye(3, o),
                       at::linspace(0, 1, 5, o),
                       at::zeros_like(in.real({2, 3}, t)),
                       at::full_like(in.real({2}, t), 3),
                       at::scalar_tensor(3, o),
                       at::tril_indices(3, 3, 0, at::TensorOptions(at::kLong).device(in.device()))};
             })},
       kFloating},
  };
}

inline std::vector<Group> fused_optimizers_groups() {
  return {
      {{CASE("adamw",
             {
               std::vector<Tensor> p = {in.real({5, 3}, t), in.real({4}, t)},
                                   g = {in.real({5, 3}, t), in.real({4}, t)}, m, v, none, steps;
               for (const Tensor& x : p) {
                 m.push_back(at::zeros_like(x));
                 v.push_back(at::zeros_like(x));
                 steps.push_back(at::ones({}, at::TensorOptions(at::kFloat).device(in.device())));
               }
               at::_fused_adamw_(p, g, m, v, none, steps, 1e-2, 0.9, 0.95, 0.1, 1e-8, false, false);
               Results r = p;
               r.insert(r.end(), m.begin(), m.end());
               r.insert(r.end(), v.begin(), v.end());
               return r;
             })},
       {at::kFloat, at::kDouble}},
  };
}

#undef CASE
#undef UNARY
#undef BINARY

}  // namespace trellis::device::testing
