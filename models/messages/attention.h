// What the passes of attention share: the walk over edges, encoded edge features, scores and dropout.
#pragma once
#include "../kernels/hash.h"
#include "attention_layout.h"

struct AttentionProblem {  // attention_ops.py reads its fields from here
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

constexpr int SLICE = 32;  // edges whose encoded features and scores fit in the first-level cache
constexpr float LOG2_E = 1.4426950408889634f, LOWEST = -3.4028234e38f;
constexpr uint32_t ALL_HEADS = 0xffffffffu;  // the column of the hash that decides on whole edges

// Keeps the compiler from reading a vector again wherever it is used.
INLINE vf in_register(vf a) {
#if defined(SIMD_AVX2) || defined(SIMD_AVX512)
  asm("" : "+x"(a));
#endif
  return a;
}

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

// Consecutive edges of a chunk, at most SLICE of them, without those that dropout removes.
struct Slice {
  int num_edges, num_segments;
  const int64_t *other, *position, *ahead;  // `ahead`: far ends of edges to come
  const float* features;                    // [edge][feature]
  Segment segments[SLICE];
  int64_t others[SLICE], positions[SLICE], aheads[SLICE];
};

// A score, one of scores/*.h, says:
// - BY_HEAD: whether it is computed from one number for each head of a node, not from vectors;
// - READS_SOURCE: whether sources have keys, which are not their messages;
// - READS_ATT: whether it reads a learned vector for each head;
// - LINEAR: whether it is linear in the key, so that the encoder of edge features can be taken to the nodes;
// - by_source(edges): whether backward walks over the edges sorted by source;
// - score(pass, e, row, block, out): the scores of edges, dense; of BY_HEAD the arguments of the leaky ReLU;
// - add(pass, part, e, row, block, w, ds): adds the gradients of a block of heads, from weights and gradients of scores.
template <class Score, bool EDGES>
struct Attention {
  // The encoded features of an edge are only needed where a function that is not linear follows. Dot products take the
  // encoder to the nodes: q . (k + W e) = q . k + (W^T q) . e, and sum_j a_j W e_j = W sum_j a_j e_j.
  static constexpr bool HAS_EDGES = EDGES, BY_HEAD = Score::BY_HEAD;
  static constexpr bool ENCODES = EDGES && !Score::LINEAR, PROJECTS = EDGES && Score::LINEAR;

  const AttentionProblem& p;
  const Sorted edges;
  const Layout layout;
  const Groups groups;
  const Dropout dropout, edge_dropout;
  const int width;  // heads of a block
  // Floats of a packed row, of the scores of a row in nodes and in encoded features, and of a row's encoder.
  const int64_t size, score_size, encoded_size, projected_size;
  const float scale;
  const vf slope;
  Buffer<float> message, source, weight, att;  // packed
  std::vector<vu> head;                        // of the lanes of a block

  explicit Attention(const AttentionProblem& p_)
      : p(p_),
        edges{p_.num_dst,
              p_.num_src,
              Index{p_.ptr, bool(p_.ptr_wide)}[p_.num_dst],
              {p_.ptr, bool(p_.ptr_wide)},
              {p_.other, bool(p_.other_wide)},
              {p_.position, bool(p_.position_wide)}},
        layout(p_.heads, p_.channels),
        groups(layout),
        dropout(p_.seed, p_.dropout),
        edge_dropout(p_.seed, p_.edge_dropout),
        width(layout.width),
        size(layout.size()),
        score_size(BY_HEAD ? layout.dense_heads() : size),
        encoded_size(BY_HEAD ? layout.blocks * LANES : size),
        projected_size(PROJECTS ? layout.blocks * p_.edge_dim * LANES : 0),
        scale(Score::LINEAR ? LOG2_E / __builtin_sqrtf(float(p_.channels)) : LOG2_E),
        slope(splat(float(p_.slope))),
        message(p_.num_src * size),
        source(Score::READS_SOURCE ? p_.num_src * score_size + LANES : 0),
        weight(EDGES ? encoded_size * p_.edge_dim : 0),
        att(2 * size),
        head(layout.blocks) {
    for (int64_t b = 0; b < layout.blocks; b++)
      for (int i = 0; i < LANES; i++) head[b][i] = uint32_t(b * width + i % width);
    if (Score::READS_ATT) {
      layout.pack(p.att, att.data);
      for (int64_t i = 0; i < size; i++) att[size + i] = att[i] * float(p.slope);
    }
    if (EDGES) pack_weight();
#pragma omp parallel for schedule(static) num_threads(edges.team(p.num_threads))
    for (int64_t i = 0; i < p.num_src; i++) {
      layout.pack(p.message + i * p.heads * p.channels, message.data + i * size);
      if (Score::READS_SOURCE) pack_score(p.source + i * score_dim(), source.data + i * score_size);
    }
  }

