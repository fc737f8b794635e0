// The score of GAT, for the passes of attention.h and attention_gradients.h.
#pragma once
#include "../attention_gradients.h"

struct GAT {
  static constexpr bool BY_HEAD = true, READS_SOURCE = true, READS_ATT = false, LINEAR = false;
  static constexpr bool by_source(bool) { return true; }

  // The arguments of the leaky ReLU, dense, up to a whole vector.
  template <class Pass>
  static INLINE void score(const Pass& pass, const typename Pass::Edges& e, const typename Pass::Row& row,
                           int64_t block, float* out) {
    const float *from = pass.source.data + block * pass.width, *z = e.z + block * LANES;
    for (int i = 0; i < e.n; i++) {
      vf x = load(from + e.other[i] * pass.score_size);
      if (Pass::HAS_EDGES) x += load(z + i * pass.encoded_size);
      store(out + i * pass.width, x);
    }
    store(out + e.n * pass.width, vf{});
    const vf own = pass.layout.spread(row.target.data + block * pass.width);
    for (int k = 0; k < pass.dense(e.n); k += LANES) store(out + k, load(out + k) + own);
  }

  template <class Pass>
  static INLINE void add(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                         typename Pass::Row& row, int64_t b, const float* w, const float* ds) {
    add_gradients(pass, part, e, row, b, ds);
    int64_t k = 0;
    ADD_BLOCK(8, Pass::template add_messages);
    ADD_BLOCK(4, Pass::template add_messages);
    ADD_BLOCK(1, Pass::template add_messages);
  }

  // Adds the gradients of scores.
  template <int WIDTH, class Pass>
  static INLINE void add_heads(const Pass& pass, const typename Pass::Edges& e, const float* ds, float* to) {
    const int64_t node_size = pass.score_size;
    for (int i = 0; i < e.n; i++) {
      float sum[WIDTH], *at = to + e.other[i] * node_size;
      for (int h = 0; h < WIDTH; h++) sum[h] = at[h] + ds[i * WIDTH + h];
      std::memcpy(at, sum, 4 * WIDTH);
    }
  }

  template <class Pass>
  static INLINE void add_gradients(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                                   typename Pass::Row& row, int64_t block, const float* ds) {
    float *to = part.source.data + block * pass.width, *to_row = row.sum.data + pass.size + block * LANES;
    switch (pass.width) {
      case 1: add_heads<1>(pass, e, ds, to); break;
      case 2: add_heads<2>(pass, e, ds, to); break;
      case 4: add_heads<4>(pass, e, ds, to); break;
      case 8: add_heads<8>(pass, e, ds, to); break;
      default: add_heads<16>(pass, e, ds, to);
    }
    vf sum = load(to_row);
    for (int k = 0; k < pass.dense(e.n); k += LANES) sum += load(ds + k);
    store(to_row, sum);
    if (!Pass::HAS_EDGES) return;
    for (int i = 0; i < e.n; i++)
      store(e.z + i * pass.encoded_size + block * LANES, pass.layout.spread(ds + i * pass.width));
  }
};
