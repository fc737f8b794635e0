// The scaled dot product, for the passes of attention.h and attention_gradients.h.
#pragma once
#include "../attention_gradients.h"

struct Dot {
  static constexpr bool BY_HEAD = false, READS_SOURCE = true, READS_ATT = false, LINEAR = true;
  static constexpr bool by_source(bool edges) { return !edges; }

  template <class Pass>
  static INLINE void score(const Pass& pass, const typename Pass::Edges& e, const typename Pass::Row& row,
                           int64_t block, float* out) {
    pass.multiply(e, pass.source.data, block, row.target.data, row.projected.data, out);
  }

  template <class Pass>
  static INLINE void add(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                         typename Pass::Row& row, int64_t b, const float* w, const float* ds) {
    int64_t k = 0;
    ADD_BLOCK(8, add_factors);
    ADD_BLOCK(4, add_factors);
    ADD_BLOCK(1, add_factors);
    k = 0;
    if constexpr (Pass::BY_SOURCE) {
      ADD_BLOCK(8, Pass::template add_messages);
      ADD_BLOCK(4, Pass::template add_messages);
      ADD_BLOCK(1, Pass::template add_messages);
    } else {
      ADD_BLOCK(8, add_values);
      ADD_BLOCK(4, add_values);
      ADD_BLOCK(1, add_values);
    }
  }

  // Adds the gradients of messages at the far ends.
  template <int VECTORS, class Pass>
  static INLINE void add_values(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                                typename Pass::Row& row, int64_t at, const float* w, const float*) {
    vf g[VECTORS];
    for (int v = 0; v < VECTORS; v++) g[v] = load(row.gradient.data + at + v * LANES);
    const int64_t node_size = pass.size, *other = e.other, *ahead = e.ahead;
    const int heads = pass.width, n = e.n;
    const vi head = pass.layout.head;
    float* values = part.message.data + at;
    for (int i = 0; i < n; i++) {
      const vf weight = permute(load(w + i * heads), head);
      Pass::template prefetch<VECTORS, true>(values + ahead[i] * node_size);
      float* to = values + other[i] * node_size;
      for (int v = 0; v < VECTORS; v++) store(to + v * LANES, fma(weight, g[v], load(to + v * LANES)));
    }
  }

  // Adds the gradients of both factors.
  template <int VECTORS, class Pass>
  static INLINE void add_factors(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                                 typename Pass::Row& row, int64_t at, const float*, const float* ds) {
    float* to_row = row.sum.data + (Pass::BY_SOURCE ? pass.size : 0) + at;
    vf own[VECTORS], sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      own[v] = load(row.target.data + at + v * LANES);
      sum[v] = load(to_row + v * LANES);
    }
    const int64_t node_size = pass.size, *other = e.other, *ahead = e.ahead;
    const int heads = pass.width, n = e.n;
    const vi head = pass.layout.head;
    const float* others = pass.source.data + at;
    float* grad_others = part.source.data + at;
    for (int i = 0; i < n; i++) {
      const vf share = permute(load(ds + i * heads), head);
      Pass::template prefetch<VECTORS, true>(grad_others + ahead[i] * node_size);
      const float* from = others + other[i] * node_size;
      float* to = grad_others + other[i] * node_size;
      for (int v = 0; v < VECTORS; v++) {
        sum[v] = fma(share, load(from + v * LANES), sum[v]);
        store(to + v * LANES, fma(share, own[v], load(to + v * LANES)));
      }
    }
    for (int v = 0; v < VECTORS; v++) store(to_row + v * LANES, sum[v]);
  }
};