  // Numbers of a node's scores as they are given.
  int64_t score_dim() const { return BY_HEAD ? p.heads : p.heads * p.channels; }

  void pack_score(const float* from, float* to) const { BY_HEAD ? layout.pack_heads(from, to) : layout.pack(from, to); }

  // As [vector][feature][lane].
  void pack_weight() {
    std::vector<float> column(score_dim()), packed(encoded_size + LANES);
    for (int64_t d = 0; d < p.edge_dim; d++) {
      for (int64_t i = 0; i < score_dim(); i++) column[i] = p.weight[i * p.edge_dim + d];
      pack_score(column.data(), packed.data());
      for (int64_t v = 0; v < encoded_size / LANES; v++)
        store(weight.data + (v * p.edge_dim + d) * LANES,
              BY_HEAD ? layout.spread(packed.data() + v * width) : load(packed.data() + v * LANES));
    }
  }

  const float* features_of(int64_t position) const {
    return position < p.num_listed ? p.attr + position * p.edge_dim
                                   : p.loop_attr + (position - p.num_listed) * p.edge_dim;
  }

  // Calls pass.visit(slice, segment) for all edges of a chunk, SLICE at a time, between pass.begin(slice) and
  // pass.end(slice). False if an index points outside of its array.
  // `features` has room for the features of a slice.
  template <class Pass>
  bool walk(int64_t chunk, float* features, Pass& pass) const {
    const int64_t begin = chunk * edges.chunk_edges(), end = std::min(edges.num_edges, begin + edges.chunk_edges());
    int64_t row = edges.row_of(begin);
    if (!edges.rows_are_sorted(row, begin, end) || !edges.other.is_below(edges.num_others, begin, end) ||
        !edges.position.is_below(p.num_positions, begin, end))
      return false;
    Slice slice;
    slice.position = slice.positions, slice.features = features;
    for (int64_t first = begin; first < end; first += SLICE) {
      slice.num_edges = int(std::min<int64_t>(SLICE, end - first));
      slice.num_segments = 0;
      for (int at = 0; at < slice.num_edges;) {
        while (edges.ptr[row + 1] <= first + at) row++;
        const int64_t row_begin = edges.ptr[row], row_end = edges.ptr[row + 1];
        const int stop = int(std::min<int64_t>(row_end - first, slice.num_edges));
        slice.segments[slice.num_segments++] = {
            row, at, stop, first + at == std::max(row_begin, begin), first + stop == row_end, row_begin >= begin};
        at = stop;
      }
      read(first, features, slice);
      pass.begin(slice);
      for (int s = 0; s < slice.num_segments; s++) pass.visit(slice, slice.segments[s]);
      pass.end(slice);
    }
    return true;
  }

