// Every ATen operator by name: JavaScript values become IValues by the operator's schema, the call is boxed.
#include "core/op.h"
#include "core/core.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/complex.h>

namespace pw {

using c10::IValue;
using c10::TypeKind;

// What TypeScript is told of a type; the same letters are in src/op/schema.ts.
static std::string type_text(const c10::TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::OptionalType:
      return type_text(type->castRaw<c10::OptionalType>()->getElementType()) + "?";
    case TypeKind::ListType:
      return type_text(type->castRaw<c10::ListType>()->getElementType()) + "[]";
    case TypeKind::TensorType:
      return "Tensor";
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return "int";
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return "float";
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return "bool";
    case TypeKind::NumberType:
      return "Scalar";
    case TypeKind::StringType:
      return "str";
    case TypeKind::ComplexType:
      return "complex";
    case TypeKind::ScalarTypeType:
      return "ScalarType";
    case TypeKind::LayoutType:
      return "Layout";
    case TypeKind::MemoryFormatType:
      return "MemoryFormat";
    case TypeKind::DeviceObjType:
      return "Device";
    case TypeKind::GeneratorType:
      return "Generator";
    default:
      return type->str();
  }
}

static std::string list_text(const c10::Argument& argument) {
  std::string text = type_text(argument.real_type());
  if (argument.N().has_value()) {  // int[2] accepts a single number
    const size_t at = text.find("[]");
    if (at != std::string::npos) text.insert(at + 1, std::to_string(*argument.N()));
  }
  return text;
}

at::Scalar to_scalar(napi_env env, napi_value value) {
  napi_valuetype type;
  napi_typeof(env, value, &type);
  if (type == napi_number) {
    double number = 0;
    napi_get_value_double(env, value, &number);
    const bool whole = number == static_cast<double>(static_cast<int64_t>(number)) &&
                       std::abs(number) <= 9007199254740991.0 && !(number == 0 && std::signbit(number));
    return whole ? at::Scalar(static_cast<int64_t>(number)) : at::Scalar(number);
  }
  if (type == napi_boolean) {
    bool flag = false;
    napi_get_value_bool(env, value, &flag);
    return at::Scalar(flag);
  }
  if (type == napi_bigint) return at::Scalar(to_int64(env, value));
  if (type == napi_object) {
    bool has = false;
    napi_value part;
    double re = 0, im = 0;
    napi_has_named_property(env, value, "re", &has);
    if (has) {
      napi_get_named_property(env, value, "re", &part);
      check(env, napi_get_value_double(env, part, &re), "a complex number {re, im}");
      napi_get_named_property(env, value, "im", &part);
      check(env, napi_get_value_double(env, part, &im), "a complex number {re, im}");
      return at::Scalar(c10::complex<double>(re, im));
    }
    napi_has_named_property(env, value, "float", &has);
    if (has) {
      napi_get_named_property(env, value, "float", &part);
      check(env, napi_get_value_double(env, part, &re), "a number");
      return at::Scalar(re);
    }
  }
  throw CodedError("BAD_ARGUMENT", "expected a number, boolean, BigInt or complex number");
}

static IValue to_ivalue(Env& env, napi_value value, const c10::Type& type, const c10::Argument& argument);

static IValue to_list(Env& env, napi_value value, const c10::TypePtr& element, const c10::Argument& argument) {
  napi_env napi = env.napi;
  bool is_array = false;
  napi_is_array(napi, value, &is_array);
  std::vector<napi_value> items;
  if (is_array) {
    items = elements(napi, value);
  } else if (argument.N().has_value()) {
    items.assign(static_cast<size_t>(*argument.N()), value);  // int[2] given as 3
  } else {
    throw CodedError("BAD_ARGUMENT", "expected an array");
  }
  switch (element->kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType: {
      c10::List<int64_t> list;
      list.reserve(items.size());
      for (napi_value item : items) list.push_back(to_int64(napi, item));
      return list;
    }
    case TypeKind::FloatType: {
      c10::List<double> list;
      for (napi_value item : items) {
        double number = 0;
        check(napi, napi_get_value_double(napi, item, &number), "an array of numbers");
        list.push_back(number);
      }
      return list;
    }
    case TypeKind::BoolType: {
      c10::List<bool> list;
      for (napi_value item : items) {
        bool flag = false;
        check(napi, napi_get_value_bool(napi, item, &flag), "an array of booleans");
        list.push_back(flag);
      }
      return list;
    }
    case TypeKind::TensorType: {
      c10::List<at::Tensor> list;
      list.reserve(items.size());
      for (napi_value item : items) {
        int32_t handle = 0;
        check(napi, napi_get_value_int32(napi, item, &handle), "an array of tensors");
        list.push_back(env.tensor(handle));
      }
      return list;
    }
    default: {
      c10::impl::GenericList list(element);
      for (napi_value item : items) list.push_back(to_ivalue(env, item, *element, argument));
      return list;
    }
  }
}

