// The work of operators by family, as far as it does not follow from the sizes of their tensors.
#pragma once

#include <torchfake/work/work.h>

namespace torchfake::work_rows {

// The work of an operator. Each family has a table of rows.
struct Row {
  const char* name;  // without the overload
  work::OperatorWork work;
};

c10::ArrayRef<Row> collective_rows();
c10::ArrayRef<Row> memory_rows();
c10::ArrayRef<Row> product_rows();

}  // namespace torchfake::work_rows
