// Sums of whole rows in registers, of values as they are or times a factor of each edge. Most layers need nothing else,
// forward and backward.
#pragma once
#include "problem.h"

enum Factor { NO_FACTOR, ONE_FACTOR, FACTOR_OF_BLOCK, FACTOR_OF_CHANNEL };

// Runs a pass chunk by chunk, then finishes the rows that several chunks share.
template <class Pass>
int run_rows(const Pass& pass) {
  const MessageProblem& p = pass.p;
  const Sorted& edges = pass.edges;
  const int64_t num_chunks = edges.num_chunks(), num_blocks = pass.num_blocks;
  int broken = 0;
  Partials<vf> partials(p.out ? num_chunks : 0, num_blocks);
#pragma omp parallel num_threads(edges.team(p.num_threads)) reduction(| : broken)
  {
    Tile tile;
    Buffer<vf> carried(num_blocks);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) broken |= !pass.run_chunk(chunk, tile, carried.data, partials);
    if (p.out) {
#pragma omp for schedule(static)
      for (int64_t row = 0; row < p.num_rows; row++)
        if (edges.ptr[row] == edges.ptr[row + 1]) std::fill_n(p.out + row * p.channels, p.channels, 0.0f);
    }
  }
  if (broken) return BROKEN_INDEX;
  if (!p.out) return OK;
  partials.merge(edges, [](vf& sum, const vf& part) { sum += part; },
                 [&](int64_t row, const vf* sums) {
                   for (int64_t b = 0; b < num_blocks; b++) store(p.out + row * p.channels + pass.channel_of(b), sums[b]);
                 });
  return OK;
}

struct Sums {
  const MessageProblem& p;
  const Sorted edges;
  Operand values = {}, factors = {};
  Factor factor = NO_FACTOR;
  int64_t num_blocks, num_whole;  // the last block overlaps the one before if the channels are not a multiple of LANES

  explicit Sums(const MessageProblem& p_)
      : p(p_),
        edges(sorted_edges(p_)),
        num_blocks((p_.channels + LANES - 1) / LANES),
        num_whole(p_.channels / LANES) {}

  // Tells whether the pass is such a sum.
  bool fits() {
    if (p.channels < LANES || p.edge_out.data || !p.ptr || p.num_edges == 0) return false;
    if (p.backward ? !fits_backward() : !fits_forward()) return false;
    if (values.map || values.dtype != FLOAT32 || values.place == ROW || values.place == NOWHERE) return false;
    if (factors.place == NOWHERE) return true;
    if (factors.place != EDGE || factors.dtype != FLOAT32) return false;
    bool runs = true, splats = true;
    for (int64_t block = 0; block < num_blocks; block++) {
      const Access access = find_block(factors, channel_of(block), LANES).access;
      runs &= access == RUN, splats &= access == SPLAT;
    }
    factor = factors.width == 1 ? ONE_FACTOR : splats ? FACTOR_OF_BLOCK : FACTOR_OF_CHANNEL;
    return runs || splats;
  }

  bool fits_forward() {
    if (p.reduction != SUM) return false;
    values = p.left;
    if (p.operation == MUL) factors = p.right;
    if (p.operation == MUL && p.left.place == EDGE) std::swap(values, factors);
    return p.operation == COPY || p.operation == MUL;
  }

  bool fits_backward() {
    values = p.gradient;
    if (p.operation == MUL) factors = p.row_side == LEFT ? p.right : p.left;
    if (p.operation == MUL && values.place == EDGE) std::swap(values, factors);
    if (p.row_side == NEITHER || p.edge_side != NEITHER || p.second.data) return false;
    return p.operation <= MUL && !(p.operation == SUB && p.row_side == RIGHT);
  }

  int64_t channel_of(int64_t block) const { return std::min(block * LANES, p.channels - LANES); }

  template <int BLOCKS, Factor FACTOR>
  void add_tile(const Tile& tile, int64_t first, vf* carried, vf* head, vf* tail) const {
    const int64_t channel = channel_of(first);
    const float* from = static_cast<const float*>(values.data) + channel;
    const int64_t* at = values.place == EDGE ? tile.position : tile.other;
    const float* factors_from = static_cast<const float*>(factors.data);
    int64_t column[BLOCKS];
    if (FACTOR != NO_FACTOR)
      for (int b = 0; b < BLOCKS; b++) column[b] = find_block(factors, channel + b * LANES, LANES).column;
    for (int s = 0; s < tile.num_segments; s++) {
      const Segment& segment = tile.segments[s];
      vf sums[BLOCKS] = {};
      if (!segment.fresh) std::copy_n(carried + first, BLOCKS, sums);
      for (int i = segment.begin; i < segment.end; i++) {
        const float* here = from + at[i] * p.channels;
        const float* ahead = from + at[i + AHEAD] * p.channels;
        for (int b = 0; b < BLOCKS; b += 16 / LANES) __builtin_prefetch(ahead + b * LANES);
        if constexpr (FACTOR == NO_FACTOR) {
          for (int b = 0; b < BLOCKS; b++) sums[b] += load(here + b * LANES);
          continue;
        }
        const float* f = factors_from + tile.position[i] * factors.width;
        __builtin_prefetch(factors_from + tile.position[i + AHEAD] * factors.width);
        for (int b = 0; b < BLOCKS; b++) {
          const float* at_block = f + (FACTOR == ONE_FACTOR ? 0 : column[b]);
          sums[b] = fma(FACTOR == FACTOR_OF_CHANNEL ? load(at_block) : splat(*at_block), load(here + b * LANES), sums[b]);
        }
      }
      if (segment.last && segment.whole) {
        for (int b = 0; b < BLOCKS; b++) store(p.out + segment.row * p.channels + channel + b * LANES, sums[b]);
      } else {
        std::copy_n(sums, BLOCKS, (!segment.last ? carried : segment.whole ? tail : head) + first);
      }
    }
  }

  template <Factor FACTOR>
  void add_rows(const Tile& tile, vf* carried, vf* head, vf* tail) const {
    int64_t block = 0;
    for (; block + 8 <= num_whole; block += 8) add_tile<8, FACTOR>(tile, block, carried, head, tail);
    for (; block + 4 <= num_whole; block += 4) add_tile<4, FACTOR>(tile, block, carried, head, tail);
    for (; block + 2 <= num_whole; block += 2) add_tile<2, FACTOR>(tile, block, carried, head, tail);
    for (; block < num_blocks; block++) add_tile<1, FACTOR>(tile, block, carried, head, tail);
  }

  bool run_chunk(int64_t chunk, Tile& tile, vf* carried, Partials<vf>& partials) const {
    bool broken = false;
    TileWalk walk(edges, chunk, p.num_edges, 0, 1, false);
    vf *head = partials.head.data + chunk * num_blocks, *tail = partials.tail.data + chunk * num_blocks;
    while (walk.next(tile, broken)) switch (factor) {
        case NO_FACTOR: add_rows<NO_FACTOR>(tile, carried, head, tail); break;
        case ONE_FACTOR: add_rows<ONE_FACTOR>(tile, carried, head, tail); break;
        case FACTOR_OF_BLOCK: add_rows<FACTOR_OF_BLOCK>(tile, carried, head, tail); break;
        default: add_rows<FACTOR_OF_CHANNEL>(tile, carried, head, tail);
      }
    if (broken) return false;
    const Segment& end = tile.segments[tile.num_segments - 1];
    if (!end.last) std::copy_n(carried, num_blocks, partials.of(chunk, end));
    return true;
  }

  int run() const { return run_rows(*this); }
};
