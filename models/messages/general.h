// Every message and every reduction, forward and backward: a block of channels of a tile of edges at a time. What is
// computed is chosen at run time for each of these blocks, so that the file compiles in seconds.
#pragma once
#include <cmath>

#include "problem.h"

// What is known of a row: its result, and what backward needs: ties or zeros, and the product of all but zeros.
struct State {
  vf value, count, product;
};

template <Reduction REDUCTION>
INLINE void take(State& state, vf message, bool first) {
  if constexpr (REDUCTION == PROD) {
    if (first) state = {splat(1), vf{}, splat(1)};
    const vi zero = message == 0.0f;
    state.value *= message;
    state.count += zero ? splat(1) : vf{};
    state.product *= zero ? splat(1) : message;
  } else if constexpr (REDUCTION == SUM) {
    state.value = first ? message : state.value + message;
  } else {
    const vi missing = message != message;
    const vf one = missing ? vf{} : splat(1);
    if (first) {
      state.value = message, state.count = one;
      return;
    }
    const vi better = (REDUCTION == MAX ? message > state.value : message < state.value) | missing;
    state.count = better ? one : message == state.value ? state.count + 1.0f : state.count;
    state.value = better ? message : state.value;
  }
}

// Adds what another chunk knows of the same row.
template <Reduction REDUCTION>
INLINE void merge(State& state, const State& part) {
  if constexpr (REDUCTION == SUM) {
    state.value += part.value;
  } else if constexpr (REDUCTION == PROD) {
    state.value *= part.value, state.count += part.count, state.product *= part.product;
  } else {
    const vi better =
        (REDUCTION == MAX ? part.value > state.value : part.value < state.value) | (part.value != part.value);
    state.count = better ? part.count : part.value == state.value ? state.count + part.count : state.count;
    state.value = better ? part.value : state.value;
  }
}

// Room of one thread.
struct Room {
  Tile tile;
  Buffer<float> left, right, message, gradient, second, result, edges;
  Buffer<State> carried;
  Room(int64_t num_blocks, int64_t edge_width)
      : left(PLANE),
        right(PLANE),
        message(PLANE),
        gradient(PLANE),
        second(PLANE),
        result(PLANE),
        edges(TILE * edge_width),
        carried(num_blocks) {}
};

struct General {
  const MessageProblem& p;
  const Sorted edges;
  const int64_t num_blocks;
  const float zero;  // GCC 12 takes the product of a vector and a constant 0 for 0, even that of NaN
  const bool needs_message, needs_left, needs_right, in_rows, writes_mapped;
  Partials<State> partials;

  explicit General(const MessageProblem& p_)
      : p(p_),
        edges(sorted_edges(p_)),
        num_blocks((p_.channels + LANES - 1) / LANES),
        zero(p_.backward ? 0.0f : 1.0f),
        needs_message(!p_.backward || p_.second.data || (p_.operation == DIV && has_side(RIGHT))),
        needs_left(needs_message || (p_.operation == MUL && has_side(RIGHT))),
        needs_right((needs_message && p_.operation != COPY) || (p_.operation == MUL && has_side(LEFT)) ||
                    (p_.operation == DIV && p_.backward)),
        in_rows(p_.out),
        writes_mapped(p_.edge_out.data && p_.edge_out.map),
        partials(in_rows ? edges.num_chunks() : 0, num_blocks) {}

  bool has_side(Side side) const { return p.backward && (p.row_side == side || p.edge_side == side); }
  int lanes_of(int64_t block) const { return int(std::min<int64_t>(LANES, p.channels - block * LANES)); }

