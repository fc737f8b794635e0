// The gradients of a segment of edges, and what a part of the edges adds up.
#pragma once
#include "attention.h"

// Calls ADD for VECTORS vectors of a block of heads at a time, from vector k on.
#define ADD_BLOCK(VECTORS, ADD)                            \
  for (; k + VECTORS <= pass.layout.vectors; k += VECTORS) \
  ADD<VECTORS>(pass, part, e, row, (b * pass.layout.vectors + k) * LANES, w, ds)

// Sums in float over a tile, then in double.
struct LongSum {
  int64_t size;
  Buffer<float> tile;
  Buffer<double> total;
  explicit LongSum(int64_t size_) : size(size_), tile(size_, 0.0f), total(size_, 0.0) {}
  void flush() {
    for (int64_t i = 0; i < size; i++) total[i] += tile[i], tile[i] = 0;
  }
  // Takes what another has summed.
  void take(LongSum& other) {
    for (int64_t i = 0; i < size; i++) total[i] += other.total[i], other.total[i] = 0;
  }
};

template <class Score, bool EDGES>
struct AttentionGradients : Attention<Score, EDGES> {
  using Base = Attention<Score, EDGES>;
  using Base::att, Base::dropout, Base::edges, Base::encoded_size, Base::groups, Base::layout, Base::message, Base::p,
      Base::projected_size, Base::scale, Base::score_size, Base::size, Base::slope, Base::source, Base::weight,
      Base::width, Base::BY_HEAD, Base::ENCODES, Base::PROJECTS;
  using Edges = typename Base::Edges;

  // Whether the rows are sources, see `by_source` in attention_backward.h.
  static constexpr bool BY_SOURCE = Score::by_source(EDGES);

  // What a part of the edges adds up: gradients of the nodes at the far ends, and of the parameters.
  struct Part {
    const int64_t message_size, source_size;
    Buffer<float> message, source;
    LongSum att, weight;
    explicit Part(const AttentionGradients& pass)
        : message_size(BY_SOURCE ? 0 : pass.p.num_src * pass.size),
          source_size(Score::READS_SOURCE ? pass.p.num_src * pass.score_size : 0),
          message(message_size, 0.0f),
          source(source_size, 0.0f),
          att(Score::READS_ATT ? pass.size : 0),
          weight(EDGES ? pass.encoded_size * pass.p.edge_dim : 0) {}
    // Takes what another part has summed.
    void take(Part& other) {
      for (int64_t i = 0; i < message_size; i++) message[i] += other.message[i], other.message[i] = 0;
      for (int64_t i = 0; i < source_size; i++) source[i] += other.source[i], other.source[i] = 0;
      att.take(other.att), weight.take(other.weight);
    }
  };

  // What the pass reads of a row, and adds up: the gradients of its messages, if it is a source, and of its scores. The groups
  // of GAT's scores are parts of a sum.
  struct Row : Base::Row {
    Buffer<float> gradient, stat, out, projected_gradient, sum;
    Buffer<float> features;  // sums of features, see `add_projected`
    explicit Row(const AttentionGradients& pass)
        : Base::Row(pass),
          gradient(pass.size),
          stat(pass.stat_size + LANES),
          out(pass.size),
          projected_gradient(pass.projected_size),
          sum(pass.row_size),
          features(2 * pass.projected_size) {}
  };

  const int64_t stat_size, row_size;
  // Of destinations at the far ends, [node][2][head]: log-sum-exp, then the product of output and gradient.
  Buffer<float> stat;

  explicit AttentionGradients(const AttentionProblem& p_)
      : Base(p_),
        stat_size(2 * layout.dense_heads()),
        row_size(encoded_size + (BY_SOURCE ? size : 0)),
        stat(BY_SOURCE ? p_.num_src * stat_size + LANES : 0) {
    if (!BY_SOURCE) return;
#pragma omp parallel num_threads(edges.team(p.num_threads))
    {
      Buffer<float> out(size);
#pragma omp for schedule(static)
      for (int64_t node = 0; node < p.num_src; node++)
        write_stats(node, message.data + node * size, out.data, stat.data + node * stat_size);
    }
  }

  // `gradient` is packed; `out` has room for a packed row.
  void write_stats(int64_t node, const float* gradient, float* out, float* to) const {
    layout.pack(p.out + node * p.heads * p.channels, out);
    layout.pack_heads(p.lse + node * p.heads, to);
    for (int64_t b = 0; b < layout.blocks; b++) {
      vf product = {};
      for (int64_t k = b * layout.vectors; k < (b + 1) * layout.vectors; k++)
        product = fma(load(gradient + k * LANES), load(out + k * LANES), product);
      product = groups.sum(product);
      std::memcpy(to + stat_size / 2 + b * width, &product, 4 * width);
    }
  }

