// Forward: outputs and the logarithms of the sums of exponentials, by destination.
#pragma once
#include "attention.h"

template <int SCORE, bool EDGES>
struct AttentionForward : Attention<SCORE, EDGES> {
  using Base = Attention<SCORE, EDGES>;
  using Base::dropout, Base::edges, Base::head, Base::layout, Base::message, Base::p, Base::score_size, Base::size;

  // The state of a row: the number of edges, then for each block of heads the largest score, the sum of exponentials
  // relative to it, and the weighted sum of messages.
  const int64_t block_state, state_size;
  Buffer<vf> heads, tails;  // of each chunk, the state of the row that it begins in and of the row that it ends in

  explicit AttentionForward(const AttentionProblem& p_)
      : Base(p_),
        block_state(2 + layout.vectors),
        state_size(1 + layout.blocks * block_state),
        heads(edges.num_chunks() * state_size),
        tails(edges.num_chunks() * state_size) {}

  void begin(vf* state) const {
    std::fill_n(state, state_size, vf{});
    for (int64_t b = 0; b < layout.blocks; b++) state[1 + b * block_state] = splat(LOWEST);
  }

  static INLINE vf rescale(vf from, vf to) { return from == to ? splat(1.0f) : exp2(from - to); }

  void merge(vf* state, const vf* other) const {
    state[0] += other[0];
    for (int64_t b = 0; b < layout.blocks; b++) {
      vf *mine = state + 1 + b * block_state, top = max(mine[0], other[1 + b * block_state]);
      const vf* theirs = other + 1 + b * block_state;
      const vf left = rescale(mine[0], top), right = rescale(theirs[0], top);
      for (int64_t k = 1; k < block_state; k++) mine[k] = mine[k] * left + theirs[k] * right;
      mine[0] = top;
    }
  }

  template <int VECTORS>
  INLINE void add_vectors(const int64_t* other, int n, int64_t at, const float* z, const vf* w, vf old, vf* sum) const {
    vf a[VECTORS];
    for (int v = 0; v < VECTORS; v++) a[v] = sum[v] * old;
    for (int i = 0; i < n; i++) {
      const float* from = message.data + other[i] * size + at;
      for (int v = 0; v < VECTORS; v++) {
        vf x = load(from + v * LANES);
        if (EDGES && SCORE == DOT) x += load(z + i * score_size + at + v * LANES);
        a[v] = fma(w[i], x, a[v]);
      }
    }
    for (int v = 0; v < VECTORS; v++) sum[v] = a[v];
  }

  // Adds n edges, at most SLICE, to the state of a row.
  void add(const Tile& tile, int first, int n, int64_t row, const float* z, vf* state) const {
    const int64_t* other = tile.other + first;
    vf w[SLICE];
    state[0] += float(n);
    for (int64_t b = 0; b < layout.blocks; b++) {
      vf *mine = state + 1 + b * block_state, top = mine[0], total = {};
      this->score(other, n, row, b, z, w);
      for (int i = 0; i < n; i++) top = max(top, w[i]);
      const vf old = rescale(mine[0], top);
      for (int i = 0; i < n; i++) total += w[i] = exp2(w[i] - top);
      if (dropout.active())
        for (int i = 0; i < n; i++) w[i] *= dropout.factor(tile.position[first + i], head[b]);
      mine[0] = top, mine[1] = fma(mine[1], old, total);
      int64_t k = 0, base = b * layout.vectors;
      for (; k + 8 <= layout.vectors; k += 8)
        add_vectors<8>(other, n, (base + k) * LANES, z, w, old, mine + 2 + k);
      for (; k + 4 <= layout.vectors; k += 4)
        add_vectors<4>(other, n, (base + k) * LANES, z, w, old, mine + 2 + k);
      for (; k < layout.vectors; k++) add_vectors<1>(other, n, (base + k) * LANES, z, w, old, mine + 2 + k);
    }
  }

  void write(int64_t row, const vf* state) const {
    float* out = p.out + row * p.heads * p.channels;
    if (state[0][0] == 0) {
      std::fill_n(out, p.heads * p.channels, 0.0f);
      std::fill_n(p.lse + row * p.heads, p.heads, 0.0f);
      return;
    }
    vf* packed = const_cast<vf*>(state);  // a row is written once
    for (int64_t b = 0; b < layout.blocks; b++) {
      const vf* mine = state + 1 + b * block_state;
      const vf lse = mine[0] + log2(mine[1]), total = mine[1];
      for (int h = 0; h < layout.width && b * layout.width + h < p.heads; h++)
        p.lse[row * p.heads + b * layout.width + h] = lse[h];
      for (int64_t k = 0; k < layout.vectors; k++) packed[b * layout.vectors + k] = mine[2 + k] / total;
    }
    layout.unpack(reinterpret_cast<const float*>(packed), out);
  }

