// Aggregation of GENConv without a tensor of edges x channels: forward by destination, backward by source, each edge
// visited once in each. cpu.py calls the functions at the end of this file.
#include "backward.h"
#include "forward.h"

template <template <class> class Pass>
static int dispatch(const AggregationProblem& p) try {
  switch (p.aggregation) {
    case SOFTMAX: return Pass<Softmax>(p).run();
    case SOFTMAX_SG: return Pass<SoftmaxSemiGrad>(p).run();
    case POWER: return Pass<Power>(p).run();
    case ADD: return Pass<Add>(p).run();
    default: return Pass<Max>(p).run();
  }
} catch (const std::bad_alloc&) {
  return OUT_OF_MEMORY;
}

extern "C" {

int fused_forward(const AggregationProblem* p) { return dispatch<Forward>(*p); }

int fused_backward(const AggregationProblem* p) { return dispatch<Backward>(*p); }
}
