// The arguments of a pass, and the states of rows that several chunks share.
#pragma once
#include "encode.h"
#include "kinds.h"

struct AggregationProblem {  // mirrored by AggregationProblem in cpu.py, field by field
  int64_t num_rows, num_others, num_edges, num_positions, channels, edge_dim;
  int64_t aggregation, features, num_threads;
  int64_t ptr_wide, other_wide, position_wide;
  const void *ptr, *other, *position;
  const float *x, *attr, *weight, *bias;
  float param, eps, low, high, limit;
  // forward
  float *out, *stat, *stat2;
  // backward
  const float* gradient;
  float *grad_x, *grad_attr, *grad_weight, *grad_bias, *grad_param;
};

enum Aggregation { SOFTMAX = 0, SOFTMAX_SG = 1, POWER = 2, ADD = 3, MAX = 4 };
constexpr int OK = 0, BROKEN_INDEX = 1, OUT_OF_MEMORY = 2, TOO_STEEP = 3;

static Sorted sorted_edges(const AggregationProblem& p) {
  return {p.num_rows, p.num_others, p.num_edges, {p.ptr, bool(p.ptr_wide)}, {p.other, bool(p.other_wide)},
          {p.position, bool(p.position_wide)}};
}

// States of rows that several chunks share: for each chunk, of the row it begins in and of the row it ends in.
template <class State>
struct Partials {
  int64_t num_blocks;
  Buffer<State> head, tail;
  Partials(int64_t num_chunks, int64_t num_blocks_)
      : num_blocks(num_blocks_), head(num_chunks * num_blocks_), tail(num_chunks * num_blocks_) {}

  // Returns the place for the state of a row that began before the chunk or goes on after it.
  State* of(int64_t chunk, const Segment& segment) {
    return (segment.whole ? tail.data : head.data) + chunk * num_blocks;
  }

  // Calls done(row, states of all blocks) for every row of more than one chunk.
  template <class Merge, class Done>
  void merge(const Sorted& edges, Merge merge, Done done) {
    std::vector<State> sum(num_blocks);
    const int64_t step = edges.chunk_edges();
    for (int64_t chunk = 0; chunk < edges.num_chunks(); chunk++) {
      const int64_t begin = chunk * step, end = std::min(edges.num_edges, begin + step);
      int64_t row = edges.row_of(begin);
      if (edges.ptr[row] < begin) {
        for (int64_t b = 0; b < num_blocks; b++) merge(sum[b], head[chunk * num_blocks + b]);
        if (edges.ptr[row + 1] <= end) done(row, sum.data());
      }
      row = edges.row_of(end - 1);
      if (edges.ptr[row] >= begin && edges.ptr[row + 1] > end)
        std::copy_n(tail.data + chunk * num_blocks, num_blocks, sum.data());
    }
  }
};
