// Random generators: the process-wide default one, one per rank, one per use.
//
// libtorch has one default generator for all threads of a process. Ranks that are threads must not share it: seeding one
// would seed all, and what they draw would depend on who is first. So a thread may have a default of its own. Every
// operator that draws random numbers gets a kernel on a dispatch key that nothing else uses and that is on in our threads;
// it puts the thread's generator in the place of the process's for the time of the call, under a lock. Other operators
// fall through that key when their dispatch table is made, and pay nothing.
#include "core/core.h"
#include "core/own-generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Utils.h>
#include <torch/library.h>

namespace pw {

static std::mutex default_generator_mutex;
static thread_local at::Generator own_generator;

static at::CPUGeneratorImpl* default_impl() {
  return at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

static void move_state(at::CPUGeneratorImpl* from, at::CPUGeneratorImpl* to) {
  to->set_engine(from->engine());
  to->set_next_float_normal_sample(from->next_float_normal_sample());
  to->set_next_double_normal_sample(from->next_double_normal_sample());
}

// Has the thread's generator in the place of the default one while it lives.
class OwnGeneratorGuard {
 public:
  OwnGeneratorGuard() : lock_(default_generator_mutex) {
    if (!own_generator.defined()) return;
    saved_ = at::make_generator<at::CPUGeneratorImpl>();
    move_state(default_impl(), at::check_generator<at::CPUGeneratorImpl>(saved_));
    move_state(at::check_generator<at::CPUGeneratorImpl>(own_generator), default_impl());
  }
  ~OwnGeneratorGuard() {
    if (!saved_.defined()) return;
    move_state(default_impl(), at::check_generator<at::CPUGeneratorImpl>(own_generator));
    move_state(at::check_generator<at::CPUGeneratorImpl>(saved_), default_impl());
  }
  OwnGeneratorGuard(const OwnGeneratorGuard&) = delete;
  OwnGeneratorGuard& operator=(const OwnGeneratorGuard&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  at::Generator saved_;
};

// Has generators of a seed in the place of the default ones of the CPU and of a device while it lives.
class SeededGeneratorGuard {
 public:
  SeededGeneratorGuard(uint64_t seed, c10::Device device) : lock_(default_generator_mutex) {
    saved_ = at::make_generator<at::CPUGeneratorImpl>();
    move_state(default_impl(), at::check_generator<at::CPUGeneratorImpl>(saved_));
    const at::Generator seeded = at::make_generator<at::CPUGeneratorImpl>(seed);
    move_state(at::check_generator<at::CPUGeneratorImpl>(seeded), default_impl());
    if (device.is_cpu()) return;
    device_generator_ = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> lock(device_generator_.mutex());
    device_state_ = device_generator_.get_state();
    device_generator_.set_current_seed(seed);
  }
  ~SeededGeneratorGuard() {
    move_state(at::check_generator<at::CPUGeneratorImpl>(saved_), default_impl());
    if (!device_generator_.defined()) return;
    std::lock_guard<std::mutex> lock(device_generator_.mutex());
    device_generator_.set_state(device_state_);
  }
  SeededGeneratorGuard(const SeededGeneratorGuard&) = delete;
  SeededGeneratorGuard& operator=(const SeededGeneratorGuard&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  at::Generator saved_, device_generator_;
  at::Tensor device_state_;
};

// Where an operator computes, by its arguments.
static c10::Device device_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu()) return value.toTensor().device();
    if (value.isDevice() && !value.toDevice().is_cpu()) return value.toDevice();
  }
  return c10::Device(c10::kCPU);
}

static void draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(kOwnGenerator);  // what this operator calls is covered by it
  uint64_t seed = 0;
  const NamedDraw named = draw_by_name(op, stack, seed);
  if (named == NamedDraw::kDone) return;
  if (named == NamedDraw::kSeed) {
    SeededGeneratorGuard guard(seed, device_of(op, *stack));
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kOwnGenerator), stack);
    return;
  }
  OwnGeneratorGuard guard;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kOwnGenerator), stack);
}

