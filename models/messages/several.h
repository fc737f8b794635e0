// Several reductions of the same values of nodes in one pass over the edges: sums, sums of squares, largest and
// smallest values. Backward is one pass, too.
#pragma once
#include "general.h"

enum Part { TOTAL, SQUARES, LARGEST, SMALLEST, NUM_PARTS };

struct SeveralProblem {  // cpu.py reads its fields from here
  int64_t num_rows, num_others, num_edges, channels, num_threads, ptr_wide, other_wide, backward;
  const void *ptr, *other;
  const float* values;  // [num_others, channels] forward; [num_rows, channels] backward, where the sources are the rows
  // Each is null for a part that nobody asks for. Forward: [num_rows, channels], `ties` of the last two parts alone.
  // Backward: [num_others, channels]; `gradients` are divided by the ties.
  float *results[NUM_PARTS], *ties[NUM_PARTS];
  const float* gradients[NUM_PARTS];
  float* out;  // backward: the gradient of the values [num_rows, channels]
};

static int64_t count_blocks(const SeveralProblem& p) { return (p.channels + LANES - 1) / LANES; }
static INLINE int lanes_of(const SeveralProblem& p, int64_t block) {
  return int(std::min<int64_t>(LANES, p.channels - block * LANES));
}

static Sorted sorted_edges(const SeveralProblem& p) {
  return {p.num_rows,      p.num_others, p.num_edges, {p.ptr, bool(p.ptr_wide)}, {p.other, bool(p.other_wide)},
          {nullptr, false}};
}

// Walks the tiles of all chunks. PASS has the state of a row's block of channels (`State`), which `add` extends by the
// edges of a segment, `join` by what another chunk knows, and `write` stores.
template <class PASS>
struct SeveralWalk {
  using State = typename PASS::State;
  const SeveralProblem& p;
  const PASS& pass;
  const Sorted edges;
  const int64_t num_blocks;
  Partials<State> partials;

  explicit SeveralWalk(const PASS& pass_)
      : p(pass_.p),
        pass(pass_),
        edges(sorted_edges(p)),
        num_blocks(count_blocks(p)),
        partials(edges.num_chunks(), num_blocks) {}

  void run_tile(const Tile& tile, int64_t chunk, State* carried) {
    for (int64_t block = 0; block < num_blocks; block++) {
      for (int s = 0; s < tile.num_segments; s++) {
        const Segment& segment = tile.segments[s];
        State state = segment.fresh ? State{} : carried[block];
        pass.add(state, tile, segment, block);
        if (segment.last && segment.whole) {
          pass.write(segment.row, block, state);
        } else {
          (segment.last ? partials.of(chunk, segment) : carried)[block] = state;
        }
      }
    }
  }

  struct Room {  // of one thread
    Tile tile;
    Buffer<State> carried;
    explicit Room(int64_t num_blocks) : carried(num_blocks) {}
  };

  int run_chunk(int64_t chunk, Room& room) {
    return walk_tiles(TileWalk(edges, chunk, p.num_edges, 1, pass.stride(), false), chunk, room.tile, room.carried.data,
                      &partials, [&](const Tile& tile) {
                        run_tile(tile, chunk, room.carried.data);
                        return OK;
                      });
  }

  void write_row(int64_t row, const State* states) const {
    for (int64_t block = 0; block < num_blocks; block++) pass.write(row, block, states[block]);
  }

  int run() {
    const std::vector<State> empty(num_blocks, PASS::empty());
    const int status = run_chunks(
        edges, p.num_threads, [&] { return Room(num_blocks); },
        [&](int64_t chunk, Room& room) { return run_chunk(chunk, room); },
        [&](int64_t row) { write_row(row, empty.data()); });
    if (status) return status;
    partials.merge(edges, PASS::join, [&](int64_t row, const State* states) { write_row(row, states); });
    return OK;
  }
};

struct SeveralForward {
  struct State {
    vf total, squares;
    ::State largest, smallest;
  };
  const SeveralProblem& p;

  static State empty() {
    State state = {};
    state.largest.count = state.smallest.count = splat(1);
    return state;
  }

  int64_t stride() const { return p.channels; }

  INLINE void add(State& state, const Tile& tile, const Segment& segment, int64_t block) const {
    const int lanes = lanes_of(p, block);
    if (lanes == LANES) return add(state, tile, segment, block, [](const float* from) { return load(from); });
    add(state, tile, segment, block, [=](const float* from) { return load(from, lanes); });
  }

