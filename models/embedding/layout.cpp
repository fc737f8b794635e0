// What models/embedding/layout.py calls.
#include "layout.h"

extern "C" {

int64_t layout_problem_size() { return sizeof(LayoutProblem); }

void layout_train(const LayoutProblem* p) {
  if (p->dim == 2) layout::train<2>(*p);
  else layout::train<3>(*p);
}
}
