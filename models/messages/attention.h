// What the passes of attention share: the layout of vectors, encoded edge features, scores and dropout.
#pragma once
#include "../kernels/hash.h"
#include "../kernels/tiles.h"

struct AttentionProblem {  // mirrored by AttentionProblem in attention_ops.py, field by field
  int64_t num_dst, num_src, num_positions, num_listed, heads, channels, edge_dim, score, num_threads, seed;
  int64_t ptr_wide, other_wide, position_wide;
  const void *ptr, *other, *position;
  double slope, dropout, edge_dropout;
  const float *message, *source, *target, *attr, *loop_attr, *weight, *att;
  float *out, *lse, *weights;
  // backward
  const float* gradient;
  float *grad_message, *grad_source, *grad_target, *grad_attr, *grad_loop_attr, *grad_weight, *grad_att;
};

enum Score { GATV2 = 0, GAT = 1, DOT = 2 };
constexpr int OK = 0, BROKEN_INDEX = 1, OUT_OF_MEMORY = 2;
constexpr int SLICE = 16;  // edges whose encoded features fit in the first-level cache
constexpr float LOG2_E = 1.4426950408889634f, LOWEST = -3.4028234e38f;
constexpr uint32_t ALL_HEADS = 0xffffffffu;  // the column of the hash that decides on whole edges

INLINE vf permute(vf a, vi lane) {
#if defined(SIMD_AVX512)
  return (vf)_mm512_permutexvar_ps((__m512i)lane, (__m512)a);
#elif defined(SIMD_AVX2)
  return (vf)_mm256_permutevar8x32_ps((__m256)a, (__m256i)lane);
#else
  vf out;
  for (int i = 0; i < LANES; i++) out[i] = a[lane[i]];
  return out;
#endif
}

// Keeps the compiler from reading a vector again wherever it is used.
INLINE vf in_register(vf a) {
#if defined(SIMD_AVX2) || defined(SIMD_AVX512)
  asm("" : "+x"(a));
#endif
  return a;
}

// Heads lie in the lanes of a vector, so that a score needs no long sum over lanes, and its weight multiplies vectors as
// it is. A vector has `groups` channels of `width` heads each; lane = group * width + head. More heads than lanes form
// several blocks. Rows of nodes are [block][vector][lane]. Missing heads and channels are 0.
struct Layout {
  int64_t heads, channels;
  int width, groups;
  int64_t blocks, vectors;
  std::vector<int32_t> place;  // of each element [head][channel] in a packed row

  Layout(int64_t heads_, int64_t channels_) : heads(heads_), channels(channels_), width(1) {
    while (width < heads && width < LANES) width *= 2;
    groups = LANES / width;
    blocks = (heads + width - 1) / width;
    vectors = (channels + groups - 1) / groups;
    for (int64_t h = 0; h < heads; h++)
      for (int64_t c = 0; c < channels; c++)
        place.push_back(int32_t(((h / width * vectors + c / groups) * groups + c % groups) * width + h % width));
  }
  int64_t size() const { return blocks * vectors * LANES; }

  void pack(const float* from, float* to) const {
    if (int64_t(place.size()) != size()) std::fill_n(to, size(), 0.0f);
    for (size_t i = 0; i < place.size(); i++) to[place[i]] = from[i];
  }
  void unpack(const float* from, float* to) const {
    for (size_t i = 0; i < place.size(); i++) to[i] = from[place[i]];
  }
  // A number of each head, in all of the head's lanes.
  void spread(const float* from, float* to) const {
    for (int64_t i = 0; i < blocks * LANES; i++) {
      const int64_t h = i / LANES * width + i % width;
      to[i] = h < heads ? from[h] : 0.0f;
    }
  }
  void gather(const float* from, float* to) const {
    for (int64_t h = 0; h < heads; h++) to[h] = from[h / width * LANES + h % width];
  }
};

// Adds the groups of a vector; every lane gets the sum of its head.
struct GroupSum {
  int steps = 0;
  vi lane[5];
  explicit GroupSum(const Layout& layout) {
    for (int step = layout.width; step < LANES; step *= 2, steps++)
      for (int i = 0; i < LANES; i++) lane[steps][i] = i ^ step;
  }
  INLINE vf operator()(vf a) const {
    for (int i = 0; i < steps; i++) a += permute(a, lane[i]);
    return a;
  }
};

// Dropout of an element, a function of (seed, row, lane); hash.py has the same.
struct Dropout {
  int64_t seed;
  uint32_t threshold;
  float rescale;
  Dropout(int64_t seed_, double share)
      : seed(seed_),
        threshold(share >= 1 ? 0xffffffffu : uint32_t(share * 4294967296.0)),
        rescale(share >= 1 ? 0.0f : float(1 / (1 - share))) {}
  bool active() const { return threshold != 0; }
  INLINE vf factor(int64_t row, vu lane) const {
    return hash_element(key_of_row(seed, row), lane) >= vu{} + threshold ? splat(rescale) : vf{};
  }
  bool removes(int64_t row) const { return rescale == 0 || hash_element(key_of_row(seed, row), ALL_HEADS) < threshold; }
};

