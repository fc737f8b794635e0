// Walks over edges that are sorted by row. They are cut into chunks, the unit of scheduling and reduction, and into tiles
// that fit into the first-level cache. The cuts depend only on the number of edges, never on the number of threads. They
// may lie inside of a row, whose partial results are merged in the order of the chunks.
#pragma once
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "simd.h"

constexpr int GROUP = 8;   // edge features held in registers at a time
constexpr int AHEAD = 24;  // edges between a prefetch and its use
constexpr int MAX_CHUNKS = 256;
constexpr size_t HUGE_PAGE = 2 << 20;  // bytes
constexpr int64_t MIN_CHUNK = 8 * TILE;

// Written so that the compiler compares several at once: their bits together are negative if any number is outside.
template <class T>
INLINE bool all_below(int64_t bound, const T* numbers, int64_t count) {
  int64_t bits = 0;
  for (int64_t i = 0; i < count; i++) bits |= numbers[i] | (bound - 1 - numbers[i]);
  return bits >= 0;
}

// int32 or int64; null reads as the identity.
struct Index {
  const void* data;
  bool wide;
  INLINE int64_t operator[](int64_t i) const {
    if (!data) return i;
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  INLINE void read(int64_t first, int count, int64_t* to) const {
    if (!data) {
      for (int i = 0; i < count; i++) to[i] = first + i;
    } else if (wide) {
      std::copy_n(static_cast<const int64_t*>(data) + first, count, to);
    } else {
      std::copy_n(static_cast<const int32_t*>(data) + first, count, to);
    }
  }
  // Returns `count` of them where they lie, or copied to `to`.
  INLINE const int64_t* view(int64_t first, int count, int64_t* to) const {
    if (data && wide) return static_cast<const int64_t*>(data) + first;
    read(first, count, to);
    return to;
  }
  // Tells whether those from `begin` to before `end` are in [0, bound).
  bool is_below(int64_t bound, int64_t begin, int64_t end) const {
    if (!data) return end <= bound;
    return wide ? all_below(bound, static_cast<const int64_t*>(data) + begin, end - begin)
                : all_below(bound, static_cast<const int32_t*>(data) + begin, end - begin);
  }
};

// Edges grouped by row: those of row r are ptr[r] ... ptr[r + 1] - 1; `other` is the node at the far end, `position`
// the row of the edge features.
struct Sorted {
  int64_t num_rows, num_others, num_edges;
  Index ptr, other, position;

  int64_t chunk_edges() const {
    int64_t per_chunk = (num_edges + MAX_CHUNKS - 1) / MAX_CHUNKS;
    return std::max(MIN_CHUNK, (per_chunk + TILE - 1) / TILE * TILE);
  }
  int64_t num_chunks() const { return (num_edges + chunk_edges() - 1) / chunk_edges(); }

  // Tells whether the edges `begin` ... `end` - 1, of which the first is in `row`, lie in rows that follow each other.
  bool rows_are_sorted(int64_t row, int64_t begin, int64_t end) const {
    if (num_rows == 0 || ptr[row] > begin) return false;
    for (; row < num_rows; row++) {
      if (ptr[row + 1] < ptr[row]) return false;
      if (ptr[row + 1] >= end) return true;
    }
    return false;
  }

  // At most one thread per chunk, as a team of threads costs more than a small graph.
  int team(int64_t num_threads) const { return int(std::max<int64_t>(1, std::min(num_threads, num_chunks()))); }

  int64_t row_of(int64_t edge) const {  // the last row that starts at or before `edge`
    int64_t low = 0, high = num_rows;
    while (high - low > 1) {
      int64_t middle = (low + high) / 2;
      (ptr[middle] <= edge ? low : high) = middle;
    }
    return low;
  }
};

// The edges of a problem, whose structure has fields of these names.
template <class Problem>
Sorted sorted_edges(const Problem& p) {
  return {p.num_rows,
          p.num_others,
          p.num_edges,
          {p.ptr, bool(p.ptr_wide)},
          {p.other, bool(p.other_wide)},
          {p.position, bool(p.position_wide)}};
}

// Edges `begin` ... `end` - 1 of a tile, all of one row.
struct Segment {
  int64_t row;
  int begin, end;
  bool fresh;  // nothing of this row was seen before in this chunk
  bool last;   // the row ends here
  bool whole;  // the row began in this chunk
};

struct Tile {
  int num_edges, num_segments, num_upcoming;
  Segment segments[TILE];
  // Offsets of each edge's two nodes in arrays of nodes, and its row in arrays of edges. Past the end of the tile, for
  // prefetching: the row of the last edge, and what the next edges have if it is in range.
  int64_t row[TILE + AHEAD], other[TILE + AHEAD], position[TILE + AHEAD];
  int64_t upcoming[TILE];  // positions of the next tile's edges
};

// Walks the edges `begin` ... `end` - 1 tile by tile.
struct TileWalk {
  const Sorted& edges;
  const int64_t chunk_begin, chunk_end;
  const int64_t num_positions, row_stride, other_stride;
  const bool looks_ahead;
  int64_t at, row;

