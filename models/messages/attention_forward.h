// Forward: outputs and the logarithms of the sums of exponentials, by destination.
#pragma once
#include "attention.h"

template <class Score, bool EDGES>
struct AttentionForward : Attention<Score, EDGES> {
  using Base = Attention<Score, EDGES>;
  using Base::dropout, Base::edges, Base::groups, Base::layout, Base::message, Base::p, Base::size, Base::weight,
      Base::width, Base::ENCODES, Base::PROJECTS;
  using Edges = typename Base::Edges;
  using Row = typename Base::Row;

  // The state of a row: the number of edges, then for each block of heads the largest score, the sum of exponentials
  // relative to it, whose groups are parts of it, the weighted sum of messages, and that of features (PROJECTS).
  const int64_t num_projected, block_state, state_size;
  Partials<vf> partials;

  explicit AttentionForward(const AttentionProblem& p_)
      : Base(p_),
        num_projected(PROJECTS ? p.edge_dim : 0),
        block_state(2 + layout.vectors + num_projected),
        state_size(1 + layout.blocks * block_state),
        partials(edges.num_chunks(), state_size) {}

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

  // Adds up weighted messages, VECTORS vectors from the column `at` on, or (Features) weighted features.
  template <int VECTORS, bool Features>
  INLINE void add_vectors(const Edges& e, int64_t at, const float* w, vf old, vf* sum) const {
    const int64_t dim = p.edge_dim;
    vf a[VECTORS];
    for (int v = 0; v < VECTORS; v++) a[v] = sum[v] * old;
    for (int i = 0; i < e.n; i++) {
      const vf weight = layout.spread(w + i * width);
      const float* from = Features ? e.features + i * dim + at : message.data + e.other[i] * size + at;
      if (!Features && Score::READS_SOURCE)
        this->template prefetch<VECTORS, false>(message.data + e.ahead[i] * size + at);
      for (int v = 0; v < VECTORS; v++) a[v] = fma(weight, Features ? splat(from[v]) : load(from + v * LANES), a[v]);
    }
    for (int v = 0; v < VECTORS; v++) sum[v] = a[v];
  }

