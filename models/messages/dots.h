// Dot products of the rows of both ends of each edge, a head at a time, and in the same walk a sum of whole rows: the
// scores of dot-product attention, and the gradient of the factors of edges in a sum.
#pragma once
#include "sums.h"

struct Dots {
  const MessageProblem& p;
  const Sorted edges;
  Operand here = {}, there = {}, factors = {};  // of the row, of the other end, of the edge
  const int64_t num_blocks;
  std::vector<int64_t> column;  // of the edge's row that each block belongs to
  int64_t head_blocks = 1;      // blocks of the same column, which follow each other

  explicit Dots(const MessageProblem& p_)
      : p(p_), edges(sorted_edges(p_)), num_blocks(p_.channels / LANES), column(num_blocks) {}

  // Tells whether the pass is made of such products.
  bool fits() {
    if (p.channels % LANES || !p.edge_out.data || !p.edge_out.map || p.edge_out.dtype != FLOAT32) return false;
    if (p.operation != MUL || p.second.data || !(p.backward ? fits_backward() : fits_forward())) return false;
    if (here.place == OTHER) std::swap(here, there);
    for (const Operand& operand : {here, there})
      if (operand.map || operand.dtype != FLOAT32) return false;
    if (here.place != ROW || there.place != OTHER) return false;
    for (int64_t block = 0; block < num_blocks; block++) {
      const Block place = find_block(p.edge_out, block * LANES, LANES);
      if (place.access != SPLAT) return false;
      column[block] = place.column;
      // A sum of rows needs the factors of the same heads.
      if (!p.out) continue;
      const Block factor = find_block(factors, block * LANES, LANES);
      if (factors.dtype != FLOAT32 || factor.access != SPLAT || factor.column != place.column) return false;
    }
    return has_heads();
  }

  // Tells whether the columns are 0, 0, ..., 1, 1, ... with 1, 2, 4 or a multiple of 8 blocks each.
  bool has_heads() {
    const int64_t width = p.edge_out.width;
    head_blocks = num_blocks / width;
    for (int64_t block = 0; block < num_blocks; block++)
      if (column[block] * head_blocks != block / head_blocks * head_blocks) return false;
    return num_blocks % width == 0 && (head_blocks <= 2 || head_blocks == 4 || head_blocks % 8 == 0);
  }

  bool fits_forward() {
    here = p.left, there = p.right;
    return p.reduction == NO_REDUCTION && !p.out;
  }

  bool fits_backward() {
    here = p.edge_side == LEFT ? p.right : p.left, there = p.gradient;
    factors = p.edge_side == LEFT ? p.left : p.right;
    return p.edge_side != NEITHER && factors.place == EDGE && (!p.out || here.place == ROW);
  }

  // HEAD is the number of blocks of the same column.
  template <int BLOCKS, int HEAD, bool SUMMED>
  void run_tile(const Tile& tile, int64_t first, vf* carried, vf* head, vf* tail) const {
    const float *from = static_cast<const float*>(there.data) + first * LANES, *factors_from = nullptr;
    if (SUMMED) factors_from = static_cast<const float*>(factors.data);
    float* to_edges = static_cast<float*>(p.edge_out.data);
    int64_t columns[BLOCKS / HEAD];
    for (int k = 0; k < BLOCKS / HEAD; k++) columns[k] = column[first + k * HEAD];
    const bool opens = first % head_blocks == 0;
    for (int s = 0; s < tile.num_segments; s++) {
      const Segment& segment = tile.segments[s];
      vf sums[BLOCKS] = {};
      if (SUMMED && !segment.fresh) std::copy_n(carried + first, BLOCKS, sums);
      for (int i = segment.begin; i < segment.end; i++) {
        const float* row = static_cast<const float*>(here.data) + tile.row[i] * p.channels + first * LANES;
        const float *other = from + tile.other[i] * p.channels, *ahead = from + tile.other[i + AHEAD] * p.channels;
        float* to = to_edges + tile.position[i] * p.edge_out.width;
        for (int b = 0; b < BLOCKS; b += 16 / LANES) __builtin_prefetch(ahead + b * LANES);
        __builtin_prefetch(to_edges + tile.position[i + AHEAD] * p.edge_out.width, 1);
        if (SUMMED) __builtin_prefetch(factors_from + tile.position[i + AHEAD] * factors.width);
        if (!p.ptr) prefetch_row<BLOCKS>(tile, i, first);
#pragma GCC unroll 8
        for (int k = 0; k < BLOCKS / HEAD; k++) {
          vf product = {}, factor = {};
          if (SUMMED) factor = splat(factors_from[tile.position[i] * factors.width + columns[k]]);
#pragma GCC unroll 8
          for (int b = k * HEAD; b < (k + 1) * HEAD; b++) {
            const vf value = load(other + b * LANES);
            if (SUMMED) sums[b] = fma(factor, value, sums[b]);
            product = fma(value, load(row + b * LANES), product);
          }
          to[columns[k]] = quick_sum(product) + (opens ? 0.0f : to[columns[k]]);
        }
      }
      if (!SUMMED) continue;
      if (segment.last && segment.whole) {
        finish(segment.row, first, sums, BLOCKS);
      } else {
        std::copy_n(sums, BLOCKS, (!segment.last ? carried : segment.whole ? tail : head) + first);
      }
    }
  }

