// The arguments of a pass over edges, and how its operands are read.
#pragma once
#include "../kernels/walk.h"

enum Place { NOWHERE = 0, ROW = 1, OTHER = 2, EDGE = 3 };
enum Dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };
enum Operation { COPY = 0, ADD = 1, SUB = 2, MUL = 3, DIV = 4, EXP = 5 };
enum Reduction { SUM = 0, MAX = 1, MIN = 2, PROD = 3, NO_REDUCTION = 4 };
enum Side { NEITHER = 0, LEFT = 1, RIGHT = 2 };

// Values of rows of nodes or of edges. Those that broadcast have a map: the column that each channel reads.
struct Operand {  // cpu.py reads the fields of this struct and of the next one from here
  void* data;
  const int32_t* map;  // null reads as the identity
  int64_t width, place, dtype;
};

struct MessageProblem {
  int64_t num_rows, num_others, num_edges, channels, num_threads;
  int64_t ptr_wide, other_wide, position_wide;
  const void *ptr, *other, *position;  // without ptr, `position` has the row of each edge, which is in its place
  int64_t operation, reduction, backward;
  Operand left, right;
  // forward: the results of rows, and what backward needs of max, min (ties) and prod (zeros, product of the others)
  float *out, *stat, *stat2;
  // Backward: factors of the gradient, and the operands whose gradients are summed over rows or written for edges.
  // Forward: `second` makes softmax of EXP, and the gradient of softmax of MUL.
  Operand gradient, second;
  int64_t row_side, edge_side;
  // forward: the messages; backward: the gradient of an operand of the edges
  Operand edge_out;
};

// Walks edges that are not sorted, of which nothing is reduced: every tile is one segment.
struct UnsortedWalk {
  const Sorted& edges;  // `position` has the row of each edge
  int64_t at;
  const int64_t end;

  UnsortedWalk(const Sorted& edges_, int64_t chunk)
      : edges(edges_), at(chunk * edges_.chunk_edges()), end(std::min(edges_.num_edges, at + edges_.chunk_edges())) {}

  // As TileWalk::next.
  bool next(Tile& tile, bool& broken) {
    if (at >= end) return false;
    const int n = tile.num_edges = int(std::min<int64_t>(TILE, end - at));
    const int more = int(std::min<int64_t>(AHEAD, edges.num_edges - at - n));
    tile.segments[0] = {0, 0, n, true, true, true};
    tile.num_segments = 1;
    broken |= !TileWalk::read(edges.position, edges.num_rows, at, n, more, tile.row);
    broken |= !TileWalk::read(edges.other, edges.num_others, at, n, more, tile.other);
    if (broken) return false;
    for (int i = 0; i < n + AHEAD; i++) tile.position[i] = std::min(at + i, edges.num_edges - 1);
    at += n;
    return true;
  }
};

// How the lanes of a block of channels read or write an operand: side by side, all the same column, or any columns.
enum Access { RUN, SPLAT, MAPPED };

struct Block {
  Access access;
  int64_t column;  // of the first lane
};

INLINE Block find_block(const Operand& operand, int64_t channel, int lanes) {
  if (!operand.map) return {RUN, channel};
  const int32_t* map = operand.map + channel;
  bool run = true, splat = true;
  for (int lane = 1; lane < lanes; lane++) run &= map[lane] == map[0] + lane, splat &= map[lane] == map[0];
  return {splat ? SPLAT : run ? RUN : MAPPED, map[0]};
}

struct Bfloat16 {
  uint16_t bits;
  INLINE float wide() const {
    const uint32_t word = uint32_t(bits) << 16;
    float out;
    std::memcpy(&out, &word, 4);
    return out;
  }
  static INLINE Bfloat16 narrow(float a) {
    uint32_t word;
    std::memcpy(&word, &a, 4);
    if (a != a) return {uint16_t(word >> 16 | 0x40)};
    return {uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16)};  // ties to even
  }
};

struct Float16 {
  uint16_t bits;
  INLINE float wide() const {
    // The exponent is rescaled by a product, which also makes subnormal numbers normal.
    uint32_t word = uint32_t(bits & 0x7fff) << 13;
    const bool special = word >= 0x0f800000;
    float out;
    std::memcpy(&out, &word, 4);
    out *= 0x1p112f;
    std::memcpy(&word, &out, 4);
    if (special) word |= 0x7f800000;
    word |= uint32_t(bits & 0x8000) << 16;
    std::memcpy(&out, &word, 4);
    return out;
  }
  static INLINE Float16 narrow(float a) {
    uint32_t word;
    std::memcpy(&word, &a, 4);
    const uint16_t sign = word >> 16 & 0x8000;
    word &= 0x7fffffff;
    if (word > 0x7f800000) return {uint16_t(sign | 0x7e00)};
    if (word >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // rounds to 65,536 or more
    if (word < 0x38800000) {  // subnormal: adding 0.5 leaves multiples of 2^-24 in the low bits
      float magnitude;
      std::memcpy(&magnitude, &word, 4);
      magnitude += 0.5f;
      std::memcpy(&word, &magnitude, 4);
      return {uint16_t(sign | (word - 0x3f000000))};
    }
    return {uint16_t(sign | ((word - 0x38000000 + 0xfff + (word >> 13 & 1)) >> 13))};
  }
};

INLINE float widen(float a) { return a; }
INLINE float widen(Bfloat16 a) { return a.wide(); }
INLINE float widen(Float16 a) { return a.wide(); }
INLINE void put(float* to, float a) { *to = a; }
INLINE void put(Bfloat16* to, float a) { *to = Bfloat16::narrow(a); }
INLINE void put(Float16* to, float a) { *to = Float16::narrow(a); }

template <class T>
INLINE vf load_wide(const T* from, int lanes) {
  vf out = {};
  for (int lane = 0; lane < lanes; lane++) out[lane] = widen(from[lane]);
  return out;
}
template <>
INLINE vf load_wide(const float* from, int lanes) {
  return load(from, lanes);
}

template <class T>
INLINE void store_narrow(T* to, vf a, int lanes) {
  for (int lane = 0; lane < lanes; lane++) put(to + lane, a[lane]);
}
template <>
INLINE void store_narrow(float* to, vf a, int lanes) {
  store(to, a, lanes);
}
