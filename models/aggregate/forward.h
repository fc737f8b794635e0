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

  int run_chunk(int64_t chunk, Tile& tile, float* features, int64_t* relation, float* z, State* carried) {
    bool broken = false;
    TileWalk walk(edges, chunk, p.num_positions, 0, p.channels, p.attr != nullptr);
    while (walk.next(tile, broken)) {
      if (!encoder.read_relations(tile, relation)) return BROKEN_RELATION;
      const float* e = encoder.gather(tile, p.position == nullptr, features);
      int64_t block = 0;
      for (; block + 2 <= num_blocks; block += 2) run_blocks<2>(tile, chunk, block, e, relation, z, carried);
      if (block < num_blocks) run_blocks<1>(tile, chunk, block, e, relation, z, carried);
    }
    if (broken) return BROKEN_INDEX;
    const Segment& end = tile.segments[tile.num_segments - 1];
    if (!end.last) std::copy_n(carried, num_blocks, partials.of(chunk, end));
    return OK;
  }

  int run() {
    int status = OK;
    const int64_t num_chunks = edges.num_chunks();
#pragma omp parallel num_threads(edges.team(p.num_threads)) reduction(max : status)
    {
      Tile tile;
      Buffer<float> features(TILE * encoder.stride()), z(2 * PLANE);
      Buffer<int64_t> relation(encoder.table ? TILE : 0);
      Buffer<State> carried(num_blocks);
#pragma omp for schedule(dynamic, 1)
      for (int64_t chunk = 0; chunk < num_chunks; chunk++)
        status = std::max(status, run_chunk(chunk, tile, features.data, relation.data, z.data, carried.data));
#pragma omp for schedule(static)
      for (int64_t row = 0; row < p.num_rows; row++) {
        if (edges.ptr[row] != edges.ptr[row + 1]) continue;
        for (float* array : {p.out, p.stat, p.stat2})
          if (array) std::fill_n(array + row * p.channels, p.channels, 0.0f);
      }
    }
    if (status) return status;
    partials.merge(
        edges, [&](State& sum, const State& part) { kind.merge(sum, part); },
        [&](int64_t row, const State* states) {
          for (int64_t b = 0; b < num_blocks; b++) write(row, b, states[b]);
        });
    return steep ? TOO_STEEP : OK;
  }
};
