// The functions that gated.py calls.
#include "gated.h"

extern "C" {

int gated_forward(const GatedProblem* p) { return Gated(*p).forward(); }

int gated_backward_by_destination(const GatedProblem* p) { return Gated(*p).backward_by_destination(); }

int gated_backward_by_source(const GatedProblem* p) { return Gated(*p).backward_by_source(); }
}