  void read(int64_t first, float* features, Slice& slice) const {
    const int n = slice.num_edges;
    slice.other = edges.other.view(first, n, slice.others);
    slice.ahead = edges.other.view(std::max<int64_t>(0, std::min(first + AHEAD, edges.num_edges - n)), n, slice.aheads);
    if (EDGES || dropout.active() || edge_dropout.active() || p.weights)
      slice.position = edges.position.view(first, n, slice.positions);
    if (edge_dropout.active()) remove_edges(slice);
    if (!EDGES) return;
    if (!edges.position.data && !edge_dropout.active() && first + n <= p.num_listed) {
      slice.features = p.attr + first * p.edge_dim;
      const int64_t ahead = std::min(first + 2 * n, p.num_listed) * p.edge_dim;
      for (int64_t k = (first + n) * p.edge_dim; k < ahead; k += 64 / 4) __builtin_prefetch(p.attr + k);
      return;
    }
    const int64_t stop = std::min(first + n + AHEAD, edges.num_edges);
    for (int64_t i = first + AHEAD; i < stop; i++) __builtin_prefetch(features_of(edges.position[i]), 0, 2);
    for (int i = 0; i < slice.num_edges; i++)
      std::memcpy(features + i * p.edge_dim, features_of(slice.position[i]), 4 * p.edge_dim);
    slice.features = features;
  }

  void remove_edges(Slice& slice) const {
    int kept = 0;
    for (int s = 0; s < slice.num_segments; s++) {
      Segment& segment = slice.segments[s];
      const int begin = kept;
      for (int i = segment.begin; i < segment.end; i++) {
        if (edge_dropout.removes(slice.position[i])) continue;
        slice.others[kept] = slice.other[i];
        slice.positions[kept++] = slice.position[i];
      }
      segment.begin = begin, segment.end = kept;
    }
    slice.other = slice.others, slice.position = slice.positions;
    slice.num_edges = kept;
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
      for (int v = 0; v < VECTORS; v++) store(z + i * encoded_size + v * LANES, a[i][v]);
  }

  template <int VECTORS>
  INLINE void encode_vectors(const float* features, int n, int64_t vector, float* z) const {
    const float* w = weight.data + vector * p.edge_dim * LANES;
    z += vector * LANES;
    int i = 0;
    for (; i + 4 <= n; i += 4) encode_some<4, VECTORS>(features + i * p.edge_dim, w, z + i * encoded_size);
    for (; i < n; i++) encode_some<1, VECTORS>(features + i * p.edge_dim, w, z + i * encoded_size);
  }

  // Encodes the features of a slice into z [edge][encoded_size]. Inlined, it would have too few registers.
  __attribute__((noinline)) void encode(const Slice& slice, float* z) const {
    const int64_t count = encoded_size / LANES;
    int64_t vector = 0;
    for (; vector + 2 <= count; vector += 2) encode_vectors<2>(slice.features, slice.num_edges, vector, z);
    if (vector < count) encode_vectors<1>(slice.features, slice.num_edges, vector, z);
  }

  // Takes the encoder to a node: its transpose times the node's vectors, [block][feature][lane]. The groups of lanes are
  // parts of a sum.
  void project(const float* node, float* to) const {
    for (int64_t b = 0; b < layout.blocks; b++)
      for (int64_t d = 0; d < p.edge_dim; d++) {
        vf sum = {};
        for (int64_t v = b * layout.vectors; v < (b + 1) * layout.vectors; v++)
          sum = fma(load(node + v * LANES), load(weight.data + (v * p.edge_dim + d) * LANES), sum);
        store(to + (b * p.edge_dim + d) * LANES, sum);
      }
  }

  // What a pass reads of a row, packed.
  struct Row {
    int64_t node = 0;
    Buffer<float> target, projected;
    explicit Row(const Attention& a) : target(a.score_size + LANES), projected(a.projected_size) {}
  };
  void open(int64_t node, Row& row) const {
    row.node = node;
    pack_score(p.target + node * score_dim(), row.target.data);
    if (PROJECTS) project(row.target.data, row.projected.data);
  }

  // The edges of a segment.
  struct Edges {
    int n;
    const int64_t *other, *position, *ahead;
    const float* features;
    float* z;  // encoded features
  };
  Edges edges_of(const Slice& slice, const Segment& segment, float* z) const {
    const int at = segment.begin;
    return {
        segment.end - at,     slice.other + at, slice.position + at, slice.ahead + at, slice.features + at * p.edge_dim,
        z + at * encoded_size};
  }

