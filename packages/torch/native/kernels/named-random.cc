// Random numbers by name: while a thread draws by name, what an operator draws is a function of a seed, a step, a name (of a
// layer or of a parameter), the number of the call of that layer, the number of the draw in it, and the element. It does not
// matter which rank draws, what it has drawn before, or how many threads compute.
//
// Dropout, uniform_ and normal_ of floating-point tensors on the CPU are computed here, element by element; of a dropout nothing
// is kept for backward, which draws the same again. Every other operator draws from libtorch's generator, seeded for that call.
#include "autograd/node.h"
#include "core/core.h"
#include "core/own-generator.h"
#include "kernels/philox.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

namespace pw {
namespace {

struct NamedTensor {
  uint64_t name;
  uint32_t ordinal;
};

// What the calling thread draws by.
struct Draws {
  bool on = false;
  uint64_t base = 0;                                              // of the seed and the step
  int64_t microbatch = 0;                                         // of all replicas
  uint64_t scope = 0;                                             // the name of the layer
  uint32_t call = 0;                                              // of the layer in this forward
  uint32_t ordinal = 0;                                           // of the draw in this call
  std::unordered_map<const c10::TensorImpl*, NamedTensor> named;  // parameters that are being filled
};
thread_local Draws draws;

uint64_t scramble(uint64_t x) {  // the finalizer of MurmurHash3
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}
uint64_t combine(uint64_t hash, uint64_t value) { return scramble(hash ^ scramble(value + 0x9e3779b97f4a7c15ull)); }

// The stream of the next draw, and where the tensor's elements begin in it: microbatches lie one behind the other.
struct Place {
  PhiloxStream stream;
  uint64_t first;
};

uint64_t next_key(const at::Tensor* filled, uint32_t& ordinal) {
  if (filled != nullptr && !draws.named.empty()) {
    const auto found = draws.named.find(filled->unsafeGetTensorImpl());
    if (found != draws.named.end()) {
      ordinal = found->second.ordinal++;
      return combine(combine(draws.base, found->second.name), 0);
    }
  }
  ordinal = draws.ordinal++;
  return combine(combine(draws.base, draws.scope), draws.call);
}

Place next_place(const at::Tensor& tensor, bool filled) {
  uint32_t ordinal = 0;
  const uint64_t key = next_key(filled ? &tensor : nullptr, ordinal);
  return {{{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}, ordinal},
      static_cast<uint64_t>(draws.microbatch) * static_cast<uint64_t>(tensor.numel())};
}

constexpr int64_t kGrain = 16384;  // elements for a thread

// --- kernels -----------------------------------------------------------------------------------------------------------

struct Dropped {
  Place place;
  uint64_t threshold;  // words below it drop
  double scale;
};

template <typename T>
inline __attribute__((always_inline)) void drop_body(
    const T* in, T* out, int64_t begin, int64_t end, const Dropped& dropped) {
  const auto scale = static_cast<at::opmath_type<T>>(dropped.scale);
  const auto threshold = static_cast<uint32_t>(dropped.threshold);
  const T* from = in + begin;
  T* to = out + begin;
  philox_each<1>(
      dropped.place.stream, dropped.place.first + begin,
      end - begin, [=](int64_t k, const uint32_t* word) __attribute__((always_inline)) {
        const auto value = static_cast<at::opmath_type<T>>(from[k]) * scale;
        to[k] = static_cast<T>(*word >= threshold ? value : at::opmath_type<T>(0));
      });
}

template <typename T>
void drop_plain(const T* in, T* out, int64_t begin, int64_t end, const Dropped& dropped) {
  drop_body(in, out, begin, end, dropped);
}

#ifdef PW_PHILOX_AVX2
template <typename T>
PW_PHILOX_AVX2 void drop_avx2(const T* in, T* out, int64_t begin, int64_t end, const Dropped& dropped) {
  drop_body(in, out, begin, end, dropped);
}
#endif

template <typename T>
void drop_range(const T* in, T* out, int64_t begin, int64_t end, const Dropped& dropped) {
#ifdef PW_PHILOX_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) return drop_avx2(in, out, begin, end, dropped);
#endif
  drop_plain(in, out, begin, end, dropped);
}

at::Tensor drop(const at::Tensor& input, const Dropped& dropped) {
  at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor from = input.contiguous();
  at::Tensor output = at::empty_like(from, at::MemoryFormat::Contiguous);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from.scalar_type(), "dropout", [&] {
    const scalar_t* in = from.const_data_ptr<scalar_t>();
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(
        0, from.numel(), kGrain, [&](int64_t begin, int64_t end) { drop_range(in, out, begin, end, dropped); });
  });
  return output;
}

at::Tensor dropout(const at::Tensor& input, const Dropped& dropped);

struct NamedDropoutBackward final : torch::autograd::Node {
  std::string name() const override { return "NamedDropoutBackward0"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {dropout(gradients[0], dropped)};
  }
  Dropped dropped;
};

at::Tensor dropout(const at::Tensor& input, const Dropped& dropped) {
  at::Tensor output = drop(input, dropped);
  if (!c10::GradMode::is_enabled() || !input.requires_grad()) return output;
  auto node = make_node<NamedDropoutBackward>();
  torch::autograd::edge_list edges;
  edges.emplace_back(torch::autograd::impl::gradient_edge(input));
  node->set_next_edges(std::move(edges));
  node->dropped = dropped;
  const uint32_t number = node->add_input_metadata(output);
  torch::autograd::impl::set_gradient_edge(output, {OwnedNode(node), number});
  return output;
}

inline float unit(const uint32_t* words, float) { return static_cast<float>(words[0] >> 8) * 0x1p-24f; }
inline double unit(const uint32_t* words, double) {
  const uint64_t bits = (static_cast<uint64_t>(words[1]) << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Fills a contiguous tensor with what `of` makes of the words of each element.
template <typename T, int each, typename Of>
void fill_each(const at::Tensor& target, const Place& place, Of&& of) {
  T* out = target.mutable_data_ptr<T>();
  at::parallel_for(0, target.numel(), kGrain, [&](int64_t begin, int64_t end) {
    philox_each<each>(place.stream, place.first + begin, end - begin,
        [&](int64_t k, const uint32_t* words) { out[begin + k] = static_cast<T>(of(words)); });
  });
}

void fill(at::Tensor& self, bool normal, double a, double b) {
  const Place place = next_place(self, true);
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor target = self.is_contiguous() ? self : at::empty_like(self, at::MemoryFormat::Contiguous);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "fill", [&] {
    using Wide = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    constexpr int each = std::is_same_v<Wide, double> ? 2 : 1;
    const Wide from = static_cast<Wide>(a), range = static_cast<Wide>(normal ? b : b - a);
    if (normal) {
      fill_each<scalar_t, 2 * each>(target, place, [=](const uint32_t* words) {
        const Wide radius = std::sqrt(Wide(-2) * std::log(Wide(1) - unit(words, Wide())));
        return from + range * radius * std::cos(Wide(6.283185307179586476925) * unit(words + each, Wide()));
      });
    } else {
      fill_each<scalar_t, each>(
          target, place, [=](const uint32_t* words) { return from + range * unit(words, Wide()); });
    }
  });
  if (target.unsafeGetTensorImpl() != self.unsafeGetTensorImpl()) self.copy_(target);
  self.unsafeGetTensorImpl()->bump_version();
}

bool has_tangent(const at::Tensor& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  return meta != nullptr && meta->fw_grad_ != nullptr;
}

bool is_plain(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_neg() && !has_tangent(tensor) &&
         (type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16);
}

// Operators that are computed here.
enum class Known { kOther, kDropout, kUniform, kNormal };
Known known(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (!name.overload_name.empty()) return Known::kOther;
  if (name.name == "aten::dropout") return Known::kDropout;
  if (name.name == "aten::uniform_") return Known::kUniform;
  return name.name == "aten::normal_" ? Known::kNormal : Known::kOther;
}

// Whether the caller says itself where random numbers come from, or nothing is computed.
bool is_settled(const torch::jit::Stack& stack, size_t count) {
  for (const c10::IValue& value : torch::jit::last(stack, count)) {
    if (value.isGenerator()) return true;
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_meta()) return true;
  }
  return false;
}

}  // namespace

