// Edges sorted by destination, sorted by source as well.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

// Writes the number of its row to every edge.
template <class Value>
void write_rows(const int64_t* ptr, int64_t rows, Value value, int64_t* to) {
  for (int64_t row = 0; row < rows; row++) std::fill(to + ptr[row], to + ptr[row + 1], value(row));
}

// Writes edges that are sorted by destination (src, dst) sorted by source (T_src, T_dst, T_indptr), with their places in
// the order by destination (T_perm). Edges of a source keep their order.
inline void transpose(const int64_t* src, const int64_t* dst, int64_t num_edges, int64_t rows, int64_t* T_src,
                      int64_t* T_dst, int64_t* T_indptr, int64_t* T_perm) {
  std::fill_n(T_indptr, rows + 1, 0);
  for (int64_t e = 0; e < num_edges; e++) T_indptr[src[e] + 1]++;
  for (int64_t row = 0; row < rows; row++) T_indptr[row + 1] += T_indptr[row];
  std::vector<int64_t> next(T_indptr, T_indptr + rows);
  for (int64_t e = 0; e < num_edges; e++) {
    const int64_t to = next[src[e]]++;
    T_perm[to] = e;
    T_dst[to] = dst[e];
  }
  write_rows(T_indptr, rows, [](int64_t row) { return row; }, T_src);
}