static IValue to_ivalue(Env& env, napi_value value, const c10::Type& type, const c10::Argument& argument) {
  napi_env napi = env.napi;
  switch (type.kind()) {
    case TypeKind::OptionalType: {
      if (is_missing(napi, value)) return IValue();
      return to_ivalue(env, value, *type.castRaw<c10::OptionalType>()->getElementType(), argument);
    }
    case TypeKind::TensorType: {
      if (is_missing(napi, value)) return at::Tensor();
      int32_t handle = 0;
      check(napi, napi_get_value_int32(napi, value, &handle), "a tensor");
      return env.tensor(handle);
    }
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return to_int64(napi, value);
    case TypeKind::ScalarTypeType: {
      const int64_t code = to_int64(napi, value);
      if (code < 0 || code >= static_cast<int64_t>(at::ScalarType::Undefined))
        throw CodedError("DTYPE", "unknown dtype code " + std::to_string(code));
      return code;
    }
    case TypeKind::LayoutType: {
      const int64_t code = to_int64(napi, value);
      if (code < 0 || code >= static_cast<int64_t>(at::Layout::NumOptions))
        throw CodedError("BAD_ARGUMENT", "unknown layout code " + std::to_string(code));
      return code;
    }
    case TypeKind::MemoryFormatType: {
      const int64_t code = to_int64(napi, value);
      if (code < 0 || code >= static_cast<int64_t>(at::MemoryFormat::NumOptions))
        throw CodedError("BAD_ARGUMENT", "unknown memory format code " + std::to_string(code));
      return code;
    }
    case TypeKind::FloatType:
    case TypeKind::SymFloatType: {
      double number = 0;
      napi_valuetype kind;
      napi_typeof(napi, value, &kind);
      if (kind == napi_object) return to_scalar(napi, value).to<double>();
      check(napi, napi_get_value_double(napi, value, &number), "a number");
      return number;
    }
    case TypeKind::BoolType:
    case TypeKind::SymBoolType: {
      bool flag = false;
      check(napi, napi_get_value_bool(napi, value, &flag), "a boolean");
      return flag;
    }
    case TypeKind::NumberType:
      return to_scalar(napi, value);
    case TypeKind::ComplexType:
      return to_scalar(napi, value).to<c10::complex<double>>();
    case TypeKind::StringType:
      return to_string(napi, value);
    case TypeKind::DeviceObjType:
      return c10::Device(to_string(napi, value));
    case TypeKind::GeneratorType: {
      int32_t handle = 0;
      check(napi, napi_get_value_int32(napi, value, &handle), "a generator");
      at::Generator* found = env.generators.find(handle);
      if (found == nullptr)
        throw CodedError("STALE_HANDLE", "this generator was disposed of, or belongs to another thread");
      return *found;
    }
    case TypeKind::ListType:
      return to_list(env, value, type.castRaw<c10::ListType>()->getElementType(), argument);
    default:
      throw CodedError("UNSUPPORTED_TYPE", "values of type " + type.str() + " cannot be given from TypeScript");
  }
}

static napi_value from_ivalue(Env& env, IValue&& value) {
  napi_env napi = env.napi;
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    if (!tensor.defined()) {
      napi_value none;
      napi_get_null(napi, &none);
      return none;
    }
    return from_int32(napi, env.wrap(std::move(tensor)));
  }
  if (value.isNone()) {
    napi_value none;
    napi_get_null(napi, &none);
    return none;
  }
  if (value.isInt()) return from_int64(napi, value.toInt());
  if (value.isSymInt()) return from_int64(napi, value.toSymInt().expect_int());
  if (value.isDouble()) return from_double(napi, value.toDouble());
  if (value.isBool()) return from_bool(napi, value.toBool());
  if (value.isString()) return from_string(napi, value.toStringRef());
  if (value.isDevice()) return from_string(napi, value.toDevice().str());
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    napi_value result;
    napi_create_object(napi, &result);
    napi_set_named_property(napi, result, "re", from_double(napi, number.real()));
    napi_set_named_property(napi, result, "im", from_double(napi, number.imag()));
    return result;
  }
  if (value.isTuple() || value.isList()) {
    std::vector<IValue> items = value.isTuple() ? std::vector<IValue>(value.toTupleRef().elements().begin(),
                                                      value.toTupleRef().elements().end())
                                                : value.toListRef().vec();
    napi_value array;
    napi_create_array_with_length(napi, items.size(), &array);
    for (size_t i = 0; i < items.size(); ++i)
      napi_set_element(napi, array, static_cast<uint32_t>(i), from_ivalue(env, std::move(items[i])));
    return array;
  }
  throw CodedError("UNSUPPORTED_TYPE", "a result of type " + value.tagKind() + " cannot be given to TypeScript");
}

