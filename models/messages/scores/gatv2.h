// The score of GATv2, for the passes of attention.h and attention_gradients.h.
#pragma once
#include "../attention_gradients.h"

struct GATv2 {
  static constexpr bool BY_HEAD = false, READS_SOURCE = false, READS_ATT = true, LINEAR = false;
  static constexpr bool by_source(bool) { return false; }

  template <class Pass>
  static INLINE void score(const Pass& pass, const typename Pass::Edges& e, const typename Pass::Row& row,
                           int64_t block, float* out) {
    int i = 0;
    for (; i + 4 <= e.n; i += 4) score_some<4>(pass, e, i, block, row.target.data, out);
    for (; i < e.n; i++) score_some<1>(pass, e, i, block, row.target.data, out);
  }

  template <class Pass>
  static INLINE void add(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                         typename Pass::Row& row, int64_t b, const float* w, const float* ds) {
    int64_t k = 0;
    ADD_BLOCK(4, add_sides);
    ADD_BLOCK(1, add_sides);
  }

  // Scores of N edges, dense.
  template <int N, class Pass>
  static INLINE void score_some(const Pass& pass, const typename Pass::Edges& e, int first, int64_t block,
                                const float* node, float* out) {
    const int64_t base = block * pass.layout.vectors * LANES;
    const float *plus = pass.att.data + base, *minus = plus + pass.size, *z = e.z + first * pass.encoded_size + base;
    vf sum[N];
    const float* from[N];
    for (int i = 0; i < N; i++)
      sum[i] = splat(0.0f), from[i] = pass.message.data + e.other[first + i] * pass.size + base;
    for (int64_t k = 0; k < pass.layout.vectors * LANES; k += LANES) {
      const vf own = load(node + base + k);
      for (int i = 0; i < N; i++) {
        vf x = load(from[i] + k) + own;
        if (Pass::HAS_EDGES) x += load(z + i * pass.encoded_size + k);
        sum[i] = fma(x, (vi)x < 0 ? load(minus + k) : load(plus + k), sum[i]);
      }
      if (k % 16 == 0)  // a cache line
        for (int i = 0; i < N; i++) __builtin_prefetch(pass.message.data + e.ahead[first + i] * pass.size + base + k);
    }
    for (int i = 0; i < N; i++) store(out + (first + i) * pass.width, pass.groups.sum(sum[i]));
  }

  // Adds the gradients of VECTORS vectors of both sides, and of att; z becomes the gradient of the encoded features.
  template <int VECTORS, class Pass>
  static INLINE void add_sides(const Pass& pass, typename Pass::Part& part, const typename Pass::Edges& e,
                               typename Pass::Row& row, int64_t at, const float* w, const float* ds) {
    vf own[VECTORS], g[VECTORS], a[VECTORS], sum[VECTORS], att_sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      own[v] = load(row.target.data + at + v * LANES);
      g[v] = load(row.gradient.data + at + v * LANES);
      a[v] = load(pass.att.data + at + v * LANES);
      sum[v] = att_sum[v] = splat(0.0f);
    }
    const int64_t node_size = pass.size, z_size = pass.encoded_size, *other = e.other, *ahead = e.ahead;
    const int heads = pass.width, n = e.n;
    const vi head = pass.layout.head;
    const vf negative_slope = pass.slope;
    const float* values = pass.message.data + at;
    float *grad_values = part.message.data + at, *z = e.z + at;
    for (int i = 0; i < n; i++, z += z_size) {
      const vf weight = permute(load(w + i * heads), head), share = permute(load(ds + i * heads), head),
               small = share * negative_slope;
      Pass::template prefetch<VECTORS, true>(grad_values + ahead[i] * node_size);
      const float* from = values + other[i] * node_size;
      float* to = grad_values + other[i] * node_size;
      for (int v = 0; v < VECTORS; v++) {
        vf x = load(from + v * LANES) + own[v];
        if (Pass::HAS_EDGES) x += load(z + v * LANES);
        const vf d = x > 0.0f ? share : small;
        sum[v] += d;
        att_sum[v] = fma(d, x, att_sum[v]);
        if (Pass::HAS_EDGES) store(z + v * LANES, d * a[v]);
        store(to + v * LANES, fma(d, a[v], fma(weight, g[v], load(to + v * LANES))));
      }
    }
    for (int v = 0; v < VECTORS; v++) {
      float *to = row.sum.data + at + v * LANES, *to_att = part.att.tile.data + at + v * LANES;
      store(to, fma(sum[v], a[v], load(to)));
      store(to_att, load(to_att) + att_sum[v]);
    }
  }
};
