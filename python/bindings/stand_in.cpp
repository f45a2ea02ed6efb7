// StandIn: replaces a function of PyTorch's, and calls the original unless a condition holds. See _patches.py.
#include <Python.h>
#include <structmember.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torchfake/core/activation.h>
#include <torchfake/torchfake.h>

#include <array>
#include <vector>

#include "bindings.h"

namespace torchfake {

namespace {

// When a stand-in calls its own function. Evaluated on every call, also for real tensors, so each takes nanoseconds.
// The first four cannot hold unless fakes exist.
enum class When : uint8_t {
  kInMode,  // this thread is in a mode
  kGivenFake,  // one of the arguments is a fake
  kInModeOrGivenFake,
  kFakesExist,  // a fake may be reachable: see fakes_exist()
  kGivenMetaStorage,  // the first argument is a storage without data, like that of a fake
  kInModeOrGivenMetaStorage,
  kAlways,
};

struct StandIn {
  PyObject_HEAD PyObject* original;
  PyObject* function;  // called as function(original, *args, **kwargs)
  vectorcallfunc vectorcall;
  vectorcallfunc call_original;
  // The C implementation of the original, called directly so that a call on a real tensor takes no more steps than
  // without the stand-in.
  PyCFunction no_arguments;  // of a method that takes none; null for others
  PyGetSetDef* attribute;  // of a computed attribute; null for others
  PyTypeObject* owner;  // the class whose instances the two above accept
  PyTypeObject* usual;  // torch.Tensor or torch.UntypedStorage, if it is a subclass of that
  PyObject* weak_references;
  When when;
};

StandIn* of(PyObject* object) {
  return reinterpret_cast<StandIn*>(object);
}

bool is_of_owner(const StandIn& self, PyObject* object) {
  return Py_IS_TYPE(object, self.usual) || PyObject_TypeCheck(object, self.owner) != 0;
}

// The dispatch keys of fakes and of the wrappers that is_fake() looks through.
constexpr c10::DispatchKeySet kFakeOrWrapper(
    {c10::DispatchKey::Fake, c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Functionalize});

bool is_given_fake(PyObject* const* args, Py_ssize_t count) {
  auto* tensor_type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyObject_TypeCheck(args[i], tensor_type) == 0) {
      continue;
    }
    const at::Tensor& tensor = THPVariable_Unpack(args[i]);
    if (tensor.defined() && tensor.key_set().has_any(kFakeOrWrapper) && is_fake(tensor)) {
      return true;
    }
  }
  return false;
}