// Once per process: kernels for all operators that draw.
static void cover_drawing_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    static torch::Library fallback(torch::Library::IMPL, "_", kOwnGenerator, __FILE__, __LINE__);
    fallback.fallback(torch::CppFunction::makeFallthrough());
    static torch::Library kernels(torch::Library::IMPL, "aten", kOwnGenerator, __FILE__, __LINE__);
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op.has_value() || !op->hasTag(at::Tag::nondeterministic_seeded) ||
          name.getNamespace() != std::string_view("aten"))
        continue;
      const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      kernels.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw>());
    }
  });
}

static at::Generator generator_of(Args<2>& args, size_t i) {
  if (args.missing(i)) return own_generator.defined() ? own_generator : at::detail::getDefaultCPUGenerator();
  at::Generator* found = args.env->generators.find(args.int32(i));
  if (found == nullptr)
    throw CodedError("STALE_HANDLE", "this generator was disposed of, or belongs to another thread");
  return *found;
}

PW_ENTRY(manual_seed, 1) {
  const auto seed = static_cast<uint64_t>(args.int64(0));
  if (own_generator.defined()) {
    OwnGeneratorGuard guard;  // at::manual_seed seeds the generator in the default's place, and those of all devices
    at::manual_seed(seed);
    own_generator.set_current_seed(seed);
  } else {
    at::manual_seed(seed);
  }
  return undefined(args.napi);
}

// Gives this thread a default generator of its own.
PW_ENTRY(own_default_generator, 0) {
  if (!own_generator.defined())
    own_generator = at::make_generator<at::CPUGeneratorImpl>(c10::detail::getNonDeterministicRandom());
  return undefined(args.napi);
}

PW_ENTRY(create_generator, 1) {
  const c10::Device device(args.missing(0) ? std::string("cpu") : args.string(0));
  at::Generator generator =
      device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>()
                      : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  return from_int32(args.napi, args.env->generators.add(std::move(generator)));
}

PW_ENTRY(release_generator, 1) { return from_bool(args.napi, args.env->generators.remove(args.int32(0))); }

// (generator or nothing, seed)
PW_ENTRY(seed_generator, 2) {
  at::Generator generator = generator_of(args, 0);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(static_cast<uint64_t>(args.int64(1)));
  return undefined(args.napi);
}

PW_ENTRY(generator_seed, 2) {
  at::Generator generator = generator_of(args, 0);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return from_int64(args.napi, static_cast<int64_t>(generator.current_seed()));
}

PW_ENTRY(get_random_state, 2) {
  at::Generator generator = generator_of(args, 0);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return from_int32(args.napi, args.env->wrap(generator.get_state()));
}

PW_ENTRY(set_random_state, 2) {
  at::Generator generator = generator_of(args, 0);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(args.tensor(1));
  return undefined(args.napi);
}

// The default generator of a device ("cuda:0"); of the CPU when nothing is said.
PW_ENTRY(default_generator, 1) {
  const c10::Device device(args.missing(0) ? std::string("cpu") : args.string(0));
  at::Generator generator = at::globalContext().defaultGenerator(device);
  return from_int32(args.napi, args.env->generators.add(std::move(generator)));
}

void init_random(Env& env, napi_value exports) {
  cover_drawing_operators();
  c10::impl::tls_set_dispatch_key_included(kOwnGenerator, true);
  add_exports(env, exports,
      {
          {"manualSeed", manual_seed},
          {"ownDefaultGenerator", own_default_generator},
          {"createGenerator", create_generator},
          {"defaultGenerator", default_generator},
          {"releaseGenerator", release_generator},
          {"seedGenerator", seed_generator},
          {"generatorSeed", generator_seed},
          {"getRandomState", get_random_state},
          {"setRandomState", set_random_state},
      });
}

}  // namespace pw
