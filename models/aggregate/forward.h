// Forward: walks the edges of each chunk by destination, then finishes the rows that several chunks share.
#pragma once
#include "problem.h"

template <class Kind>
struct Forward {
  using State = typename Kind::State;
  const AggregationProblem& p;
  const Kind kind;
  const Sorted edges;
  Encoder encoder;
  const int64_t num_blocks;
  Partials<State> partials;
  int steep = 0;

  explicit Forward(const AggregationProblem& p_)
      : p(p_),
        kind(p_.param, p_.low, p_.high),
        edges(sorted_edges(p_)),
        encoder(make_encoder(p_)),
        num_blocks(encoder.num_blocks),
        partials(edges.num_chunks(), num_blocks) {}

  void write(int64_t row, int64_t block, const State& state) {
    const int lanes = int(std::min<int64_t>(LANES, p.channels - block * LANES));
    const int64_t at = row * p.channels + block * LANES;
    if (kind.is_steep(state, p.limit)) __atomic_store_n(&steep, 1, __ATOMIC_RELAXED);
    const Output result = kind.finish(state, float(edges.ptr[row + 1] - edges.ptr[row]));
    store(p.out + at, result.out, lanes);
    if (p.stat) store(p.stat + at, result.stat, lanes);
    if (p.stat2) store(p.stat2 + at, result.stat2, lanes);
  }

  template <int BLOCKS>
  void run_blocks(const Tile& tile, int64_t chunk, int64_t block, const float* features, const int64_t* relation,
                  float* z, State* carried) {
    encode<BLOCKS, true>(encoder, tile, tile.other, p.x, block, p.eps, features, relation, z);
    for (int s = 0; s < tile.num_segments; s++) {
      const Segment& segment = tile.segments[s];
      State states[BLOCKS];
      if (!segment.fresh) std::copy_n(carried + block, BLOCKS, states);
      kind.template add<BLOCKS>(states, z + segment.begin * LANES, segment.end - segment.begin, segment.fresh);
      if (segment.last && segment.whole) {
        for (int b = 0; b < BLOCKS; b++) write(segment.row, block + b, states[b]);
      } else {
        std::copy_n(states, BLOCKS, (segment.last ? partials.of(chunk, segment) : carried) + block);
      }
    }
  }

  // Room of one thread.
  struct Room {
    Tile tile;
    Buffer<float> features, z;
    Buffer<int64_t> relation;
    Buffer<State> carried;
    explicit Room(const Encoder& encoder)
        : features(TILE * encoder.stride()),
          z(2 * PLANE),
          relation(encoder.table ? TILE : 0),
          carried(encoder.num_blocks) {}
  };

  int run_tile(Room& room, int64_t chunk) {
    const Tile& tile = room.tile;
    if (!encoder.read_relations(tile, room.relation.data)) return BROKEN_RELATION;
    const float* e = encoder.gather(tile, p.position == nullptr, room.features.data);
    float* z = room.z.data;
    int64_t block = 0;
    for (; block + 2 <= num_blocks; block += 2)
      run_blocks<2>(tile, chunk, block, e, room.relation.data, z, room.carried.data);
    if (block < num_blocks) run_blocks<1>(tile, chunk, block, e, room.relation.data, z, room.carried.data);
    return OK;
  }

  void fill(float* array, int64_t row, vf value) {
    if (array) std::fill_n(array + row * p.channels, p.channels, value[0]);
  }

  int run() {
    Output nothing = {};
    if constexpr (std::is_same_v<Kind, Power>) nothing = kind.of_nothing();  // the mean's lower bound
    const int status = run_chunks(
        edges, p.num_threads, [&] { return Room(encoder); },
        [&](int64_t chunk, Room& room) {
          return walk_tiles(TileWalk(edges, chunk, p.num_positions, 0, p.channels, p.attr != nullptr), chunk, room.tile,
                            room.carried.data, &partials, [&](const Tile&) { return run_tile(room, chunk); });
        },
        [&](int64_t row) {
          fill(p.out, row, nothing.out), fill(p.stat, row, nothing.stat), fill(p.stat2, row, nothing.stat2);
        });
    if (status) return status;
    partials.merge(
        edges, [&](State& sum, const State& part) { kind.merge(sum, part); },
        [&](int64_t row, const State* states) {
          for (int64_t b = 0; b < num_blocks; b++) write(row, b, states[b]);
        });
    return steep ? TOO_STEEP : OK;
  }
};
