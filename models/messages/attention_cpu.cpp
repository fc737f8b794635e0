// Attention without a tensor of edges x channels. attention_ops.py calls the functions at the end of this file.
#include "attention_backward.h"
#include "attention_forward.h"

template <template <int, bool> class Pass>
static int dispatch(const AttentionProblem& p) try {
  const bool edges = p.edge_dim > 0;  // attr is null without edges
  switch (p.score) {
    case GATV2: return edges ? Pass<GATV2, true>(p).run() : Pass<GATV2, false>(p).run();
    case GAT: return edges ? Pass<GAT, true>(p).run() : Pass<GAT, false>(p).run();
    default: return edges ? Pass<DOT, true>(p).run() : Pass<DOT, false>(p).run();
  }
} catch (const std::bad_alloc&) {
  return OUT_OF_MEMORY;
}

extern "C" {

int attention_forward(const AttentionProblem* p) { return dispatch<AttentionForward>(*p); }

int attention_backward(const AttentionProblem* p) {
  return dispatch<AttentionBackward>(rows_are_sources(p->score, p->edge_dim > 0) ? by_source(*p) : *p);
}
}