// TypedStorage is a Python class with the storage in an attribute.
bool is_meta_storage(PyObject* object) {
  if (THPStorage_CheckExact(object) || PyObject_TypeCheck(object, &THPStorageType) != 0) {
    const c10::Storage& storage = THPStorage_Unpack(object);
    return storage && storage.device_type() == c10::kMeta;
  }
  static PyObject* const name = PyUnicode_InternFromString("_untyped_storage");
  PyObject* untyped = PyObject_GetAttr(object, name);
  if (untyped == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool is_meta = PyObject_TypeCheck(untyped, &THPStorageType) != 0 && is_meta_storage(untyped);
  Py_DECREF(untyped);
  return is_meta;
}

// Decides most calls of programs without fakes, with a load.
bool cannot_hold(When when) {
  return when <= When::kFakesExist && !fakes_exist();
}

// Whether the condition holds. Call cannot_hold() first.
bool holds(When when, PyObject* const* args, Py_ssize_t positional, Py_ssize_t count) {
  switch (when) {
    case When::kInMode:
      return in_fake_mode();
    case When::kGivenFake:
      return is_given_fake(args, count);
    case When::kInModeOrGivenFake:
      return in_fake_mode() || is_given_fake(args, count);
    case When::kFakesExist:
      return true;
    case When::kGivenMetaStorage:
      return positional > 0 && is_meta_storage(args[0]);  // a storage may outlive its tensors and their mode
    case When::kInModeOrGivenMetaStorage:
      return (fakes_exist() && in_fake_mode()) || (positional > 0 && is_meta_storage(args[0]));
    case When::kAlways:
      return true;
  }
  return true;
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t flags_and_count, PyObject* names) {
  const StandIn* self = of(callable);
  const Py_ssize_t positional = PyVectorcall_NARGS(flags_and_count);
  const Py_ssize_t count = positional + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
  if (cannot_hold(self->when) || !holds(self->when, args, positional, count)) {
    if (self->no_arguments != nullptr && positional == 1 && count == 1 && is_of_owner(*self, args[0])) {
      return self->no_arguments(args[0], nullptr);
    }
    return self->call_original(self->original, args, flags_and_count, names);
  }
  std::vector<PyObject*> with_original;
  with_original.reserve(static_cast<size_t>(count) + 1);
  with_original.push_back(self->original);
  with_original.insert(with_original.end(), args, args + count);
  return PyObject_Vectorcall(self->function, with_original.data(), static_cast<size_t>(positional) + 1, names);
}

// ---- Attributes and comparison: those of the original ---------------------------------------------------------------

PyObject* get_original(PyObject* self, void* /*closure*/) {
  Py_INCREF(of(self)->original);
  return of(self)->original;
}

PyObject* get_attribute(PyObject* self, PyObject* name) {
  // Every type defines these itself.
  if (PyUnicode_CompareWithASCIIString(name, "__module__") == 0 ||
      PyUnicode_CompareWithASCIIString(name, "__doc__") == 0) {
    return PyObject_GetAttr(of(self)->original, name);
  }
  if (PyObject* found = PyObject_GenericGetAttr(self, name)) {
    return found;
  }
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
    return nullptr;
  }
  PyErr_Clear();
  return PyObject_GetAttr(of(self)->original, name);
}

int set_attribute(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(of(self)->original, name, value);
}

PyObject* represent(PyObject* self) {
  return PyObject_Repr(of(self)->original);
}

Py_hash_t hash(PyObject* self) {
  return PyObject_Hash(of(self)->original);
}

// Equal to the original: PyTorch and programs have tables keyed by function, filled before or after the replacement.
PyObject* compare(PyObject* self, PyObject* other, int operation) {
  if (operation != Py_EQ && operation != Py_NE) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  PyObject* original = of(self)->original;
  const bool equal = other == self || other == original ||
      (Py_TYPE(other)->tp_call == Py_TYPE(self)->tp_call && Py_TYPE(other)->tp_hash == Py_TYPE(self)->tp_hash &&
       of(other)->original == original);
  return PyBool_FromLong(static_cast<long>(equal == (operation == Py_EQ)));
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject* /*owner*/) {
  if (instance == nullptr || instance == Py_None) {
    Py_INCREF(self);
    return self;
  }
  return PyMethod_New(self, instance);
}

// For computed attributes: a property, or a getset descriptor of C.
PyObject* get_value(PyObject* self, PyObject* instance, PyObject* owner) {
  PyObject* original = of(self)->original;
  if (instance == nullptr || cannot_hold(of(self)->when) || !holds(of(self)->when, &instance, 1, 1)) {
    const PyGetSetDef* attribute = of(self)->attribute;
    if (attribute != nullptr && instance != nullptr && is_of_owner(*of(self), instance)) {
      return attribute->get(instance, attribute->closure);
    }
    return Py_TYPE(original)->tp_descr_get(original, instance, owner);
  }
  PyObject* get = PyObject_GetAttrString(original, "__get__");
  if (get == nullptr) {
    return nullptr;
  }
  PyObject* value = PyObject_CallFunctionObjArgs(of(self)->function, get, instance, nullptr);
  Py_DECREF(get);
  return value;
}

int set_value(PyObject* self, PyObject* instance, PyObject* value) {
  PyObject* original = of(self)->original;
  if (descrsetfunc set = Py_TYPE(original)->tp_descr_set) {
    return set(original, instance, value);
  }
  PyErr_SetString(PyExc_AttributeError, "attribute cannot be set");
  return -1;
}

