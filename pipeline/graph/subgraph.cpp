// The subgraph that some nodes induce, in one pass over their rows. pipeline/graph/subgraph.py calls the functions below.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "transpose.h"

namespace {

constexpr int64_t NUM_CHUNKS = 64;  // of rows with about equally many edges; no result depends on it

struct Subgraph {
  int64_t num_nodes = 0, num_edges = 0;
  std::vector<int64_t> indptr;                  // of the destinations' edges, [num_nodes + 1]
  std::vector<int64_t> first_row;               // of each chunk, and the end
  std::vector<std::vector<int32_t>> src, edge;  // of each chunk: local sources, positions in the graph
};

// Chunk c takes the rows whose edges, counted over all rows, begin in its share.
std::vector<int64_t> divide(const std::vector<int64_t>& begin) {
  const int64_t rows = int64_t(begin.size()) - 1;
  std::vector<int64_t> first(NUM_CHUNKS + 1, rows);
  for (int64_t c = 0; c < NUM_CHUNKS; c++)
    first[c] = std::lower_bound(begin.begin(), begin.end() - 1, begin[rows] * c / NUM_CHUNKS) - begin.begin();
  return first;
}

}  // namespace

extern "C" {

// Selects the edges between the nodes given; their number is written to `num_edges`.
Subgraph* subgraph_select(const int32_t* indptr, const int32_t* src, int64_t num_graph_nodes, const int64_t* nodes,
                          int64_t num_nodes, int num_threads, int64_t* num_edges) try {
  auto out = std::make_unique<Subgraph>();
  out->num_nodes = num_nodes;
  std::vector<int32_t> local(num_graph_nodes, -1);
  std::vector<int64_t> begin(num_nodes + 1, 0);
  for (int64_t i = 0; i < num_nodes; i++) {
    local[nodes[i]] = int32_t(i);
    begin[i + 1] = begin[i] + indptr[nodes[i] + 1] - indptr[nodes[i]];
  }
  out->first_row = divide(begin);
  out->src.resize(NUM_CHUNKS);
  out->edge.resize(NUM_CHUNKS);
  out->indptr.assign(num_nodes + 1, 0);
#pragma omp parallel num_threads(num_threads)
  {
    // Kept from chunk to chunk: new memory for all edges looked at would cost more than looking at them.
    std::vector<int32_t> kept_src, kept_edge;
#pragma omp for schedule(dynamic, 1)
    for (int64_t c = 0; c < NUM_CHUNKS; c++) {
      const int64_t first = out->first_row[c], last = out->first_row[c + 1];
      // One more than needed: an edge that is not kept is written behind the last, and then over.
      const size_t most = begin[last] - begin[first] + 1;
      if (kept_src.size() < most) kept_src.resize(most), kept_edge.resize(most);
      int64_t kept = 0;
      for (int64_t row = first; row < last; row++) {
        const int64_t before = kept;
        if (row + 1 < last) __builtin_prefetch(src + indptr[nodes[row + 1]]);
        for (int32_t e = indptr[nodes[row]], end = indptr[nodes[row] + 1]; e < end; e++) {
          const int32_t at = local[src[e]];
          kept_src[kept] = at;
          kept_edge[kept] = e;
          kept += at >= 0;
        }
        out->indptr[row + 1] = kept - before;
      }
      out->src[c].assign(kept_src.begin(), kept_src.begin() + kept);
      out->edge[c].assign(kept_edge.begin(), kept_edge.begin() + kept);
    }
  }
  for (int64_t row = 0; row < num_nodes; row++) out->indptr[row + 1] += out->indptr[row];
  *num_edges = out->num_edges = out->indptr[num_nodes];
  return out.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

// Writes the edges by destination (src, dst, indptr), their positions in the graph, and the same edges by source
// (T_src, T_dst, T_indptr) with their places in the order by destination (T_perm).
void subgraph_write(const Subgraph* graph, int num_threads, int64_t* src, int64_t* dst, int64_t* indptr, int64_t* edge,
                    int64_t* T_src, int64_t* T_dst, int64_t* T_indptr, int64_t* T_perm) {
  const int64_t rows = graph->num_nodes;
  std::copy(graph->indptr.begin(), graph->indptr.end(), indptr);
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
  for (int64_t c = 0; c < NUM_CHUNKS; c++) {
    const int64_t first = graph->first_row[c], last = graph->first_row[c + 1];
    const int64_t to = indptr[first], count = indptr[last] - to;
    std::copy_n(graph->src[c].data(), count, src + to);
    std::copy_n(graph->edge[c].data(), count, edge + to);
    write_rows(indptr + first, last - first, [=](int64_t row) { return first + row; }, dst);
  }
  transpose(src, dst, graph->num_edges, rows, T_src, T_dst, T_indptr, T_perm);
}

void subgraph_free(Subgraph* graph) { delete graph; }
}