template <int SCORE, bool EDGES>
struct Attention {
  const AttentionProblem& p;
  const Sorted edges;
  const Layout layout;
  const GroupSum group_sum;
  const Dropout dropout, edge_dropout;
  const int64_t size, score_vectors, score_size;  // floats of a packed row; vectors and floats of a row of the scores
  const float scale;
  const vf slope;
  Buffer<float> message, source, target, weight, att;
  std::vector<vu> head;  // of the lanes of a block

  explicit Attention(const AttentionProblem& p_)
      : p(p_),
        edges{p_.num_dst, p_.num_src, Index{p_.ptr, bool(p_.ptr_wide)}[p_.num_dst], {p_.ptr, bool(p_.ptr_wide)},
              {p_.other, bool(p_.other_wide)}, {p_.position, bool(p_.position_wide)}},
        layout(p_.heads, p_.channels),
        group_sum(layout),
        dropout(p_.seed, p_.dropout),
        edge_dropout(p_.seed, p_.edge_dropout),
        size(layout.size()),
        score_vectors(SCORE == GAT ? 1 : layout.vectors),
        score_size(layout.blocks * score_vectors * LANES),
        scale(SCORE == DOT ? LOG2_E / __builtin_sqrtf(float(p_.channels)) : LOG2_E),
        slope(splat(float(p_.slope))),
        message(p_.num_src * size),
        source(SCORE == GATV2 ? 0 : p_.num_src * score_size),
        target(p_.num_dst * score_size),
        weight(EDGES ? score_size * p_.edge_dim : 0),
        att(2 * size),
        head(layout.blocks) {
    for (int64_t b = 0; b < layout.blocks; b++)
      for (int i = 0; i < LANES; i++) head[b][i] = uint32_t(b * layout.width + i % layout.width);
    if (SCORE == GATV2) {
      layout.pack(p.att, att.data);
      for (int64_t i = 0; i < size; i++) att[size + i] = att[i] * float(p.slope);
    }
    if (EDGES) pack_weight();
    const int64_t dim = p.heads * p.channels, score_dim = SCORE == GAT ? p.heads : dim;
#pragma omp parallel num_threads(edges.team(p.num_threads))
    {
#pragma omp for schedule(static) nowait
      for (int64_t i = 0; i < p.num_src; i++) {
        layout.pack(p.message + i * dim, message.data + i * size);
        if (SCORE != GATV2) pack_score(p.source + i * score_dim, source.data + i * score_size);
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < p.num_dst; i++) pack_score(p.target + i * score_dim, target.data + i * score_size);
    }
  }

  void pack_score(const float* from, float* to) const {
    SCORE == GAT ? layout.spread(from, to) : layout.pack(from, to);
  }
  void unpack_score(const float* from, float* to) const {
    SCORE == GAT ? layout.gather(from, to) : layout.unpack(from, to);
  }

  // As [vector][feature][lane].
  void pack_weight() {
    const int64_t rows = SCORE == GAT ? p.heads : p.heads * p.channels;
    std::vector<float> column(rows), packed(score_size);
    for (int64_t d = 0; d < p.edge_dim; d++) {
      for (int64_t i = 0; i < rows; i++) column[i] = p.weight[i * p.edge_dim + d];
      pack_score(column.data(), packed.data());
      for (int64_t i = 0; i < score_size; i++) weight[(i / LANES * p.edge_dim + d) * LANES + i % LANES] = packed[i];
    }
  }

  const float* score_row(int64_t node) const {
    return SCORE == GATV2 ? message.data + node * size : source.data + node * score_size;
  }

  const float* features_of(int64_t position) const {
    return position < p.num_listed ? p.attr + position * p.edge_dim
                                   : p.loop_attr + (position - p.num_listed) * p.edge_dim;
  }

  // Reads the next tile without the edges that dropout removes, and the features of its edges [edge][feature].
  bool next(TileWalk& walk, Tile& tile, float* features, bool& broken) const {
    if (!walk.next(tile, broken)) return false;
    if (edge_dropout.active()) remove_edges(tile);
    if (EDGES) {
      for (int i = 0; i < tile.num_upcoming; i++) __builtin_prefetch(features_of(tile.upcoming[i]), 0, 2);
      for (int i = 0; i < tile.num_edges; i++)
        std::memcpy(features + i * p.edge_dim, features_of(tile.position[i]), 4 * p.edge_dim);
    }
    return true;
  }

  void remove_edges(Tile& tile) const {
    int kept = 0;
    for (int s = 0; s < tile.num_segments; s++) {
      Segment& segment = tile.segments[s];
      const int begin = kept;
      for (int i = segment.begin; i < segment.end; i++) {
        if (edge_dropout.removes(tile.position[i])) continue;
        tile.other[kept] = tile.other[i];
        tile.position[kept++] = tile.position[i];
      }
      segment.begin = begin, segment.end = kept;
    }
    std::fill_n(tile.other + kept, AHEAD, tile.other[std::max(kept - 1, 0)]);
    tile.num_edges = kept;
  }

