// The arguments of a pass.
#pragma once
#include "encode.h"
#include "kinds.h"

struct AggregationProblem {  // cpu.py reads its fields from here
  int64_t num_rows, num_others, num_edges, num_positions, channels, edge_dim, num_relations;
  int64_t aggregation, features, num_threads;
  int64_t ptr_wide, other_wide, position_wide;
  const void *ptr, *other, *position;
  const float *x, *attr, *weight, *bias, *table;
  float param, eps, low, high, limit;
  // forward
  float *out, *stat, *stat2;
  // backward
  const float* gradient;
  float *grad_x, *grad_attr, *grad_weight, *grad_bias, *grad_table, *grad_param;
};

enum Aggregation { SOFTMAX = 0, SOFTMAX_SG = 1, POWER = 2, ADD = 3, MAX = 4 };

static Encoder make_encoder(const AggregationProblem& p) {
  return {Features(p.features), p.channels, p.edge_dim, p.attr, p.weight, p.bias, p.num_relations, p.table};
}