NamedDraw draw_by_name(const c10::OperatorHandle& op, torch::jit::Stack* stack, uint64_t& seed) {
  if (!draws.on) return NamedDraw::kOff;
  const size_t count = op.schema().arguments().size();
  if (is_settled(*stack, count)) return NamedDraw::kOff;
  const auto argument = [&](size_t i) -> c10::IValue& { return (*stack)[stack->size() - count + i]; };
  const Known which = known(op);
  if (which == Known::kDropout) {
    const double p = argument(1).toDouble();
    if (!argument(2).toBool() || p <= 0 || p >= 1) {  // nothing is drawn, but it counts: graphs number all of them
      ++draws.ordinal;
      return NamedDraw::kOff;
    }
    const at::Tensor input = argument(0).toTensor();
    if (is_plain(input)) {
      const Dropped dropped{next_place(input, false), static_cast<uint64_t>(std::llround(p * 0x1p32)), 1 / (1 - p)};
      at::Tensor output = dropout(input, dropped);
      torch::jit::drop(*stack, count);
      stack->emplace_back(std::move(output));
      return NamedDraw::kDone;
    }
  } else if (which != Known::kOther) {
    at::Tensor self = argument(0).toTensor();
    const double a = argument(1).toDouble(), b = argument(2).toDouble();
    const bool fits = which == Known::kUniform ? a <= b : b >= 0;  // else libtorch says what is wrong
    if (is_plain(self) && fits && (!self.requires_grad() || !self.is_leaf() || !c10::GradMode::is_enabled()) &&
        self.grad_fn() == nullptr) {
      fill(self, which == Known::kNormal, a, b);
      torch::jit::drop(*stack, count);
      stack->emplace_back(std::move(self));
      return NamedDraw::kDone;
    }
  }
  const c10::IValue& first = argument(0);
  const at::Tensor filled = op.schema().name().back() == '_' && first.isTensor() ? first.toTensor() : at::Tensor();
  uint32_t ordinal = 0;
  seed = next_key(filled.defined() ? &filled : nullptr, ordinal);
  seed = combine(combine(seed, ordinal), static_cast<uint64_t>(draws.microbatch));
  return NamedDraw::kSeed;
}