  // Adds products of rows of a table, VECTORS vectors from `at` on, with those of one node, or (Features) of features
  // with those of its encoder.
  template <int VECTORS, bool Features>
  INLINE void add_products(const Edges& e, const float* table, int64_t at, const float* node, bool begins,
                           vf* sums) const {
    const int64_t row_size = size, dim = p.edge_dim;
    vf own[VECTORS];
    for (int v = 0; v < VECTORS; v++) own[v] = load(node + v * LANES);
    for (int i = 0; i < e.n; i++) {
      const float* from = Features ? e.features + i * dim + at : table + e.other[i] * row_size + at;
      if (!Features && Score::READS_SOURCE)  // whose scores were read from the same rows
        prefetch<VECTORS, false>(table + e.ahead[i] * row_size + at);
      vf sum[2] = {begins ? vf{} : sums[i], {}};
      for (int v = 0; v < VECTORS; v++)
        sum[v % 2] = fma(Features ? splat(from[v]) : load(from + v * LANES), own[v], sum[v % 2]);
      sums[i] = VECTORS > 1 ? sum[0] + sum[1] : sum[0];
    }
  }
  template <bool Features>
  INLINE void add_all_products(const Edges& e, const float* table, int64_t count, const float* node, bool begins,
                               vf* sums) const {
    constexpr int STEP = Features ? 1 : LANES;
    int64_t k = 0;
    for (; k + 8 <= count; k += 8)
      add_products<8, Features>(e, table, k * STEP, node + k * LANES, begins && k == 0, sums);
    for (; k + 4 <= count; k += 4)
      add_products<4, Features>(e, table, k * STEP, node + k * LANES, begins && k == 0, sums);
    for (; k < count; k++) add_products<1, Features>(e, table, k * STEP, node + k * LANES, begins && k == 0, sums);
  }

  // Products of rows of a table, and of features, with a block of heads of a node and its encoder: dense.
  INLINE void multiply(const Edges& e, const float* table, int64_t block, const float* node, const float* encoder,
                       float* out) const {
    vf sums[SLICE];
    if (layout.vectors == 0) std::fill_n(sums, e.n, vf{});
    const int64_t base = block * layout.vectors * LANES;
    add_all_products<false>(e, table + base, layout.vectors, node + base, true, sums);
    if (PROJECTS) add_all_products<true>(e, nullptr, p.edge_dim, encoder + block * p.edge_dim * LANES, false, sums);
    for (int i = 0; i < e.n; i++) store(out + i * width, groups.sum(sums[i]));
  }

  // Prefetches vectors that will be read, or added to (Write).
  template <int VECTORS, bool Write>
  static INLINE void prefetch(const float* from) {
    for (int k = 0; k < VECTORS * LANES; k += 64 / 4) __builtin_prefetch(from + k, Write);
  }

  // Floats of dense numbers of n edges, up to a whole vector.
  INLINE int dense(int n) const { return (n * width + LANES - 1) / LANES * LANES; }

  INLINE vf leaky(vf x) const { return x > 0.0f ? x : x * slope; }

  // Scores of a segment times log2(e), dense, then -infinity up to a whole vector.
  INLINE void score(const Edges& e, const Row& row, int64_t block, float* out) const {
    Score::score(*this, e, row, block, out);
    for (int k = 0; k < dense(e.n); k += LANES) {
      const vf x = load(out + k);
      store(out + k, (BY_HEAD ? leaky(x) : x) * scale);
    }
    store(out + e.n * width, splat(-__builtin_inff()));
  }

  // Factors of dropout of a segment, dense, then 0 up to a whole vector.
  INLINE void draw(const Edges& e, int64_t block, float* out) const {
    for (int i = 0; i < e.n; i++) store(out + i * width, dropout.factor(e.position[i], head[block]));
    store(out + e.n * width, vf{});
  }
};
