// What one pass over a graph's edges finds, a block at a time: the edges within clusters, and connected components.
// pipeline/graph/stream.py and components.py call the functions below.
#include <algorithm>
#include <cstdint>
#include <utility>

namespace {

// Edges ahead of the one in hand whose clusters are fetched: of large graphs these lie in no cache.
constexpr int64_t AHEAD = 64;

// Rows of the block are destinations; part[node] is the cluster of a node, negative for those that are not asked for.
template <class Node>
int64_t select(const Node* src, const int64_t* ptr, int64_t first_row, int64_t rows, const int32_t* part,
               const int32_t* local, int32_t* out_src, int32_t* out_dst, int32_t* out_part, int32_t* position) {
  const int64_t end = ptr[rows];
  int64_t kept = 0, written = 0;
  for (int64_t row = 0; row < rows; row++) {
    const int32_t own = part[first_row + row];
    if (own < 0) continue;
    const int32_t dst = local[first_row + row];
    // An edge that is not kept is written behind the last, and then over.
    for (int64_t e = ptr[row]; e < ptr[row + 1]; e++) {
      __builtin_prefetch(&part[src[std::min(e + AHEAD, end - 1)]]);
      position[kept] = int32_t(e);
      kept += part[src[e]] == own;
    }
    for (; written < kept; written++) {
      out_src[written] = int32_t(src[position[written]]);
      out_dst[written] = dst;
      out_part[written] = own;
    }
  }
  for (int64_t e = 0; e < kept; e++) out_src[e] = local[out_src[e]];
  return kept;
}

// The lowest node that is known to be connected with this one; the way there is halved.
int32_t find(int32_t* parent, int32_t node) {
  while (parent[node] != node) node = parent[node] = parent[parent[node]];
  return node;
}

template <class Node>
void join(const Node* src, const int64_t* ptr, int64_t first_row, int64_t rows, int32_t* parent) {
  for (int64_t row = 0; row < rows; row++) {
    int32_t own = find(parent, int32_t(first_row + row));
    for (int64_t e = ptr[row]; e < ptr[row + 1]; e++) {
      int32_t other = find(parent, int32_t(src[e]));
      if (own > other) std::swap(own, other);
      parent[other] = own;
    }
  }
}

}  // namespace

extern "C" {

// Joins the components of both ends of a block's edges; `parent` begins with every node its own.
void stream_join_32(const int32_t* src, const int64_t* ptr, int64_t first_row, int64_t rows, int32_t* parent) {
  join(src, ptr, first_row, rows, parent);
}

void stream_join_64(const int64_t* src, const int64_t* ptr, int64_t first_row, int64_t rows, int32_t* parent) {
  join(src, ptr, first_row, rows, parent);
}

// Writes to every node the lowest one of its component.
void stream_roots(int32_t* parent, int64_t num_nodes) {
  for (int64_t node = 0; node < num_nodes; node++) parent[node] = find(parent, int32_t(node));
}

// Returns the number of edges kept. `ptr` counts from the block's first edge; the outputs have room for one edge more
// than the block has.
int64_t stream_select_32(const int32_t* src, const int64_t* ptr, int64_t first_row, int64_t rows, const int32_t* part,
                         const int32_t* local, int32_t* out_src, int32_t* out_dst, int32_t* out_part,
                         int32_t* position) {
  return select(src, ptr, first_row, rows, part, local, out_src, out_dst, out_part, position);
}

int64_t stream_select_64(const int64_t* src, const int64_t* ptr, int64_t first_row, int64_t rows, const int32_t* part,
                         const int32_t* local, int32_t* out_src, int32_t* out_dst, int32_t* out_part,
                         int32_t* position) {
  return select(src, ptr, first_row, rows, part, local, out_src, out_dst, out_part, position);
}
}