  template <bool Features>
  INLINE void add_all(const Edges& e, int64_t at, int64_t count, const float* w, vf old, vf* sum) const {
    constexpr int STEP = Features ? 1 : LANES;
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) add_vectors<8, Features>(e, at + k * STEP, w, old, sum + k);
    for (; k + 4 <= count; k += 4) add_vectors<4, Features>(e, at + k * STEP, w, old, sum + k);
    for (; k < count; k++) add_vectors<1, Features>(e, at + k * STEP, w, old, sum + k);
  }

  // Adds edges, at most SLICE, to the state of a row.
  void add(const Edges& e, const Row& row, vf* state) const {
    alignas(64) float w[(SLICE + 1) * LANES], factor[(SLICE + 1) * LANES];
    state[0] += float(e.n);
    for (int64_t b = 0; b < layout.blocks; b++) {
      vf *mine = state + 1 + b * block_state, top = mine[0], total = {};
      const int count = this->dense(e.n);
      this->score(e, row, b, w);
      for (int k = 0; k < count; k += LANES) top = max(top, load(w + k));
      top = groups.largest(top);
      const vf old = rescale(mine[0], top);
      for (int k = 0; k < count; k += LANES) {
        const vf share = exp2(load(w + k) - top);
        total += share;
        store(w + k, share);
      }
      if (dropout.active()) {
        this->draw(e, b, factor);
        for (int k = 0; k < count; k += LANES) store(w + k, load(w + k) * load(factor + k));
      }
      mine[0] = top, mine[1] = fma(mine[1], old, total);
      add_all<false>(e, b * layout.vectors * LANES, layout.vectors, w, old, mine + 2);
      add_all<true>(e, 0, num_projected, w, old, mine + 2 + layout.vectors);
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
      const vf *mine = state + 1 + b * block_state, *projected = mine + 2 + layout.vectors;
      const vf total = groups.sum(mine[1]), lse = mine[0] + log2(total);
      for (int h = 0; h < width && b * width + h < p.heads; h++) p.lse[row * p.heads + b * width + h] = lse[h];
      for (int64_t k = 0; k < layout.vectors; k++) {
        vf sum = mine[2 + k];
        const float* w = weight.data + (b * layout.vectors + k) * num_projected * LANES;
        for (int64_t d = 0; d < num_projected; d++) sum = fma(projected[d], load(w + d * LANES), sum);
        packed[b * layout.vectors + k] = sum / total;
      }
    }
    layout.unpack(reinterpret_cast<const float*>(packed), out);
  }

  // What a thread works with.
  struct Worker {
    AttentionForward& pass;
    Buffer<float> features, z;
    Row row;
    Buffer<vf> state;
    int64_t chunk = 0;
    Segment last = {};

    explicit Worker(AttentionForward& pass_)
        : pass(pass_),
          features(SLICE * pass.p.edge_dim),
          z(ENCODES ? SLICE * pass.encoded_size : 0),
          row(pass),
          state(pass.state_size) {}

    void begin(const Slice& slice) {
      if (ENCODES) pass.encode(slice, z.data);
    }
    void visit(const Slice& slice, const Segment& segment) {
      last = segment;
      if (segment.fresh) {
        pass.open(segment.row, row);
        pass.begin(state.data);
      }
      if (segment.begin < segment.end) pass.add(pass.edges_of(slice, segment, z.data), row, state.data);
      if (!segment.last) return;
      if (segment.whole) {
        pass.write(segment.row, state.data);
      } else {
        std::copy_n(state.data, pass.state_size, pass.partials.of(chunk, segment));
      }
    }
    void end(const Slice&) {
      if (last.last) return;  // else the chunk may end here
      std::copy_n(state.data, pass.state_size, pass.partials.of(chunk, last));
    }
  };

  // Walks over all chunks, with a W for each thread.
  template <class W, class Empty>
  int run_walk(const Empty& empty) {
    return run_chunks(
        edges, p.num_threads, [&] { return W(*this); },
        [&](int64_t chunk, W& worker) {
          worker.chunk = chunk;
          return this->walk(chunk, worker.features.data, worker) ? OK : BROKEN_INDEX;
        },
        empty);
  }

  int run() {
    const int status = run_walk<Worker>([&](int64_t row) {
      std::fill_n(p.out + row * p.heads * p.channels, p.heads * p.channels, 0.0f);
      std::fill_n(p.lse + row * p.heads, p.heads, 0.0f);
    });
    if (status) return status;
    partials.merge_rows(
        edges, [&](vf* state, const vf* part) { merge(state, part); },
        [&](int64_t row, const vf* state) { write(row, state); });
    // The weights of all edges are computed again, now that the sums of their rows are known.
    return p.weights ? run_walk<WeightWriter>([](int64_t) {}) : OK;
  }

  struct WeightWriter : Worker {
    using Worker::pass, Worker::row, Worker::z;
    explicit WeightWriter(AttentionForward& pass_) : Worker(pass_) {}

    void visit(const Slice& slice, const Segment& segment) {
      const AttentionProblem& p = pass.p;
      if (segment.fresh) pass.open(segment.row, row);
      const Edges e = pass.edges_of(slice, segment, z.data);
      alignas(64) float w[(SLICE + 1) * LANES];
      for (int64_t b = 0; b < pass.layout.blocks; b++) {
        pass.score(e, row, b, w);
        const int64_t first = b * pass.width, count = std::min<int64_t>(pass.width, p.heads - first);
        for (int i = 0; i < e.n; i++) {
          vf lse = {};
          std::memcpy(&lse, p.lse + row.node * p.heads + first, 4 * count);
          vf weight = exp2(load(w + i * pass.width) - lse);
          if (!Score::LINEAR && pass.dropout.active()) weight *= pass.dropout.factor(e.position[i], pass.head[b]);
          std::memcpy(p.weights + e.position[i] * p.heads + first, &weight, 4 * count);
        }
      }
    }
    void end(const Slice&) {}
  };
};
