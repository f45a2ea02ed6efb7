// The work of a mode's operators: the meter that counts it.
#include <torch/csrc/utils/pybind.h>
#include <torchfake/work/meter.h>

#include "bindings.h"

namespace torchfake {

namespace {

namespace py = pybind11;

py::list rows_of(const work::WorkMeter& meter) {
  py::list list;
  for (const work::WorkRow& row : meter.rows()) {
    const work::Work& work = row.work;
    list.append(
        py::make_tuple(
            py::str(row.op.data(), row.op.size()),
            row.scope,
            static_cast<int>(row.activity),
            std::string(work::to_string(work.family)),
            work.device.str(),
            work.dtype == c10::ScalarType::Undefined ? "" : c10::toString(work.dtype),
            work.may_use_tf32,
            work.flops,
            work.least_flops,
            work.nbytes,
            work.traffic,
            work.group_size,
            work.launches,
            row.calls,
            work.outputs,
            row.tensors,
            row.records_gradient,
            work.is_aligned));
  }
  return list;
}

}  // namespace

void bind_work(py::module_& module) {
  py::class_<work::WorkMeter, std::shared_ptr<work::WorkMeter>>(module, "WorkMeter")
      .def(py::init<>())
      .def("rows", &rows_of)
      .def_property_readonly("uncounted", &work::WorkMeter::uncounted);
}

}  // namespace torchfake