  template <class T>
  void read(const Operand& operand, const Tile& tile, int64_t block, float* plane) const {
    const int lanes = lanes_of(block);
    const Block place = find_block(operand, block * LANES, lanes);
    const int64_t* at = operand.place == ROW ? tile.row : operand.place == OTHER ? tile.other : tile.position;
    const T* from = static_cast<const T*>(operand.data) + place.column;
    const int32_t* map = operand.map + block * LANES;
    for (int i = 0; i < tile.num_edges; i++) {
      const T* here = from + at[i] * operand.width;
      if (operand.place != ROW || !p.ptr) __builtin_prefetch(from + at[i + AHEAD] * operand.width);
      vf value = {};
      if (place.access == RUN) {
        value = load_wide(here, lanes);
      } else if (place.access == SPLAT) {
        value = splat(widen(*here));
      } else {
        for (int lane = 0; lane < lanes; lane++) value[lane] = widen(here[map[lane] - place.column]);
      }
      store(plane + i * LANES, value);
    }
  }

  void read(const Operand& operand, const Tile& tile, int64_t block, float* plane) const {
    switch (operand.dtype) {
      case BFLOAT16: return read<Bfloat16>(operand, tile, block, plane);
      case FLOAT16: return read<Float16>(operand, tile, block, plane);
      default: return read<float>(operand, tile, block, plane);
    }
  }

  template <class Function>
  static INLINE void fill(int num_edges, float* to, Function function) {
    for (int i = 0; i < num_edges * LANES; i += LANES) store(to + i, function(i));
  }

  const float* combine(int n, const float* left, const float* right, float* to) const {
    auto l = [&](int i) { return load(left + i); };
    auto r = [&](int i) { return load(right + i); };
    switch (p.operation) {
      case COPY: return left;
      case ADD: fill(n, to, [&](int i) { return l(i) + r(i); }); break;
      case SUB: fill(n, to, [&](int i) { return l(i) - r(i); }); break;
      case MUL: fill(n, to, [&](int i) { return l(i) * r(i); }); break;
      case EXP: fill(n, to, [&](int i) { return exp2((l(i) - r(i)) * float(M_LOG2E)); }); break;
      default: fill(n, to, [&](int i) { return l(i) / r(i); });
    }
    return to;
  }

  // Computes softmax from exponentials and the inverse of their sum, or its gradient from those of its results.
  void scale(int n, const Room& room) const {
    const float *l = room.left.data, *r = room.right.data, *m = room.message.data, *s = room.second.data;
    if (p.operation == EXP) {
      fill(n, room.result.data, [&](int i) { return load(m + i) * load(s + i); });
    } else {
      fill(n, room.result.data, [&](int i) { return load(l + i) * (load(r + i) - load(s + i)); });
    }
  }

  // Replaces the gradient of the row's result, or a factor of it, by that of each message.
  void to_messages(int n, const float* message, const float* second, float* gradient) const {
    if (p.reduction == PROD) {
      fill(n, gradient, [&](int i) {
        const vf m = load(message + i);
        return m == 0.0f ? load(second + i) : load(gradient + i) / m;
      });
    } else {
      fill(n, gradient, [&](int i) { return chosen(load(gradient + i), load(message + i), load(second + i)); });
    }
  }

  const float* to_side(int64_t side, int n, const Room& room, const float* message, float* to) const {
    const float *left = room.left.data, *right = room.right.data, *g = room.gradient.data;
    if (p.operation == MUL) {
      const float* other = side == LEFT ? right : left;
      fill(n, to, [&](int i) { return load(g + i) * load(other + i); });
    } else if (p.operation == DIV && side == LEFT) {
      fill(n, to, [&](int i) { return load(g + i) / load(right + i); });
    } else if (p.operation == DIV) {
      fill(n, to, [&](int i) { return -(load(g + i) * load(message + i)) / load(right + i); });
    } else if (p.operation == SUB && side == RIGHT) {
      fill(n, to, [&](int i) { return -load(g + i); });
    } else {
      return g;
    }
    return to;
  }

  void write_row(int64_t row, int64_t block, const State& state) const {
    const int lanes = lanes_of(block);
    const int64_t at = row * p.channels + block * LANES;
    store(p.out + at, state.value, lanes);
    if (p.stat) store(p.stat + at, state.count, lanes);
    if (p.stat2) store(p.stat2 + at, state.product, lanes);
  }

