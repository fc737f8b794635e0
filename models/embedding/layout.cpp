// The functions that layout.py calls.
#include "layout.h"

extern "C" {

void layout_train(const LayoutProblem* p) {
  if (p->dim == 2) train_blocks<layout::Block<2>>(*p);
  else train_blocks<layout::Block<3>>(*p);
}
}