// Tensors that an operator may resize and whose memory cannot grow. libtorch sets the new sizes before it finds that out
// and leaves them after the error, so that the tensor would reach beyond its memory: they get their old sizes back.
class Unresizable {
 public:
  void save(const IValue& value) {
    if (value.isTensor()) {
      save(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) save(tensor);
    }
  }
  void restore() {
    for (Entry& entry : entries_) {
      if (entry.tensor.sizes() == at::IntArrayRef(entry.sizes) &&
          entry.tensor.strides() == at::IntArrayRef(entry.strides))
        continue;
      c10::TensorImpl* impl = entry.tensor.unsafeGetTensorImpl();
      impl->set_storage_offset(entry.offset);
      impl->set_sizes_and_strides(entry.sizes, entry.strides);
    }
  }

 private:
  struct Entry {
    at::Tensor tensor;
    c10::DimVector sizes, strides;
    int64_t offset;
  };
  void save(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage() ||
        tensor.storage().unsafeGetStorageImpl()->resizable())
      return;
    entries_.push_back(
        {tensor, c10::DimVector(tensor.sizes()), c10::DimVector(tensor.strides()), tensor.storage_offset()});
  }
  std::vector<Entry> entries_;
};

// One operator bound to one environment: the data pointer of its JavaScript function.
struct BoundOp {
  Env* env;
  c10::OperatorHandle op;
  const c10::FunctionSchema* schema;
  bool returns_self;            // an in-place operator: TypeScript returns the tensor it has
  std::vector<size_t> written;  // arguments
};

static constexpr size_t kMaxArguments = 64;

static napi_value call(napi_env napi, napi_callback_info info) {
  napi_value values[kMaxArguments];
  size_t count = kMaxArguments;
  void* data = nullptr;
  napi_get_cb_info(napi, info, &count, values, nullptr, &data);
  BoundOp& bound = *static_cast<BoundOp*>(data);
  try {
    Env& env = *bound.env;
    const std::vector<c10::Argument>& arguments = bound.schema->arguments();
    // Taken out while in use: a TypeScript function that the operator calls (a hook on saved tensors) may call operators.
    std::vector<IValue> stack = std::move(env.stack);
    constexpr size_t base = 0;
    struct Restore {  // also after an error
      Env& env;
      std::vector<IValue>& stack;
      ~Restore() {
        stack.clear();
        env.stack = std::move(stack);
      }
    } restore{env, stack};
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = arguments[i];
      napi_valuetype type = napi_undefined;
      if (i < count) napi_typeof(napi, values[i], &type);
      if (type == napi_undefined) {
        if (argument.default_value().has_value()) {
          stack.push_back(*argument.default_value());
          continue;
        }
        if (argument.real_type()->kind() != TypeKind::OptionalType) {
          throw CodedError("MISSING_ARGUMENT", std::string("argument '") + argument.name() + "' is missing");
        }
        stack.emplace_back();
        continue;
      }
      try {
        stack.push_back(to_ivalue(env, values[i], *argument.real_type(), argument));
      } catch (const CodedError& error) {
        throw CodedError(error.code, std::string("argument '") + argument.name() + "': " + error.what());
      }
    }
    Unresizable unresizable;
    for (const size_t i : bound.written) unresizable.save(stack[i]);
    try {
      bound.op.callBoxed(&stack);
    } catch (...) {
      unresizable.restore();
      throw;
    }
    const size_t results = stack.size() - base;
    if (bound.returns_self || results == 0) return nullptr;
    if (results == 1) return from_ivalue(env, std::move(stack.back()));
    napi_value array;
    napi_create_array_with_length(napi, results, &array);
    for (size_t i = 0; i < results; ++i)
      napi_set_element(napi, array, static_cast<uint32_t>(i), from_ivalue(env, std::move(stack[base + i])));
    return array;
  } catch (...) {
    throw_to_js(napi, bound.schema->name().c_str());
    return nullptr;
  }
}