  template <Reduction REDUCTION, class Function>
  void reduce(const Tile& tile, int64_t chunk, int64_t block, Function value, State* carried) {
    for (int s = 0; s < tile.num_segments; s++) {
      const Segment& segment = tile.segments[s];
      State state = segment.fresh ? State{} : carried[block];
      for (int i = segment.begin; i < segment.end; i++)
        take<REDUCTION>(state, value(i), segment.fresh && i == segment.begin);
      if (segment.last && segment.whole) {
        write_row(segment.row, block, state);
      } else {
        (segment.last ? partials.of(chunk, segment) : carried)[block] = state;
      }
    }
  }

  template <class Function>
  void reduce(Room& room, int64_t chunk, int64_t block, Function value) {
    State* carried = room.carried.data;
    switch (p.backward ? int64_t(SUM) : p.reduction) {
      case SUM: return reduce<SUM>(room.tile, chunk, block, value, carried);
      case MAX: return reduce<MAX>(room.tile, chunk, block, value, carried);
      case MIN: return reduce<MIN>(room.tile, chunk, block, value, carried);
      case PROD: return reduce<PROD>(room.tile, chunk, block, value, carried);
    }
  }

  // Reads a block of whole vectors of an operand in the order of the edges.
  auto reader(const Operand& operand, const Tile& tile, int64_t block) const {
    const float* from = static_cast<const float*>(operand.data) + find_block(operand, block * LANES, LANES).column;
    const int64_t* at = operand.place == ROW ? tile.row : operand.place == OTHER ? tile.other : tile.position;
    return [from, at, width = operand.width](int i) {
      __builtin_prefetch(from + at[i + AHEAD] * width);
      return load(from + at[i] * width);
    };
  }

  bool is_whole(const Operand& operand, int64_t block) const {
    return operand.dtype == FLOAT32 && lanes_of(block) == LANES &&
           find_block(operand, block * LANES, LANES).access == RUN;
  }

  // Reduces copies as they are read, forward, and backward of max and min. False if they have to be unpacked first.
  bool reduce_copies(Room& room, int64_t chunk, int64_t block) {
    if (p.operation != COPY || p.edge_out.data || !is_whole(p.left, block)) return false;
    const auto message = reader(p.left, room.tile, block);
    if (!p.backward) {
      reduce(room, chunk, block, message);
      return true;
    }
    if (!p.second.data || p.reduction == PROD || !is_whole(p.gradient, block)) return false;
    const auto gradient = reader(p.gradient, room.tile, block), result = reader(p.second, room.tile, block);
    reduce(room, chunk, block, [=](int i) { return chosen(gradient(i), message(i), result(i)); });
    return true;
  }

  // The gradient of a message by that of its row's result.
  INLINE vf chosen(vf gradient, vf message, vf result) const {
    return message == result ? gradient : gradient * zero;  // 0 times infinity is NaN, as in the reference
  }

  // Writes a block of the edges' rows as it is, or adds it to the columns that it was read from.
  template <class T>
  void write_edges(const Tile& tile, int64_t block, const float* from, float* sums) const {
    const int lanes = lanes_of(block);
    const int64_t width = p.edge_out.width;
    if (!p.edge_out.map) {
      T* to = static_cast<T*>(p.edge_out.data) + block * LANES;
      for (int i = 0; i < tile.num_edges; i++)
        store_narrow(to + tile.position[i] * width, load(from + i * LANES), lanes);
      return;
    }
    const Block place = find_block(p.edge_out, block * LANES, lanes);
    const int32_t* map = p.edge_out.map + block * LANES;
    for (int i = 0; i < tile.num_edges; i++) {
      float* to = sums + i * width;
      if (place.access == SPLAT && lanes == LANES) {
        to[place.column] += quick_sum(load(from + i * LANES));
      } else {
        for (int lane = 0; lane < lanes; lane++) to[map[lane]] += from[i * LANES + lane];
      }
    }
    if (block + 1 < num_blocks) return;
    for (int i = 0; i < tile.num_edges; i++)
      for (int64_t k = 0; k < width; k++)
        put(static_cast<T*>(p.edge_out.data) + tile.position[i] * width + k, sums[i * width + k]);
  }

