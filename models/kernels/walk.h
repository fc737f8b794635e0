// The walk of every pass: threads take chunks of edges, tile by tile; then come the rows without edges, then those that
// several chunks share. What a pass does with a tile and with a row is its own.
#pragma once
#include "tiles.h"

// What a pass returns, the worst of its chunks.
constexpr int OK = 0, BROKEN_INDEX = 1, OUT_OF_MEMORY = 2, TOO_STEEP = 3, BROKEN_RELATION = 4;

// Calls empty(row) for every row without edges, in parallel within a parallel region.
template <class Empty>
void visit_empty_rows(const Sorted& edges, const Empty& empty) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < edges.num_rows; row++)
    if (edges.ptr[row] == edges.ptr[row + 1]) empty(row);
}

// Calls run(chunk, room) for every chunk, and empty(row) for every row without edges. A thread has one room, which
// make() makes. Returns the largest status that a chunk returns. A pass that writes no rows says so.
template <class Make, class Run, class Empty>
int run_chunks(const Sorted& edges, int64_t num_threads, const Make& make, const Run& run, const Empty& empty,
               bool has_rows = true) {
  int status = OK;
  const int64_t num_chunks = edges.num_chunks();
#pragma omp parallel num_threads(edges.team(num_threads)) reduction(max : status)
  {
    auto room = make();
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) status = std::max(status, int(run(chunk, room)));
    if (has_rows) visit_empty_rows(edges, empty);
  }
  return status;
}

// Calls run(tile) for every tile of a chunk, until one returns another status than OK. The state of a row that goes on
// behind the chunk is moved from `carried` to `partials`, if there are any.
template <class Walk, class State, class Run>
INLINE int walk_tiles(Walk walk, int64_t chunk, Tile& tile, const State* carried, Partials<State>* partials,
                      const Run& run) {
  bool broken = false;
  while (walk.next(tile, broken))
    if (const int status = run(tile)) return status;
  if (broken) return BROKEN_INDEX;
  const Segment& end = tile.segments[tile.num_segments - 1];
  if (partials && !end.last) std::copy_n(carried, partials->num_blocks, partials->of(chunk, end));
  return OK;
}