  template <class Read>
  INLINE void add(State& state, const Tile& tile, const Segment& segment, int64_t block, Read read) const {
    State sums = state;
    const float* from = p.values + block * LANES;
    for (int i = segment.begin; i < segment.end; i++) {
      __builtin_prefetch(from + tile.other[i + AHEAD]);
      const vf value = read(from + tile.other[i]);
      const bool first = segment.fresh && i == segment.begin;
      sums.total += value;
      sums.squares += value * value;
      take<MAX>(sums.largest, value, first);
      take<MIN>(sums.smallest, value, first);
    }
    state = sums;
  }

  static void join(State& state, const State& part) {
    state.total += part.total;
    state.squares += part.squares;
    merge<MAX>(state.largest, part.largest);
    merge<MIN>(state.smallest, part.smallest);
  }

  INLINE void write(int64_t row, int64_t block, const State& state) const {
    const int64_t at = row * p.channels + block * LANES;
    const int lanes = lanes_of(p, block);
    const vf values[NUM_PARTS] = {state.total, state.squares, state.largest.value, state.smallest.value};
    const vf counts[NUM_PARTS] = {vf{}, vf{}, state.largest.count, state.smallest.count};
    for (int part = 0; part < NUM_PARTS; part++) {
      if (p.results[part]) store(p.results[part] + at, values[part], lanes);
      if (p.ties[part]) store(p.ties[part] + at, counts[part], lanes);
    }
  }
};

// The gradients of both sums, and for each extreme its gradient and its value, lie side by side for each block of a node.
template <bool SUMS, int EXTREMES>
struct SeveralBackward {
  using State = vf;
  static constexpr int WIDTH = 2 * SUMS + 2 * EXTREMES;
  const SeveralProblem& p;
  Buffer<vf> packed;

  explicit SeveralBackward(const SeveralProblem& p_) : p(p_), packed(p_.num_others * count_blocks(p_) * WIDTH) {
    const float* from[WIDTH];
    int width = 0;
    if (SUMS) from[width++] = p.gradients[TOTAL], from[width++] = p.gradients[SQUARES];
    for (const int part : {LARGEST, SMALLEST})
      if (p.gradients[part]) from[width++] = p.gradients[part], from[width++] = p.results[part];
#pragma omp parallel for num_threads(int(p.num_threads)) schedule(static)
    for (int64_t node = 0; node < p.num_others; node++)
      for (int64_t block = 0; block < count_blocks(p); block++)
        for (int k = 0; k < WIDTH; k++)
          packed.data[(node * count_blocks(p) + block) * WIDTH + k] =
              from[k] ? load(from[k] + node * p.channels + block * LANES, lanes_of(p, block)) : vf{};
  }

  static State empty() { return State{}; }
  static void join(State& state, const State& part) { state += part; }
  int64_t stride() const { return count_blocks(p) * WIDTH; }

  INLINE void add(State& state, const Tile& tile, const Segment& segment, int64_t block) const {
    const vf value = load(p.values + segment.row * p.channels + block * LANES, lanes_of(p, block));
    // Not a constant: 0 times infinity is NaN, as in the reference, and GCC 12 would take the product for 0.
    const float zero = p.backward ? 0.0f : 1.0f;
    vf sum = state, squares = {};
    for (int i = segment.begin; i < segment.end; i++) {
      const vf* ahead = packed.data + tile.other[i + AHEAD] + block * WIDTH;
      for (int k = 0; k < WIDTH; k += 16 / LANES) __builtin_prefetch(ahead + k);
      const vf* factors = packed.data + tile.other[i] + block * WIDTH;
      if (SUMS) sum += factors[0], squares += factors[1];
      for (int k = 2 * SUMS; k < WIDTH; k += 2) sum += value == factors[k + 1] ? factors[k] : factors[k] * zero;
    }
    state = p.gradients[SQUARES] ? sum + squares * (value + value) : sum;
  }

  INLINE void write(int64_t row, int64_t block, const State& state) const {
    store(p.out + row * p.channels + block * LANES, state, lanes_of(p, block));
  }
};

static int run_several(const SeveralProblem& p) {
  const auto run = [](const auto& pass) { return SeveralWalk<std::decay_t<decltype(pass)>>(pass).run(); };
  if (!p.backward) return run(SeveralForward{p});
  const bool sums = p.gradients[TOTAL] || p.gradients[SQUARES];
  switch (bool(p.gradients[LARGEST]) + bool(p.gradients[SMALLEST])) {
    case 0: return run(SeveralBackward<true, 0>(p));
    case 1: return sums ? run(SeveralBackward<true, 1>(p)) : run(SeveralBackward<false, 1>(p));
    default: return sums ? run(SeveralBackward<true, 2>(p)) : run(SeveralBackward<false, 2>(p));
  }
}