  void write_edges(Room& room, int64_t block, const float* from) const {
    switch (p.edge_out.dtype) {
      case BFLOAT16: return write_edges<Bfloat16>(room.tile, block, from, room.edges.data);
      case FLOAT16: return write_edges<Float16>(room.tile, block, from, room.edges.data);
      default: return write_edges<float>(room.tile, block, from, room.edges.data);
    }
  }

  void run_block(Room& room, int64_t chunk, int64_t block) {
    const Tile& tile = room.tile;
    const int n = tile.num_edges;
    if (reduce_copies(room, chunk, block)) return;
    if (needs_left) read(p.left, tile, block, room.left.data);
    if (needs_right) read(p.right, tile, block, room.right.data);
    const float* message = needs_message ? combine(n, room.left.data, room.right.data, room.message.data) : nullptr;
    if (!p.backward) {
      if (p.second.data) {
        read(p.second, tile, block, room.second.data);
        scale(n, room);
        message = room.result.data;
      }
      if (in_rows) reduce(room, chunk, block, [=](int i) { return load(message + i * LANES); });
      if (p.edge_out.data) write_edges(room, block, message);
      return;
    }
    read(p.gradient, tile, block, room.gradient.data);
    if (p.second.data) {
      read(p.second, tile, block, room.second.data);
      to_messages(n, message, room.second.data, room.gradient.data);
    }
    if (in_rows) {
      const float* values = to_side(p.row_side, n, room, message, room.result.data);
      reduce(room, chunk, block, [=](int i) { return load(values + i * LANES); });
    }
    if (p.edge_out.data) write_edges(room, block, to_side(p.edge_side, n, room, message, room.result.data));
  }

  void run_tile(Room& room, int64_t chunk) {
    if (writes_mapped) std::fill_n(room.edges.data, room.tile.num_edges * p.edge_out.width, 0.0f);
    for (int64_t block = 0; block < num_blocks; block++) run_block(room, chunk, block);
  }

  int run_chunk(int64_t chunk, Room& room) {
    const auto run = [&](const Tile&) {
      run_tile(room, chunk);
      return OK;
    };
    Partials<State>* const kept = in_rows ? &partials : nullptr;
    if (!p.ptr) return walk_tiles(UnsortedWalk(edges, chunk), chunk, room.tile, room.carried.data, kept, run);
    return walk_tiles(TileWalk(edges, chunk, p.num_edges, 1, 1, false), chunk, room.tile, room.carried.data, kept, run);
  }

  void fill_empty(int64_t row) const {
    const bool prod = p.reduction == PROD && !p.backward;
    const int64_t at = row * p.channels;
    std::fill_n(p.out + at, p.channels, float(prod));
    if (p.stat) std::fill_n(p.stat + at, p.channels, float(!prod));
    if (p.stat2) std::fill_n(p.stat2 + at, p.channels, 1.0f);
  }

  void merge_rows() {
    auto finish = [&](int64_t row, const State* states) {
      for (int64_t block = 0; block < num_blocks; block++) write_row(row, block, states[block]);
    };
    switch (p.backward ? int64_t(SUM) : p.reduction) {
      case SUM: return partials.merge(edges, merge<SUM>, finish);
      case MAX: return partials.merge(edges, merge<MAX>, finish);
      case MIN: return partials.merge(edges, merge<MIN>, finish);
      case PROD: return partials.merge(edges, merge<PROD>, finish);
    }
  }

  int run() {
    const int status = run_chunks(
        edges, p.num_threads, [&] { return Room(num_blocks, writes_mapped ? p.edge_out.width : 0); },
        [&](int64_t chunk, Room& room) { return run_chunk(chunk, room); }, [&](int64_t row) { fill_empty(row); },
        in_rows);
    if (status == OK && in_rows) merge_rows();
    return status;
  }
};