  template <int BLOCKS>
  INLINE void prefetch_row(const Tile& tile, int i, int64_t first) const {
    const float* ahead = static_cast<const float*>(here.data) + tile.row[i + AHEAD] * p.channels + first * LANES;
    for (int b = 0; b < BLOCKS; b += 16 / LANES) __builtin_prefetch(ahead + b * LANES);
  }

  template <int BLOCKS, int HEAD, bool SUMMED>
  void run_groups(const Tile& tile, vf* carried, vf* head, vf* tail) const {
    for (int64_t block = 0; block < num_blocks; block += BLOCKS)
      run_tile<BLOCKS, HEAD, SUMMED>(tile, block, carried, head, tail);
  }

  template <bool SUMMED>
  void run_tile(const Tile& tile, vf* carried, vf* head, vf* tail) const {
    const bool by_8 = num_blocks % 8 == 0;
    if (head_blocks % 8 == 0) return run_groups<8, 8, SUMMED>(tile, carried, head, tail);
    if (head_blocks == 4 && by_8) return run_groups<8, 4, SUMMED>(tile, carried, head, tail);
    if (head_blocks == 2 && by_8) return run_groups<8, 2, SUMMED>(tile, carried, head, tail);
    if (head_blocks == 1 && by_8) return run_groups<8, 1, SUMMED>(tile, carried, head, tail);
    if (head_blocks == 1 && num_blocks % 4 == 0) return run_groups<4, 1, SUMMED>(tile, carried, head, tail);
    if (head_blocks == 4) return run_groups<4, 4, SUMMED>(tile, carried, head, tail);
    if (head_blocks == 2) return run_groups<2, 2, SUMMED>(tile, carried, head, tail);
    run_groups<1, 1, SUMMED>(tile, carried, head, tail);
  }

  struct Room {  // of one thread
    Tile tile;
    Buffer<vf> carried;
    explicit Room(int64_t num_blocks) : carried(num_blocks) {}
  };

  int run_chunk(int64_t chunk, Room& room, Partials<vf>& partials) const {
    vf *head = partials.head.data + chunk * num_blocks, *tail = partials.tail.data + chunk * num_blocks;
    const auto run = [&](const Tile& tile) {
      p.out ? run_tile<true>(tile, room.carried.data, head, tail)
            : run_tile<false>(tile, room.carried.data, head, tail);
      return OK;
    };
    Partials<vf>* const kept = p.out ? &partials : nullptr;
    if (!p.ptr) return walk_tiles(UnsortedWalk(edges, chunk), chunk, room.tile, room.carried.data, kept, run);
    return walk_tiles(TileWalk(edges, chunk, p.num_edges, 1, 1, false), chunk, room.tile, room.carried.data, kept, run);
  }

  void finish(int64_t row, int64_t first, const vf* sums, int64_t count) const {
    for (int64_t b = 0; b < count; b++) store(p.out + row * p.channels + (first + b) * LANES, sums[b]);
  }

  int run() const { return run_rows(*this); }
};