  bool run_chunk(int64_t chunk, Tile& tile, float* features, float* z, vf* state) {
    bool broken = false;
    TileWalk walk(edges, chunk, p.num_positions, 0, 1, EDGES);
    const Segment* last = nullptr;
    for (int64_t first = walk.at; this->next(walk, tile, features, broken); first = walk.at) {
      for (int s = 0, at = 0, ready = 0; s < tile.num_segments; s++) {
        const Segment& segment = *(last = &tile.segments[s]);
        if (segment.fresh) begin(state);
        for (at = segment.begin; at < segment.end;) {
          if (at == ready) {
            ready = std::min(at + SLICE, tile.num_edges);
            this->prefetch(first + at + SLICE);
            if (EDGES) this->encode(features + at * p.edge_dim, ready - at, z);
          }
          const int slice = (ready - 1) / SLICE * SLICE, n = std::min(segment.end, ready) - at;
          add(tile, at, n, segment.row, z + (at - slice) * score_size, state);
          at += n;
        }
        if (segment.last && segment.whole) {
          write(segment.row, state);
        } else if (segment.last) {
          std::copy_n(state, state_size, heads.data + chunk * state_size);
        }
      }
    }
    if (broken) return false;
    if (!last->last) std::copy_n(state, state_size, (last->whole ? tails : heads).data + chunk * state_size);
    return true;
  }

  // Merges the states of rows that several chunks share, in the order of the chunks.
  void finish_rows() {
    Buffer<vf> sum(state_size);
    const int64_t step = edges.chunk_edges();
    for (int64_t chunk = 0; chunk < edges.num_chunks(); chunk++) {
      const int64_t first = chunk * step, end = std::min(edges.num_edges, first + step);
      int64_t row = edges.row_of(first);
      if (edges.ptr[row] < first) {
        merge(sum.data, heads.data + chunk * state_size);
        if (edges.ptr[row + 1] <= end) write(row, sum.data);
      }
      row = edges.row_of(end - 1);
      if (edges.ptr[row] >= first && edges.ptr[row + 1] > end)
        std::copy_n(tails.data + chunk * state_size, state_size, sum.data);
    }
  }

  int run() {
    int broken = 0;
#pragma omp parallel num_threads(edges.team(p.num_threads)) reduction(| : broken)
    {
      Tile tile;
      Buffer<float> features(TILE * p.edge_dim), z(SLICE * score_size);
      Buffer<vf> state(state_size);
#pragma omp for schedule(dynamic, 1)
      for (int64_t chunk = 0; chunk < edges.num_chunks(); chunk++)
        broken |= !run_chunk(chunk, tile, features.data, z.data, state.data);
#pragma omp for schedule(static)
      for (int64_t row = 0; row < p.num_dst; row++) {
        if (edges.ptr[row] != edges.ptr[row + 1]) continue;
        std::fill_n(p.out + row * p.heads * p.channels, p.heads * p.channels, 0.0f);
        std::fill_n(p.lse + row * p.heads, p.heads, 0.0f);
      }
    }
    if (broken) return BROKEN_INDEX;
    finish_rows();
    if (p.weights) write_weights();
    return OK;
  }

  // Computes the weights of all edges again, now that the sums of their rows are known.
  void write_weights() {
#pragma omp parallel num_threads(edges.team(p.num_threads))
    {
      Tile tile;
      Buffer<float> features(TILE * p.edge_dim), z(TILE * score_size), lse(layout.blocks * LANES);
      vf w[TILE];
#pragma omp for schedule(dynamic, 1)
      for (int64_t chunk = 0; chunk < edges.num_chunks(); chunk++) {
        bool broken = false;
        TileWalk walk(edges, chunk, p.num_positions, 0, 1, EDGES);
        while (this->next(walk, tile, features.data, broken)) {
          if (EDGES) this->encode(features.data, tile.num_edges, z.data);
          for (int s = 0; s < tile.num_segments; s++) write_segment(tile, tile.segments[s], z.data, lse.data, w);
        }
      }
    }
  }

  void write_segment(const Tile& tile, const Segment& segment, const float* z, float* lse, vf* w) const {
    const int n = segment.end - segment.begin;
    layout.spread(p.lse + segment.row * p.heads, lse);
    for (int64_t b = 0; b < layout.blocks; b++) {
      this->score(tile.other + segment.begin, n, segment.row, b, z + segment.begin * score_size, w);
      for (int i = 0; i < n; i++) {
        const int64_t position = tile.position[segment.begin + i];
        vf weight = exp2(w[i] - load(lse + b * LANES));
        if (SCORE != DOT && dropout.active()) weight *= dropout.factor(position, head[b]);
        for (int h = 0; h < layout.width && b * layout.width + h < p.heads; h++)
          p.weights[position * p.heads + b * layout.width + h] = weight[h];
      }
    }
  }
};