static napi_value describe(napi_env napi, const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  napi_value result, arguments, returns;
  napi_create_object(napi, &result);
  napi_create_array_with_length(napi, schema.arguments().size(), &arguments);
  uint32_t index = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    napi_value item;
    napi_create_object(napi, &item);
    napi_set_named_property(napi, item, "name", from_string(napi, argument.name()));
    napi_set_named_property(napi, item, "type", from_string(napi, list_text(argument)));
    napi_set_named_property(napi, item, "keywordOnly", from_bool(napi, argument.kwarg_only()));
    napi_set_named_property(
        napi, item, "written", from_bool(napi, argument.alias_info() != nullptr && argument.alias_info()->isWrite()));
    napi_set_named_property(napi, item, "aliased", from_bool(napi, argument.alias_info() != nullptr));
    if (argument.default_value().has_value()) {
      std::ostringstream text;
      text << *argument.default_value();
      napi_set_named_property(napi, item, "default", from_string(napi, text.str()));
    }
    napi_set_element(napi, arguments, index++, item);
  }
  napi_create_array_with_length(napi, schema.returns().size(), &returns);
  index = 0;
  for (const c10::Argument& argument : schema.returns())
    napi_set_element(napi, returns, index++, from_string(napi, list_text(argument)));
  napi_set_named_property(napi, result, "name", from_string(napi, schema.name()));
  napi_set_named_property(napi, result, "overload", from_string(napi, schema.overload_name()));
  napi_set_named_property(napi, result, "args", arguments);
  napi_set_named_property(napi, result, "returns", returns);
  napi_set_named_property(napi, result, "random", from_bool(napi, op.hasTag(at::Tag::nondeterministic_seeded)));
  return result;
}

// An in-place operator returns the very argument it wrote to.
static bool returns_self(const c10::FunctionSchema& schema) {
  if (schema.returns().size() != 1 || schema.arguments().empty()) return false;
  const auto* result = schema.returns()[0].alias_info();
  const auto* self = schema.arguments()[0].alias_info();
  return result != nullptr && self != nullptr && result->isWrite() && self->isWrite() &&
         schema.arguments()[0].real_type()->kind() == TypeKind::TensorType;
}

// (name, overload): { name, overload, args, returns, inPlace, call }, or nothing when there is no such operator.
PW_ENTRY(bind_op, 2) {
  const auto op = c10::Dispatcher::singleton().findSchema({args.string(0), args.string(1)});
  if (!op.has_value()) return undefined(args.napi);
  const c10::FunctionSchema& schema = op->schema();
  if (schema.arguments().size() > kMaxArguments)
    throw CodedError("UNSUPPORTED_TYPE", schema.name() + " has too many arguments");
  napi_value result = describe(args.napi, *op), function;
  const bool in_place = returns_self(schema);
  BoundOp* bound = new BoundOp{args.env, *op, &schema, in_place, {}};
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) bound->written.push_back(i);
  }
  napi_create_function(args.napi, schema.name().c_str(), NAPI_AUTO_LENGTH, call, bound, &function);
  napi_add_finalizer(
      args.napi, function, bound, [](napi_env, void* data, void*) { delete static_cast<BoundOp*>(data); }, nullptr,
      nullptr);
  napi_set_named_property(args.napi, result, "inPlace", from_bool(args.napi, in_place));
  napi_set_named_property(args.napi, result, "call", function);
  return result;
}

// Overload names of an operator, "" for the one without a name.
PW_ENTRY(overloads_of, 1) {
  const std::string name = args.string(0);
  napi_value result;
  napi_create_array(args.napi, &result);
  uint32_t count = 0;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name == name && c10::Dispatcher::singleton().findSchema(op).has_value())
      napi_set_element(args.napi, result, count++, from_string(args.napi, op.overload_name));
  }
  return result;
}

// Every operator that has a schema: what the generator reads.
PW_ENTRY(list_ops, 1) {
  napi_value result;
  napi_create_array(args.napi, &result);
  uint32_t count = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value()) continue;
    napi_value item = describe(args.napi, *op);
    napi_set_named_property(args.napi, item, "inPlace", from_bool(args.napi, returns_self(op->schema())));
    napi_set_element(args.napi, result, count++, item);
  }
  return result;
}

// (name, overload, dispatch key): whether a kernel is there, such as ("aten::relu", "", "Meta").
PW_ENTRY(has_kernel, 3) {
  const auto op = c10::Dispatcher::singleton().findSchema({args.string(0), args.string(1)});
  return from_bool(args.napi, op.has_value() && op->hasKernelForDispatchKey(c10::parseDispatchKey(args.string(2))));
}

// The type of floating-point numbers where nothing else is said: one for the whole process, as libtorch has it.
PW_ENTRY(get_default_dtype, 1) {
  return from_int32(args.napi, static_cast<int32_t>(c10::get_default_dtype_as_scalartype()));
}

PW_ENTRY(set_default_dtype, 1) {
  const int32_t code = args.int32(0);
  if (code < 0 || code >= static_cast<int32_t>(at::ScalarType::Undefined))
    throw CodedError("DTYPE", "unknown dtype code " + std::to_string(code));
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(code)));
  return undefined(args.napi);
}

void init_ops(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"bindOp", bind_op},
          {"overloadsOf", overloads_of},
          {"listOps", list_ops},
          {"hasKernel", has_kernel},
          {"getDefaultDtype", get_default_dtype},
          {"setDefaultDtype", set_default_dtype},
      });
}

}  // namespace pw
