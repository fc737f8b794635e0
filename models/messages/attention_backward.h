// Backward: each edge is visited once. The gradients of the nodes at its far end are added to one copy for each part of
// the edges; the number of parts never depends on the threads, and the copies are added in order.
// Rows are destinations. For GAT they are sources, see `by_source`: then the copies hold scores alone, not messages.
#pragma once
#include "attention.h"

// Sums in float over a tile, then in double.
struct LongSum {
  int64_t size;
  Buffer<float> tile;
  Buffer<double> total;
  explicit LongSum(int64_t size_) : size(size_), tile(size_, 0.0f), total(size_, 0.0) {}
  void flush() {
    for (int64_t i = 0; i < size; i++) total[i] += tile[i], tile[i] = 0;
  }
};

// The problem whose rows are the sources, for edges that are sorted by source: the gradients of the outputs are read as
// messages are, and the messages stand in the place of these gradients.
static AttentionProblem by_source(AttentionProblem p) {
  std::swap(p.num_dst, p.num_src);
  std::swap(p.message, p.gradient);
  std::swap(p.source, p.target);
  std::swap(p.grad_source, p.grad_target);
  return p;
}

template <int SCORE, bool EDGES>
struct AttentionBackward : Attention<SCORE, EDGES> {
  using Base = Attention<SCORE, EDGES>;
  using Base::att, Base::dropout, Base::edges, Base::head, Base::layout, Base::message, Base::p, Base::scale,
      Base::score_size, Base::score_vectors, Base::size, Base::slope, Base::source, Base::target, Base::weight;

  static constexpr bool IS_GAT = SCORE == GAT;
  static constexpr int64_t MAX_PARTS = IS_GAT ? 16 : 4;

  // What a part of the edges adds up: gradients of the nodes at the far ends, of the row that began before it, and of
  // the parameters.
  struct Part {
    Buffer<float> message, source, row;
    LongSum att, weight;
    Part(int64_t messages, int64_t sources, int64_t row_size, int64_t att_size, int64_t weight_size)
        : message(messages, 0.0f), source(sources, 0.0f), row(row_size, 0.0f), att(att_size), weight(weight_size) {}
  };

  const int64_t stat_size, num_parts, row_size;
  // stat, of destinations: log-sum-exp, then the product of output and gradient. grad_row: of a row's messages (GAT
  // alone), then of its scores.
  Buffer<float> gradient, stat, grad_rows;
  std::vector<Part*> parts;

  explicit AttentionBackward(const AttentionProblem& p_)
      : Base(p_),
        stat_size(layout.blocks * LANES),
        // The copies together stay smaller than a tensor of edges x channels.
        num_parts(std::max<int64_t>(
            1, std::min({MAX_PARTS, std::max<int64_t>(2, edges.num_edges / (4 * std::max<int64_t>(p_.num_src, 1))),
                         edges.num_chunks()}))),
        row_size(score_size + (IS_GAT ? size : 0)),
        gradient(p_.num_dst * size),
        stat((IS_GAT ? p_.num_src : p_.num_dst) * 2 * stat_size),
        grad_rows(p_.num_dst * row_size),
        parts(num_parts) {
    const int64_t dim = p.heads * p.channels, num_stats = IS_GAT ? p.num_src : p.num_dst;
#pragma omp parallel num_threads(edges.team(p.num_threads))
    {
#pragma omp for schedule(static) nowait
      for (int64_t row = 0; row < p.num_dst; row++) {
        layout.pack(p.gradient + row * dim, gradient.data + row * size);
        std::fill_n(grad_rows.data + row * row_size, row_size, 0.0f);
      }
#pragma omp for schedule(static)
      for (int64_t node = 0; node < num_stats; node++)
        pack_stats(node, (IS_GAT ? p.message : p.gradient) + node * dim, p.out + node * dim);
    }
  }
  ~AttentionBackward() {
    for (Part* part : parts) delete part;
  }

  void pack_stats(int64_t node, const float* g, const float* out) const {
    float* to = stat.data + node * 2 * stat_size;
    layout.spread(p.lse + node * p.heads, to);
    for (int64_t b = 0; b < layout.blocks; b++) store(to + stat_size + b * LANES, vf{});
    for (int64_t h = 0; h < p.heads; h++) {
      float product = 0;
      for (int64_t c = 0; c < p.channels; c++) product += g[h * p.channels + c] * out[h * p.channels + c];
      for (int i = int(h % layout.width); i < LANES; i += layout.width)
        to[stat_size + h / layout.width * LANES + i] = product;
    }
  }