// --- what TypeScript sets ------------------------------------------------------------------------------------------------

static uint64_t name_of(double low, double high) {
  return (static_cast<uint64_t>(high) << 32) | static_cast<uint32_t>(low);
}

// (seed, step, kind, microbatch): from now on this thread draws by name.
PW_ENTRY(begin_draws, 4) {
  draws = Draws();
  draws.base = combine(combine(combine(0, static_cast<uint64_t>(args.int64(0))), static_cast<uint64_t>(args.int64(1))),
      static_cast<uint64_t>(args.int64(2)));
  draws.microbatch = args.int64(3);
  draws.on = true;
  return undefined(args.napi);
}

PW_ENTRY(end_draws, 0) {
  draws = Draws();
  return undefined(args.napi);
}

// (low and high half of the name, call, ordinal of the next draw): the ordinal of before.
PW_ENTRY(set_draw_scope, 4) {
  const uint32_t before = draws.ordinal;
  draws.scope = name_of(args.number(0), args.number(1));
  draws.call = static_cast<uint32_t>(args.number(2));
  draws.ordinal = static_cast<uint32_t>(args.number(3));
  return from_double(args.napi, before);
}

// (parameter, low and high half of its name)
PW_ENTRY(name_draws, 3) {
  draws.named[args.tensor(0).unsafeGetTensorImpl()] = {name_of(args.number(1), args.number(2)), 0};
  return undefined(args.napi);
}

void init_named_random(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"beginDraws", begin_draws},
          {"endDraws", end_draws},
          {"setDrawScope", set_draw_scope},
          {"nameDraws", name_draws},
      });
}

}  // namespace pw
