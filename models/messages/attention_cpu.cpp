// Attention without a tensor of edges x channels. attention_ops.py calls the functions at the end of this file.
#include "attention_backward.h"
#include "attention_forward.h"
#include "scores/dot.h"
#include "scores/gat.h"
#include "scores/gatv2.h"

template <template <class, bool> class Pass, class Score>
static int run(const AttentionProblem& p) {
  return p.edge_dim > 0 ? Pass<Score, true>(p).run() : Pass<Score, false>(p).run();  // attr is null without edges
}

template <class Score>
static int run_backward(const AttentionProblem& p) {
  return run<AttentionBackward, Score>(Score::by_source(p.edge_dim > 0) ? by_source(p) : p);
}

// Calls the function of a score, in the order of scores/__init__.py.
template <class... Functions>
static int dispatch(const AttentionProblem& p, Functions... functions) try {
  int (*const all[])(const AttentionProblem&) = {functions...};
  return all[p.score](p);
} catch (const std::bad_alloc&) {
  return OUT_OF_MEMORY;
}

extern "C" {

int attention_forward(const AttentionProblem* p) {
  return dispatch(*p, run<AttentionForward, GATv2>, run<AttentionForward, GAT>, run<AttentionForward, Dot>);
}

int attention_backward(const AttentionProblem* p) {
  return dispatch(*p, run_backward<GATv2>, run_backward<GAT>, run_backward<Dot>);
}
}