// A Python function is pickled by name, under which the stand-in is found again; others by their own __reduce__.
PyObject* reduce(PyObject* self, PyObject* protocol) {
  PyObject* original = of(self)->original;
  if (PyFunction_Check(original) != 0) {
    return PyObject_GetAttrString(original, "__qualname__");
  }
  return PyObject_CallMethod(original, "__reduce_ex__", "O", protocol);
}

// ---- The type --------------------------------------------------------------------------------------------------------

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(of(self)->original);
  Py_VISIT(of(self)->function);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(of(self)->original);
  Py_CLEAR(of(self)->function);
  return 0;
}

void destroy(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  if (of(self)->weak_references != nullptr) {
    PyObject_ClearWeakRefs(self);
  }
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

enum class Kind : uint8_t { kFunction, kMethod, kAttribute };

PyTypeObject* make_type(Kind kind) {
  // The last two allow PyTorch's compilers to find the wrapped Python function.
  static std::array<PyGetSetDef, 4> attributes = {{
      {"__wrapped__", &get_original, nullptr, nullptr, nullptr},
      {"__original_fn", &get_original, nullptr, nullptr, nullptr},
      {"__script_if_tracing_wrapper", [](PyObject*, void*) { return PyBool_FromLong(1); }, nullptr, nullptr, nullptr},
      {},
  }};
  static std::array<PyMethodDef, 2> methods = {{{"__reduce_ex__", &reduce, METH_O, nullptr}, {}}};
  static std::array<PyMemberDef, 3> members = {
      {{"__vectorcalloffset__", T_PYSSIZET, offsetof(StandIn, vectorcall), READONLY, nullptr},
       {"__weaklistoffset__", T_PYSSIZET, offsetof(StandIn, weak_references), READONLY, nullptr},
       {}}};
  std::vector<PyType_Slot> slots = {
      {Py_tp_getattro, reinterpret_cast<void*>(&get_attribute)},
      {Py_tp_setattro, reinterpret_cast<void*>(&set_attribute)},
      {Py_tp_repr, reinterpret_cast<void*>(&represent)},
      {Py_tp_hash, reinterpret_cast<void*>(&hash)},
      {Py_tp_richcompare, reinterpret_cast<void*>(&compare)},
      {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
      {Py_tp_getset, attributes.data()},
      {Py_tp_methods, methods.data()},
      {Py_tp_members, members.data()},
  };
  // The interpreter caches the lookup of a method only if the method's type is immutable.
  unsigned long flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE;
  if (kind == Kind::kAttribute) {
    slots.push_back({Py_tp_descr_get, reinterpret_cast<void*>(&get_value)});
    slots.push_back({Py_tp_descr_set, reinterpret_cast<void*>(&set_value)});
  } else {
    slots.push_back({Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)});
    flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  }
  // Binds to an instance if the original does.
  if (kind == Kind::kMethod) {
    slots.push_back({Py_tp_descr_get, reinterpret_cast<void*>(&bind)});
    flags |= Py_TPFLAGS_METHOD_DESCRIPTOR;
  }
  slots.push_back({0, nullptr});
  static constexpr std::array<const char*, 3> kNames = {
      "torchfake._C.StandIn", "torchfake._C.MethodStandIn", "torchfake._C.AttributeStandIn"};
  PyType_Spec spec = {
      kNames[static_cast<size_t>(kind)], sizeof(StandIn), 0, static_cast<unsigned int>(flags), slots.data()};
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr) {
    throw pybind11::error_already_set();
  }
  return type;
}