  // A pass that does not read `row` of a tile gives 0 for its stride; one that does not read `upcoming` says so.
  TileWalk(const Sorted& edges_, int64_t chunk, int64_t num_positions_, int64_t row_stride_, int64_t other_stride_,
           bool looks_ahead_ = true)
      : edges(edges_),
        chunk_begin(chunk * edges_.chunk_edges()),
        chunk_end(std::min(edges_.num_edges, chunk_begin + edges_.chunk_edges())),
        num_positions(num_positions_),
        row_stride(row_stride_),
        other_stride(other_stride_),
        looks_ahead(looks_ahead_),
        at(chunk_begin),
        row(edges_.row_of(chunk_begin)) {}

  // False at the end of the chunk; `broken` is set if an index points outside of its array.
  bool next(Tile& tile, bool& broken) {
    if (at >= chunk_end) return false;
    const int64_t first = at;
    const int n = tile.num_edges = static_cast<int>(std::min<int64_t>(TILE, chunk_end - at));
    broken |= !cut(tile, first, n);
    const int more = int(std::min<int64_t>(AHEAD, edges.num_edges - first - n));
    broken |= !read(edges.other, edges.num_others, first, n, more, tile.other);
    broken |= !read(edges.position, num_positions, first, n, more, tile.position);
    if (broken) return false;
    if (other_stride != 1)
      for (int i = 0; i < n + AHEAD; i++) tile.other[i] *= other_stride;
    if (row_stride) std::fill_n(tile.row + n, AHEAD, tile.row[n - 1]);
    if (looks_ahead) {
      tile.num_upcoming = int(std::min<int64_t>(TILE, edges.num_edges - at));
      edges.position.read(at, tile.num_upcoming, tile.upcoming);
    }
    return true;
  }

  // Cuts the next n edges into segments; false if the row pointers are not a running sum of all edges.
  bool cut(Tile& tile, int64_t first, int n) {
    tile.num_segments = 0;
    while (at < first + n) {
      int64_t row_end = edges.ptr[row + 1];
      while (row_end <= at && row + 1 < edges.num_rows) row_end = edges.ptr[++row + 1];
      const int64_t row_begin = edges.ptr[row], end = std::min(row_end, first + n);
      if (end <= at) return false;
      tile.segments[tile.num_segments++] = {row,
                                            int(at - first),
                                            int(end - first),
                                            at == row_begin || at == chunk_begin,
                                            end == row_end,
                                            row_begin >= chunk_begin};
      if (row_stride) std::fill(tile.row + (at - first), tile.row + (end - first), row * row_stride);
      at = end;
    }
    return true;
  }

  // Reads n indices and, for prefetching, those behind them, which the last one replaces if any is missing or outside.
  // False if one of the first n is not in [0, bound).
  static bool read(const Index& index, int64_t bound, int64_t first, int n, int more, int64_t* to) {
    index.read(first, n + more, to);
    if (!all_below(bound, to, n)) return false;
    const int good = all_below(bound, to + n, more) ? more : 0;
    std::fill(to + n + good, to + n + AHEAD, to[n - 1]);
    return true;
  }
};

// Uninitialised memory, aligned to cache lines.
template <class T>
struct Buffer {
  T* data;
  explicit Buffer(int64_t count) {
    const size_t bytes = sizeof(T) * std::max<int64_t>(count, 1), alignment = bytes < HUGE_PAGE ? 64 : HUGE_PAGE;
    data = static_cast<T*>(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
    if (!data) throw std::bad_alloc();
#ifdef __linux__
    // Random reads from small pages would wait for address translation.
    if (alignment == HUGE_PAGE) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  }
  Buffer(int64_t count, T value) : Buffer(count) { std::fill(data, data + count, value); }
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data); }
  T& operator[](int64_t i) { return data[i]; }
};

// States of rows that several chunks share: for each chunk, of the row it begins in and of the row it ends in.
template <class State>
struct Partials {
  int64_t num_blocks;
  Buffer<State> head, tail;
  Partials(int64_t num_chunks, int64_t num_blocks_)
      : num_blocks(num_blocks_), head(num_chunks * num_blocks_), tail(num_chunks * num_blocks_) {}

  // Returns the place for the state of a row that began before the chunk or goes on after it.
  State* of(int64_t chunk, const Segment& segment) {
    return (segment.whole ? tail.data : head.data) + chunk * num_blocks;
  }

  // Merges the states of every row of more than one chunk, and calls done(row, states of all blocks).
  template <class Merge, class Done>
  void merge(const Sorted& edges, Merge merge, Done done) {
    merge_rows(
        edges,
        [&](State* sum, const State* part) {
          for (int64_t b = 0; b < num_blocks; b++) merge(sum[b], part[b]);
        },
        done);
  }

  // The same with merge(states of all blocks, those of another chunk).
  template <class Merge, class Done>
  void merge_rows(const Sorted& edges, Merge merge, Done done) {
    std::vector<State> sum(num_blocks);
    const int64_t step = edges.chunk_edges();
    for (int64_t chunk = 0; chunk < edges.num_chunks(); chunk++) {
      const int64_t begin = chunk * step, end = std::min(edges.num_edges, begin + step);
      int64_t row = edges.row_of(begin);
      if (edges.ptr[row] < begin) {
        merge(sum.data(), head.data + chunk * num_blocks);
        if (edges.ptr[row + 1] <= end) done(row, sum.data());
      }
      row = edges.row_of(end - 1);
      if (edges.ptr[row] >= begin && edges.ptr[row + 1] > end)
        std::copy_n(tail.data + chunk * num_blocks, num_blocks, sum.data());
    }
  }
};
