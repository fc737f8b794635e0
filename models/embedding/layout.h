// Layouts in two or three dimensions: sampled edges are pulled together, negatives are pushed apart.
// tests/helpers/layout_numpy.py computes the same in numpy.
//
// A block holds the edges between two partitions of the points. TILE pairs at a time are sampled by weight. They read
// positions from before the tile and share their negatives. Blocks that share no rows run in parallel, so that the order of
// all updates depends only on the key.
#pragma once
#include <algorithm>
#include <cmath>

#include "../kernels/hash.h"
#include "../kernels/simd.h"
#include "../kernels/tasks.h"

struct LayoutProblem {  // layout.py reads its fields from here
  int64_t dim, num_tasks, num_negatives, num_threads;
  uint64_t key;
  float lr, attraction, negative_weight, smooth, clip;
  float* positions;          // [num_rows, dim]
  const int64_t* task_ptr;   // [num_tasks + 1], into blocks
  const int64_t* blocks;     // [num_blocks, 7]: number, first rows, rows of tails, first edge, edges, pairs to draw
  const int32_t* edges;      // [num_edges, 2], rows within their partitions
  const float* edge_accept;  // [num_edges], alias table of each block's edges
  const int32_t* edge_alias;
  const float* accept;  // [num_rows], alias table of each partition's tails
  const int32_t* alias;
  double* loss;  // [num_blocks, 2]: sum over some pairs, and their number
};

namespace layout {

constexpr int TILE = 16;  // pairs
constexpr int MAX_NEGATIVES = 64;
constexpr int64_t LOSS_EVERY = 64;  // tiles

INLINE vf clipped(vf a, float bound) { return max(min(a, splat(bound)), splat(-bound)); }

template <int DIM>
struct Block {
  const LayoutProblem& p;
  const int64_t number, first_head, first_tail, num_tails, first_edge, num_edges, num_pairs;
  float *heads, *tails;  // of the partitions
  double loss = 0, counted = 0;

  Block(const LayoutProblem& p, int64_t index)
      : p(p),
        number(p.blocks[7 * index]),
        first_head(p.blocks[7 * index + 1]),
        first_tail(p.blocks[7 * index + 2]),
        num_tails(p.blocks[7 * index + 3]),
        first_edge(p.blocks[7 * index + 4]),
        num_edges(p.blocks[7 * index + 5]),
        num_pairs(p.blocks[7 * index + 6]),
        heads(p.positions + DIM * first_head),
        tails(p.positions + DIM * first_tail) {}

  void train() {
    if (!num_edges) return;
    Random random(mix(p.key + uint64_t(number + 1) * GOLDEN));
    for (int64_t first = 0; first < num_pairs; first += TILE)
      tile(random, int(std::min<int64_t>(TILE, num_pairs - first)), first / TILE % LOSS_EVERY == 0);
  }

  INLINE void tile(Random& random, int size, bool count_loss) {
    int32_t head[TILE], tail[TILE], negative[MAX_NEGATIVES];
    float n[DIM][MAX_NEGATIVES], m[DIM][MAX_NEGATIVES];
    float x[DIM][TILE], y[DIM][TILE], g[DIM][TILE], push[DIM][TILE], weight[TILE];
    for (int i = 0; i < TILE; i++) {
      weight[i] = i < size;
      if (i < size) {
        const int64_t edge =
            first_edge + draw_row(random(), num_edges, p.edge_accept + first_edge, p.edge_alias + first_edge);
        head[i] = p.edges[2 * edge], tail[i] = p.edges[2 * edge + 1];
      } else {
        head[i] = head[0], tail[i] = tail[0];
      }
    }
    for (int i = 0; i < TILE; i++)
      for (int c = 0; c < DIM; c++) x[c][i] = heads[DIM * head[i] + c], y[c][i] = tails[DIM * tail[i] + c];
    pull(x, y, g, weight, count_loss);
    for (int k = 0; k < p.num_negatives; k++)
      negative[k] = int32_t(draw_row(random(), num_tails, p.accept + first_tail, p.alias + first_tail));
    for (int k = 0; k < p.num_negatives; k++)
      for (int c = 0; c < DIM; c++) n[c][k] = tails[DIM * negative[k] + c];
    std::memset(push, 0, sizeof push);
    for (int k = 0; k < p.num_negatives; k++) repel(x, n, m, k, push, weight, count_loss);
    for (int i = 0; i < size; i++)
      for (int c = 0; c < DIM; c++) tails[DIM * tail[i] + c] -= g[c][i];
    for (int i = 0; i < size; i++)
      for (int c = 0; c < DIM; c++) heads[DIM * head[i] + c] += g[c][i] + push[c][i];
    for (int k = 0; k < p.num_negatives; k++)
      for (int c = 0; c < DIM; c++) tails[DIM * negative[k] + c] -= m[c][k];
    counted += count_loss ? size : 0;
  }

  // Pulls heads towards their tails; g is the move of the heads.
  INLINE void pull(const float (*x)[TILE], const float (*y)[TILE], float (*g)[TILE], const float* weight,
                   bool count_loss) {
    for (int i = 0; i < TILE; i += LANES) {
      vf delta[DIM], square = {};
      for (int c = 0; c < DIM; c++) {
        delta[c] = load(x[c] + i) - load(y[c] + i);
        square = fma(delta[c], delta[c], square);
      }
      const vf w = load(weight + i);
      const vf scale = -2.0f * p.attraction / (1.0f + square);
      for (int c = 0; c < DIM; c++) store(g[c] + i, w * p.lr * clipped(scale * delta[c], p.clip));
      if (count_loss) loss += sum(w * log2(1.0f + square)) * M_LN2;
    }
  }

  // Pushes all heads away from a negative; m is minus the move of the negative.
  INLINE void repel(const float (*x)[TILE], const float (*n)[MAX_NEGATIVES], float (*m)[MAX_NEGATIVES], int k,
                    float (*push)[TILE], const float* weight, bool count_loss) {
    const float each = p.negative_weight / p.num_negatives;
    vf total[DIM] = {};
    for (int i = 0; i < TILE; i += LANES) {
      vf delta[DIM], square = {};
      for (int c = 0; c < DIM; c++) {
        delta[c] = load(x[c] + i) - n[c][k];
        square = fma(delta[c], delta[c], square);
      }
      const vf w = load(weight + i) * p.lr;
      const vf scale = 2.0f * each / ((p.smooth + square) * (1.0f + square));
      for (int c = 0; c < DIM; c++) {
        const vf step = w * clipped(scale * delta[c], p.clip);
        store(push[c] + i, load(push[c] + i) + step);
        total[c] += step;
      }
      if (count_loss) loss += each * sum(load(weight + i) * log2((1.0f + square) / (p.smooth + square))) * M_LN2;
    }
    for (int c = 0; c < DIM; c++) m[c][k] = quick_sum(total[c]);
  }
};

}  // namespace layout
