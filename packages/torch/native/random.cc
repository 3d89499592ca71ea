// Random generators: the process-wide default one, and one per rank or per use.
#include "core.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Utils.h>

namespace pw {

static at::Generator generator_of(Args<2>& args, size_t i) {
  if (args.missing(i)) return at::detail::getDefaultCPUGenerator();
  at::Generator* found = args.env->generators.find(args.int32(i));
  if (found == nullptr) throw CodedError("STALE_HANDLE", "this generator was disposed of, or belongs to another thread");
  return *found;
}

PW_ENTRY(manual_seed, 1) {
  at::manual_seed(static_cast<uint64_t>(args.int64(0)));
  return undefined(args.napi);
}

PW_ENTRY(create_generator, 1) {
  const c10::Device device(args.missing(0) ? std::string("cpu") : args.string(0));
  at::Generator generator = device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>() : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
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
  add_exports(env, exports, {
    {"manualSeed", manual_seed},
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