  void open(int64_t node, Row& row) const {
    Base::open(node, row);
    layout.pack(p.gradient + node * p.heads * p.channels, row.gradient.data);
    std::fill_n(row.sum.data, row_size, 0.0f);
    if (!BY_SOURCE) write_stats(node, row.gradient.data, row.out.data, row.stat.data);
    if (!PROJECTS) return;
    this->project(row.gradient.data, row.projected_gradient.data);
    std::fill_n(row.features.data, 2 * projected_size, 0.0f);
  }

  // The passes below add the gradients of VECTORS vectors from `at` on, of edges with the weights w and the gradients ds of
  // scores. Stores might change members, as far as the compiler knows: what loops need of these is copied.

  // Of the messages of sources.
  template <int VECTORS>
  static INLINE void add_messages(const AttentionGradients& pass, Part&, const Edges& e, Row& row, int64_t at,
                                  const float* w, const float*) {
    vf sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) sum[v] = load(row.sum.data + at + v * LANES);
    for (int i = 0; i < e.n; i++) {
      const float* from = pass.message.data + e.other[i] * pass.size + at;
      const vf weight = pass.layout.spread(w + i * pass.width);
      for (int v = 0; v < VECTORS; v++) sum[v] = fma(weight, load(from + v * LANES), sum[v]);
    }
    for (int v = 0; v < VECTORS; v++) store(row.sum.data + at + v * LANES, sum[v]);
  }

  // Reads the numbers of destinations at the far ends, dense, then those that make the weight and its gradient 0.
  INLINE void read_stats(Part& part, const Edges& e, int64_t block, float* lse, float* product) const {
    const float* from = stat.data + block * width;
    for (int i = 0; i < e.n; i++) {
      __builtin_prefetch(from + e.ahead[i] * stat_size);
      if (BY_HEAD) {  // those of dot products are fetched ahead where they are read
        __builtin_prefetch(source.data + e.ahead[i] * score_size + block * width);
        __builtin_prefetch(part.source.data + e.ahead[i] * score_size + block * width, 1);
      }
      const float* stats = from + e.other[i] * stat_size;
      store(lse + i * width, load(stats));
      store(product + i * width, load(stats + stat_size / 2));
    }
    store(lse + e.n * width, splat(__builtin_inff()));
    store(product + e.n * width, vf{});
  }

  // Adds the gradients of edges of a row, at most SLICE.
  void add(Part& part, const Edges& e, Row& row) const {
    constexpr int ROOM = (SLICE + 1) * LANES;
    alignas(64) float w[ROOM], ds[ROOM], factor[ROOM], x[ROOM], lse[ROOM], product[ROOM];
    const int count = this->dense(e.n);
    for (int64_t b = 0; b < layout.blocks; b++) {
      vf row_lse = {}, row_product = {};
      if (BY_SOURCE) read_stats(part, e, b, lse, product);
      if constexpr (BY_HEAD) {
        Score::score(*this, e, row, b, x);
      } else {
        this->score(e, row, b, w);
      }
      if (!BY_SOURCE) {
        row_lse = layout.spread(row.stat.data + b * width);
        row_product = layout.spread(row.stat.data + stat_size / 2 + b * width);
      }
      this->multiply(e, message.data, b, row.gradient.data, row.projected_gradient.data, ds);
      store(ds + e.n * width, vf{});
      if (dropout.active()) this->draw(e, b, factor);
      for (int k = 0; k < count; k += LANES) {
        const vf score = BY_HEAD ? this->leaky(load(x + k)) * scale : load(w + k);
        const vf share = exp2(score - (BY_SOURCE ? load(lse + k) : row_lse));
        const vf kept = dropout.active() ? load(factor + k) : splat(1.0f);
        vf grad_score = share * (kept * load(ds + k) - (BY_SOURCE ? load(product + k) : row_product));
        if (BY_HEAD) grad_score = load(x + k) > 0.0f ? grad_score : grad_score * slope;
        if (Score::LINEAR) grad_score *= scale * (1 / LOG2_E);
        store(w + k, share * kept);
        store(ds + k, grad_score);
      }
      if (PROJECTS) add_projected(e, row, b, w, ds);
      Score::add(*this, part, e, row, b, w, ds);
    }
  }

  template <int FEATURES>
  INLINE void add_projected_some(const Edges& e, int64_t first, const float* w, const float* ds, float* sums) const {
    vf sum[2 * FEATURES];
    sums += 2 * first * LANES;
    for (int k = 0; k < 2 * FEATURES; k++) sum[k] = load(sums + k * LANES);
    const float* features = e.features + first;
    for (int i = 0; i < e.n; i++, features += p.edge_dim) {
      const vf share = layout.spread(ds + i * width), weight = layout.spread(w + i * width);
      for (int k = 0; k < FEATURES; k++) {
        const vf feature = splat(features[k]);
        sum[2 * k] = fma(share, feature, sum[2 * k]);
        sum[2 * k + 1] = fma(weight, feature, sum[2 * k + 1]);
      }
    }
    for (int k = 0; k < 2 * FEATURES; k++) store(sums + k * LANES, sum[k]);
  }

  // Adds up features, weighted by the gradients of the scores, then by the weights [feature][2][lane], and adds the
  // gradients of the features.
  INLINE void add_projected(const Edges& e, Row& row, int64_t block, const float* w, const float* ds) const {
    const int64_t dim = p.edge_dim, first = block * dim * LANES;
    float* sums = row.features.data + 2 * first;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) add_projected_some<4>(e, d, w, ds, sums);
    for (; d < dim; d++) add_projected_some<1>(e, d, w, ds, sums);
    if (!p.grad_attr) return;
    for (int i = 0; i < e.n; i++) {
      float* to = gradient_of_features(e.position[i]);
      const vf by_score = layout.spread(ds + i * width), by_weight = layout.spread(w + i * width);
      for (int64_t d = 0; d < dim; d++)
        to[d] += quick_sum(fma(by_score, load(row.projected.data + first + d * LANES),
                               by_weight * load(row.projected_gradient.data + first + d * LANES)));
    }
  }

  // Adds the gradients of a row's scores and of the encoder, from the sums of its features.
  void finish_projected(Part& part, Row& row) const {
    const int64_t dim = p.edge_dim;
    for (int64_t v = 0; v < layout.blocks * layout.vectors; v++) {
      const float *w = weight.data + v * dim * LANES, *sums = row.features.data + v / layout.vectors * dim * 2 * LANES;
      const vf own = load(row.target.data + v * LANES), g = load(row.gradient.data + v * LANES);
      float *to = part.weight.tile.data + v * dim * LANES, *to_row = row.sum.data + v * LANES;
      vf total = load(to_row);
      for (int64_t d = 0; d < dim; d++) {
        const vf by_score = load(sums + 2 * d * LANES), by_weight = load(sums + (2 * d + 1) * LANES);
        total = fma(by_score, load(w + d * LANES), total);
        store(to + d * LANES, fma(by_score, own, fma(by_weight, g, load(to + d * LANES))));
      }
      store(to_row, total);
    }
  }

  float* gradient_of_features(int64_t position) const {
    return position < p.num_listed ? p.grad_attr + position * p.edge_dim
                                   : p.grad_loop_attr + (position - p.num_listed) * p.edge_dim;
  }

  template <int VECTORS, int COLUMNS>
  INLINE void add_weight_some(Part& part, const float* features, int n, int64_t vector, int64_t d,
                              const float* z) const {
    vf a[VECTORS][COLUMNS];
    const int64_t dim = p.edge_dim, encoded_size = this->encoded_size;
    float* to = part.weight.tile.data + (vector * dim + d) * LANES;
    z += vector * LANES, features += d;
    for (int v = 0; v < VECTORS; v++)
      for (int c = 0; c < COLUMNS; c++) a[v][c] = load(to + (v * dim + c) * LANES);
    for (int i = 0; i < n; i++, z += encoded_size, features += dim) {
      vf dz[VECTORS];
      for (int v = 0; v < VECTORS; v++) dz[v] = load(z + v * LANES);
      for (int c = 0; c < COLUMNS; c++) {
        const vf e = splat(features[c]);
        for (int v = 0; v < VECTORS; v++) a[v][c] = fma(dz[v], e, a[v][c]);
      }
    }
    for (int v = 0; v < VECTORS; v++)
      for (int c = 0; c < COLUMNS; c++) store(to + (v * dim + c) * LANES, a[v][c]);
  }

  template <int VECTORS>
  INLINE void add_weight_vectors(Part& part, const float* features, int n, int64_t vector, const float* z) const {
    int64_t d = 0;
    for (; d + 4 <= p.edge_dim; d += 4) add_weight_some<VECTORS, 4>(part, features, n, vector, d, z);
    for (; d < p.edge_dim; d++) add_weight_some<VECTORS, 1>(part, features, n, vector, d, z);
  }

  // Adds the gradients of the encoder and of the features of a slice, from those of the encoded features, z.
  void add_features(Part& part, const Slice& slice, const float* z) const {
    const int64_t count = encoded_size / LANES;
    const int n = slice.num_edges;
    int64_t vector = 0;
    for (; vector + 2 <= count; vector += 2) add_weight_vectors<2>(part, slice.features, n, vector, z);
    if (vector < count) add_weight_vectors<1>(part, slice.features, n, vector, z);
    if (!p.grad_attr) return;
    const float repeated = BY_HEAD ? float(layout.groups) : 1.0f;  // GAT has each head in so many lanes
    for (int i = 0; i < n; i++) {
      float* to = gradient_of_features(slice.position[i]);
      for (int64_t d = 0; d < p.edge_dim; d++) {
        vf a = {};
        for (int64_t v = 0; v < count; v++)
          a = fma(load(z + i * encoded_size + v * LANES), load(weight.data + (v * p.edge_dim + d) * LANES), a);
        to[d] = quick_sum(a) / repeated;
      }
    }
  }
};