  template <int N, int VECTORS>
  INLINE void encode_some(const float* features, const float* w, float* z) const {
    vf a[N][VECTORS];
    for (int i = 0; i < N; i++)
      for (int v = 0; v < VECTORS; v++) a[i][v] = splat(0.0f);
    const int64_t dim = p.edge_dim;
#pragma GCC unroll 1
    for (int64_t d = 0; d < dim; d++) {
      vf column[VECTORS];
      for (int v = 0; v < VECTORS; v++) column[v] = in_register(load(w + (v * dim + d) * LANES));
      for (int i = 0; i < N; i++) {
        const vf e = splat(features[i * dim + d]);
        for (int v = 0; v < VECTORS; v++) a[i][v] = fma(e, column[v], a[i][v]);
      }
    }
    for (int i = 0; i < N; i++)
      for (int v = 0; v < VECTORS; v++) store(z + i * score_size + v * LANES, a[i][v]);
  }

  template <int VECTORS>
  INLINE void encode_vectors(const float* features, int n, int64_t vector, float* z) const {
    const float* w = weight.data + vector * p.edge_dim * LANES;
    z += vector * LANES;
    int i = 0;
    for (; i + 4 <= n; i += 4) encode_some<4, VECTORS>(features + i * p.edge_dim, w, z + i * score_size);
    for (; i < n; i++) encode_some<1, VECTORS>(features + i * p.edge_dim, w, z + i * score_size);
  }

  // Encodes the features of n edges into z [edge][score_size]. Inlined, it would have too few registers.
  __attribute__((noinline)) void encode(const float* features, int n, float* z) const {
    const int64_t count = score_size / LANES;
    int64_t vector = 0;
    for (; vector + 2 <= count; vector += 2) encode_vectors<2>(features, n, vector, z);
    if (vector < count) encode_vectors<1>(features, n, vector, z);
  }

  // Products of N edges with a vector of the destination: the scores, or (Values) the gradients of the weights.
  template <int N, bool Values>
  INLINE void multiply(const int64_t* other, int64_t block, const float* of_dst, const float* z, vf* out) const {
    vf a[N];
    const float* from[N];
    for (int i = 0; i < N; i++) a[i] = splat(0.0f);
    for (int i = 0; i < N; i++)
      from[i] = (Values ? message.data + other[i] * size : score_row(other[i])) + block * layout.vectors * LANES;
    const float *plus = att.data + block * layout.vectors * LANES, *minus = plus + size;
    for (int64_t k = 0; k < layout.vectors * LANES; k += LANES) {
      const vf own = load(of_dst + k);
      for (int i = 0; i < N; i++) {
        vf x = load(from[i] + k);
        if (EDGES && (!Values || SCORE == DOT)) x += load(z + i * score_size + k);
        if (Values || SCORE == DOT) {
          a[i] = fma(x, own, a[i]);
        } else {
          x += own;
          a[i] = fma(x, (vi)x < 0 ? load(minus + k) : load(plus + k), a[i]);
        }
      }
    }
    for (int i = 0; i < N; i++) out[i] = group_sum(a[i]);
  }

  template <bool Values>
  INLINE void multiply_all(const int64_t* other, int n, int64_t block, const float* of_dst, const float* z,
                           vf* out) const {
    z += block * score_vectors * LANES;
    int i = 0;
    for (; i + 4 <= n; i += 4) multiply<4, Values>(other + i, block, of_dst, z + i * score_size, out + i);
    for (; i < n; i++) multiply<1, Values>(other + i, block, of_dst, z + i * score_size, out + i);
  }

  // The argument of the leaky ReLU of GAT.
  INLINE vf sum_of_gat(int64_t other, int64_t block, vf own, const float* z) const {
    vf x = load(source.data + other * score_size + block * LANES) + own;
    return EDGES ? x + load(z + block * LANES) : x;
  }

  // Prefetches rows of nodes that a slice of edges in sorted order will read, or add to (Write).
  template <bool Write>
  INLINE void prefetch_rows(int64_t first, const float* rows, int64_t floats) const {
    const int64_t end = std::min(first + SLICE, edges.num_edges);
    for (int64_t i = first; i < end; i++)
      for (const float *row = rows + edges.other[i] * floats, *stop = row + floats; row < stop; row += 64 / 4)
        __builtin_prefetch(row, Write);
  }

  INLINE void prefetch(int64_t first) const {
    prefetch_rows<false>(first, message.data, size);
    if (SCORE != GATV2) prefetch_rows<false>(first, source.data, score_size);
  }

  // Scores of n edges of a row, times log2(e).
  INLINE void score(const int64_t* other, int n, int64_t row, int64_t block, const float* z, vf* out) const {
    const float* own = target.data + row * score_size + block * score_vectors * LANES;
    if constexpr (SCORE == GAT) {
      for (int i = 0; i < n; i++) {
        const vf x = sum_of_gat(other[i], block, load(own), z + i * score_size);
        out[i] = (x > 0.0f ? x : x * slope) * scale;
      }
    } else {
      multiply_all<false>(other, n, block, own, z, out);
      for (int i = 0; i < n; i++) out[i] *= scale;
    }
  }
};