// Looks up the C implementation of the original.
void look_into(StandIn& stand_in) {
  PyObject* original = stand_in.original;
  // A function implemented in C is always called in the same way.
  vectorcallfunc direct = PyFunction_Check(original) != 0 ? nullptr : PyVectorcall_Function(original);
  stand_in.call_original = direct == nullptr ? &PyObject_Vectorcall : direct;
  if (Py_IS_TYPE(original, &PyMethodDescr_Type)) {
    const PyMethodDef* method = reinterpret_cast<PyMethodDescrObject*>(original)->d_method;
    stand_in.no_arguments = method->ml_flags == METH_NOARGS ? method->ml_meth : nullptr;
  } else if (Py_IS_TYPE(original, &PyGetSetDescr_Type)) {
    PyGetSetDef* attribute = reinterpret_cast<PyGetSetDescrObject*>(original)->d_getset;
    stand_in.attribute = attribute->get == nullptr ? nullptr : attribute;
  }
  if (stand_in.no_arguments != nullptr || stand_in.attribute != nullptr) {
    stand_in.owner = PyDescr_TYPE(original);
    for (auto* type : {reinterpret_cast<PyTypeObject*>(THPVariableClass), THPStorageClass}) {
      if (PyType_IsSubtype(type, stand_in.owner) != 0) {
        stand_in.usual = type;
      }
    }
  }
}

pybind11::object make_stand_in(pybind11::object original, pybind11::object function, When when) {
  static const std::array<PyTypeObject*, 3> types = {
      make_type(Kind::kFunction), make_type(Kind::kMethod), make_type(Kind::kAttribute)};
  const bool is_called = PyCallable_Check(original.ptr()) != 0;
  const bool is_descriptor = Py_TYPE(original.ptr())->tp_descr_get != nullptr;
  if ((!is_called && !is_descriptor) || PyCallable_Check(function.ptr()) == 0) {
    throw pybind11::type_error("stand_in: expected a function or an attribute of a class, and a function");
  }
  const Kind kind = !is_called ? Kind::kAttribute : is_descriptor ? Kind::kMethod : Kind::kFunction;
  PyTypeObject* type = types[static_cast<size_t>(kind)];
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) {
    throw pybind11::error_already_set();
  }
  of(made)->original = original.release().ptr();
  of(made)->function = function.release().ptr();
  of(made)->vectorcall = &call;
  look_into(*of(made));
  of(made)->when = when;
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

// Sets an attribute of a type that is implemented in C, which refuses setattr(); removes it for None.
void set_attribute_of_type(const pybind11::type& type, const pybind11::str& name, const pybind11::object& value) {
  auto* object = reinterpret_cast<PyTypeObject*>(type.ptr());
#if PY_VERSION_HEX >= 0x030c0000
  const auto dict = pybind11::reinterpret_steal<pybind11::object>(PyType_GetDict(object));
#else
  const auto dict = pybind11::reinterpret_borrow<pybind11::object>(object->tp_dict);
#endif
  TORCH_CHECK_TYPE(
      !value.is_none() || PyDict_Contains(dict.ptr(), name.ptr()) == 1,
      "set_attribute_of_type: the type has no attribute of this name to remove");
  const int failed =
      value.is_none() ? PyDict_DelItem(dict.ptr(), name.ptr()) : PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr());
  if (failed != 0) {
    throw pybind11::error_already_set();
  }
  PyType_Modified(object);
}

}  // namespace

void bind_stand_in(pybind11::module_& module) {
  pybind11::enum_<When>(module, "When")
      .value("IN_MODE", When::kInMode)
      .value("GIVEN_FAKE", When::kGivenFake)
      .value("IN_MODE_OR_GIVEN_FAKE", When::kInModeOrGivenFake)
      .value("FAKES_EXIST", When::kFakesExist)
      .value("GIVEN_META_STORAGE", When::kGivenMetaStorage)
      .value("IN_MODE_OR_GIVEN_META_STORAGE", When::kInModeOrGivenMetaStorage)
      .value("ALWAYS", When::kAlways);
  module.def("stand_in", &make_stand_in, pybind11::arg("original"), pybind11::arg("function"), pybind11::arg("when"));
  module.def(
      "set_attribute_of_type",
      &set_attribute_of_type,
      pybind11::arg("type"),
      pybind11::arg("name"),
      pybind11::arg("value"));
}

}  // namespace torchfake