  // Gradients of VECTORS vectors of n edges; z becomes the gradient of the encoded features.
  template <int VECTORS>
  INLINE void add_vectors(Part& part, const int64_t* other, int n, int64_t row, int64_t at, float* z, const vf* w,
                          const vf* ds, float* grad_row) const {
    vf own[VECTORS], g[VECTORS], a[VECTORS], row_sum[VECTORS], att_sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) row_sum[v] = att_sum[v] = splat(0.0f);
    for (int v = 0; v < VECTORS; v++) {
      own[v] = IS_GAT ? vf{} : load(target.data + row * score_size + at + v * LANES);
      g[v] = load(gradient.data + row * size + at + v * LANES);
      a[v] = SCORE == GATV2 ? load(att.data + at + v * LANES) : vf{};
    }
    // Stores might change members, as far as the compiler knows.
    const int64_t node_size = size, encoded_size = score_size;
    const float *values = message.data + at, *keys = source.data + at;
    float *grad_values = part.message.data + at, *grad_keys = part.source.data + at;
    const vf negative_slope = slope;
    z += at;
    for (int i = 0; i < n; i++, z += encoded_size) {
      const int64_t node = other[i] * node_size;
      const vf weight = w[i], grad_score = ds[i], other_score = grad_score * negative_slope;
      for (int v = 0; v < VECTORS; v++) {
        const int64_t k = node + v * LANES;
        if constexpr (IS_GAT) {
          row_sum[v] = fma(weight, load(values + k), row_sum[v]);
          continue;
        }
        vf value = weight * g[v];
        if constexpr (SCORE == GATV2) {
          vf x = load(values + k) + own[v];
          if (EDGES) x += load(z + v * LANES);
          const vf share = x > 0.0f ? grad_score : other_score;
          row_sum[v] += share;
          att_sum[v] = fma(share, x, att_sum[v]);
          if (EDGES) store(z + v * LANES, share * a[v]);
          value = fma(share, a[v], value);
        }
        if constexpr (SCORE == DOT) {
          vf key = load(keys + k);
          if (EDGES) key += load(z + v * LANES);
          row_sum[v] = fma(grad_score, key, row_sum[v]);
          key = grad_score * own[v];
          store(grad_keys + k, load(grad_keys + k) + key);
          if (EDGES) store(z + v * LANES, key + value);
        }
        store(grad_values + k, load(grad_values + k) + value);
      }
    }
    for (int v = 0; v < VECTORS; v++) {
      float *to = grad_row + at + v * LANES, *to_att = part.att.tile.data + at + v * LANES;
      store(to, load(to) + (SCORE == GATV2 ? row_sum[v] * a[v] : row_sum[v]));
      if (SCORE == GATV2) store(to_att, load(to_att) + att_sum[v]);
    }
  }

  // GAT's scores need one vector for a block of heads.
  INLINE void add_scores_of_gat(Part& part, const int64_t* other, int n, int64_t row, int64_t block, float* z,
                                const vf* ds, float* grad_row) const {
    const vf own = load(target.data + row * score_size + block * LANES);
    vf sum = {};
    const int64_t node_size = score_size;
    const float* scored = source.data + block * LANES;
    float* grad_scored = part.source.data + block * LANES;
    const vf negative_slope = slope;
    z += block * LANES;
    for (int i = 0; i < n; i++, z += node_size) {
      vf x = load(scored + other[i] * node_size) + own;
      if (EDGES) x += load(z);
      const vf share = x > 0.0f ? ds[i] : ds[i] * negative_slope;
      float* to = grad_scored + other[i] * node_size;
      store(to, load(to) + share);
      if (EDGES) store(z, share);
      sum += share;
    }
    float* to = grad_row + size + block * LANES;
    store(to, load(to) + sum);
  }

  // Adds the gradients of n edges of a row, at most SLICE.
  void add(Part& part, const Tile& tile, int first, int n, int64_t row, float* z, float* grad_row) const {
    const int64_t* other = tile.other + first;
    vf w[SLICE], ds[SLICE];
    for (int64_t b = 0; b < layout.blocks; b++) {
      const int64_t base = b * layout.vectors * LANES;
      this->score(other, n, row, b, z, w);
      this->template multiply_all<true>(other, n, b, gradient.data + row * size + base, z, ds);
      for (int i = 0; i < n; i++) {
        const float* stats = stat.data + (IS_GAT ? other[i] : row) * 2 * stat_size + b * LANES;
        const vf product = load(stats + stat_size), share = exp2(w[i] - load(stats));
        const vf factor = dropout.active() ? dropout.factor(tile.position[first + i], head[b]) : splat(1.0f);
        w[i] = share * factor;
        ds[i] = share * (factor * ds[i] - product);
        if (SCORE == DOT) ds[i] *= scale * (1 / LOG2_E);
      }
      if (IS_GAT) add_scores_of_gat(part, other, n, row, b, z, ds, grad_row);
      int64_t k = 0;
      if (IS_GAT)  // which needs few registers
        for (; k + 8 <= layout.vectors; k += 8)
          add_vectors<8>(part, other, n, row, base + k * LANES, z, w, ds, grad_row);
      for (; k + 2 <= layout.vectors; k += 2)
        add_vectors<2>(part, other, n, row, base + k * LANES, z, w, ds, grad_row);
      if (k < layout.vectors) add_vectors<1>(part, other, n, row, base + k * LANES, z, w, ds, grad_row);
    }
  }

  template <int VECTORS, int COLUMNS>
  INLINE void add_weight_some(Part& part, const float* features, int n, int64_t vector, int64_t d, const float* z) const {
    vf a[VECTORS][COLUMNS];
    const int64_t dim = p.edge_dim, encoded_size = score_size;
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

  // Adds the gradients of the encoder and of the features of n edges, from those of the encoded features, z.
  void add_features(Part& part, const Tile& tile, int first, int n, const float* features, const float* z) const {
    const int64_t count = score_size / LANES;
    int64_t vector = 0;
    for (; vector + 2 <= count; vector += 2) add_weight_vectors<2>(part, features, n, vector, z);
    if (vector < count) add_weight_vectors<1>(part, features, n, vector, z);
    if (!p.grad_attr) return;
    const float repeated = SCORE == GAT ? float(layout.groups) : 1.0f;  // GAT has each head in so many lanes
    for (int i = 0; i < n; i++) {
      const int64_t position = tile.position[first + i];
      float* to = position < p.num_listed ? p.grad_attr + position * p.edge_dim
                                          : p.grad_loop_attr + (position - p.num_listed) * p.edge_dim;
      for (int64_t d = 0; d < p.edge_dim; d++) {
        vf a = {};
        for (int64_t v = 0; v < count; v++)
          a = fma(load(z + i * score_size + v * LANES), load(weight.data + (v * p.edge_dim + d) * LANES), a);
        to[d] = quick_sum(a) / repeated;
      }
    }
  }

  bool run_chunk(Part& part, int64_t part_begin, int64_t chunk, Tile& tile, float* features, float* z) {
    bool broken = false;
    TileWalk walk(edges, chunk, p.num_positions, 0, 1, EDGES);
    for (int64_t start = walk.at; this->next(walk, tile, features, broken); start = walk.at) {
      for (int s = 0, slice = 0; slice < tile.num_edges; slice += SLICE) {
        const int end = std::min(slice + SLICE, tile.num_edges);
        this->prefetch(start + slice + SLICE);
        if (IS_GAT) this->template prefetch_rows<false>(start + slice + SLICE, stat.data, 2 * stat_size);
        if (!IS_GAT) this->template prefetch_rows<true>(start + slice + SLICE, part.message.data, size);
        if (SCORE != GATV2) this->template prefetch_rows<true>(start + slice + SLICE, part.source.data, score_size);
        if (EDGES) this->encode(features + slice * p.edge_dim, end - slice, z);
        for (int at = slice; at < end;) {
          while (tile.segments[s].end <= at) s++;
          const Segment& segment = tile.segments[s];
          const int n = std::min(segment.end, end) - at;
          float* grad_row =
              edges.ptr[segment.row] < part_begin ? part.row.data : grad_rows.data + segment.row * row_size;
          add(part, tile, at, n, segment.row, z + (at - slice) * score_size, grad_row);
          at += n;
        }
        if (EDGES) add_features(part, tile, slice, end - slice, features + slice * p.edge_dim, z);
      }
      if (SCORE == GATV2) part.att.flush();
      if (EDGES) part.weight.flush();
    }
    return !broken;
  }

  int run() {
    int broken = 0;
    const int64_t num_chunks = edges.num_chunks();
    bool full = false;
#pragma omp parallel num_threads(std::min<int>(edges.team(p.num_threads), int(num_parts))) reduction(| : broken)
    {
      Tile tile;
      Buffer<float> features(TILE * p.edge_dim), z(SLICE * score_size);
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < num_parts; i++) {
        try {
          parts[i] = new Part(IS_GAT ? 0 : p.num_src * size, SCORE == GATV2 ? 0 : p.num_src * score_size, row_size,
                              SCORE == GATV2 ? size : 0, EDGES ? score_size * p.edge_dim : 0);
        } catch (const std::bad_alloc&) {
#pragma omp atomic write
          full = true;
          continue;
        }
        const int64_t first = i * num_chunks / num_parts, end = (i + 1) * num_chunks / num_parts;
        for (int64_t chunk = first; chunk < end; chunk++)
          broken |= !run_chunk(*parts[i], first * edges.chunk_edges(), chunk, tile, features.data, z.data);
      }
    }
    if (full) return OUT_OF_MEMORY;
    if (broken) return BROKEN_INDEX;
    add_parts();
    return OK;
  }

  void add_parts() {
    for (int64_t i = 1; i < num_parts; i++) {
      const int64_t begin = i * edges.num_chunks() / num_parts * edges.chunk_edges();
      float* to = grad_rows.data + edges.row_of(begin) * row_size;
      for (int64_t k = 0; k < row_size; k++) to[k] += parts[i]->row[k];
    }
    const int64_t dim = p.heads * p.channels, score_dim = IS_GAT ? p.heads : dim;
#pragma omp parallel num_threads(edges.team(p.num_threads))
    {
#pragma omp for schedule(static) nowait
      for (int64_t node = 0; node < p.num_src; node++) {
        if (!IS_GAT) layout.unpack(add_copies(&Part::message, node * size, size), p.grad_message + node * dim);
        if (SCORE != GATV2)
          this->unpack_score(add_copies(&Part::source, node * score_size, score_size),
                             p.grad_source + node * score_dim);
      }
#pragma omp for schedule(static)
      for (int64_t row = 0; row < p.num_dst; row++) {
        const float* from = grad_rows.data + row * row_size;
        if (IS_GAT) layout.unpack(from, p.grad_message + row * dim);
        this->unpack_score(from + row_size - score_size, p.grad_target + row * score_dim);
      }
    }
    if (SCORE == GATV2) layout.unpack(add_long(&Part::att).data(), p.grad_att);
    if (EDGES) write_weight(add_long(&Part::weight));
  }

  // Adds `count` numbers of all parts to those of the first, in order.
  const float* add_copies(Buffer<float> Part::*copy, int64_t at, int64_t count) const {
    float* to = (parts[0]->*copy).data + at;
    for (int64_t i = 1; i < num_parts; i++) {
      const float* from = (parts[i]->*copy).data + at;
      for (int64_t k = 0; k < count; k += LANES) store(to + k, load(to + k) + load(from + k));
    }
    return to;
  }

  std::vector<float> add_long(LongSum Part::*sum) const {
    std::vector<float> out((parts[0]->*sum).size);
    for (size_t k = 0; k < out.size(); k++) {
      double total = 0;
      for (const Part* part : parts) total += (part->*sum).total.data[k];
      out[k] = float(total);
    }
    return out;
  }

  void write_weight(const std::vector<float>& sums) const {
    const int64_t rows = SCORE == GAT ? p.heads : p.heads * p.channels;
    std::vector<float> packed(score_size), column(rows);
    for (int64_t d = 0; d < p.edge_dim; d++) {
      for (int64_t i = 0; i < score_size; i++) packed[i] = sums[(i / LANES * p.edge_dim + d) * LANES + i % LANES];
      this->unpack_score(packed.data(), column.data());
      for (int64_t i = 0; i < rows; i++) p.grad_weight[i * p.edge_dim + d] = column[i];
    }
  }
};
