// Neighbours drawn without replacement. pipeline/graph/sampling.py calls the functions below and has them in numpy too.
#include <cstdint>
#include <vector>

#include "../../models/kernels/hash.h"
#include "transpose.h"

namespace {

constexpr int64_t AHEAD = 16;  // rows or edges that are fetched before they are needed

// Draws `count` numbers below `degree`, which is larger, by Floyd's algorithm: the j-th is below degree - count + j + 1,
// or that itself if it was drawn before. `taken` is all zero before and after.
inline void draw_some(int64_t degree, int64_t count, uint64_t state, std::vector<char>& taken, int64_t* to) {
  if (int64_t(taken.size()) < degree) taken.resize(degree);
  for (int64_t j = 0; j < count; j++) {
    const int64_t last = degree - count + j;
    const uint64_t random = mix(state + (j + 1) * GOLDEN);
    int64_t at = below(random, last + 1);
    if (taken[at]) at = last;
    taken[at] = 1;
    to[j] = at;
  }
  for (int64_t j = 0; j < count; j++) taken[to[j]] = 0;
}

template <class Index>
void draw(const Index* indptr, const int64_t* nodes, int64_t num_nodes, const int64_t* ptr, uint64_t key,
          int64_t* position, int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<char> taken;  // which neighbours of a node; all zero between two nodes
#pragma omp for schedule(dynamic, 64)
    for (int64_t i = 0; i < num_nodes; i++) {
      if (i + AHEAD < num_nodes) __builtin_prefetch(indptr + nodes[i + AHEAD]);
      const int64_t first = indptr[nodes[i]], degree = indptr[nodes[i] + 1] - first, count = ptr[i + 1] - ptr[i];
      int64_t* const to = position + ptr[i];
      if (count == degree) {
        for (int64_t j = 0; j < count; j++) to[j] = first + j;
        continue;
      }
      draw_some(degree, count, mix(key ^ mix(nodes[i])), taken, to);
      for (int64_t j = 0; j < count; j++) to[j] += first;
      std::sort(to, to + count);
    }
  }
}

// The relation of each edge, a whole number in float32 at every `stride`-th place, and the most edges of each relation
// that a node draws; below 0: all.
struct Relations {
  const float* number;
  int64_t stride;
  const int64_t* most;
  int64_t count;

  int32_t of(int64_t edge) const { return int32_t(number[edge * stride]); }
  int64_t drawn(int32_t relation, int64_t degree) const {
    return most[relation] < 0 ? degree : std::min(degree, most[relation]);
  }
};

// How many edges of each relation enter a node.
struct Sizes {
  std::vector<int64_t> size;
  std::vector<int32_t> present;  // relations with an edge

  explicit Sizes(int64_t num_relations) : size(num_relations) {}
  void count(const Relations& relations, int64_t first, int64_t end) {
    for (const int32_t relation : present) size[relation] = 0;
    present.clear();
    for (int64_t e = first; e < end; e++) {
      const int32_t relation = relations.of(e);
      if (size[relation]++ == 0) present.push_back(relation);
    }
  }
};

template <class Index>
void count_by_relation(const Index* indptr, const Relations& relations, const int64_t* nodes, int64_t num_nodes,
                       int64_t* count, int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    Sizes sizes(relations.count);
#pragma omp for schedule(dynamic, 64)
    for (int64_t i = 0; i < num_nodes; i++) {
      sizes.count(relations, indptr[nodes[i]], indptr[nodes[i] + 1]);
      count[i] = 0;
      for (const int32_t relation : sizes.present) count[i] += relations.drawn(relation, sizes.size[relation]);
    }
  }
}

template <class Index>
void draw_by_relation(const Index* indptr, const Relations& relations, const int64_t* nodes, int64_t num_nodes,
                      const int64_t* ptr, uint64_t key, int64_t* position, int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    Sizes sizes(relations.count);
    std::vector<int64_t> end(relations.count), edges;  // those that enter a node, by relation
    std::vector<char> taken;
#pragma omp for schedule(dynamic, 64)
    for (int64_t i = 0; i < num_nodes; i++) {
      const int64_t first = indptr[nodes[i]], last = indptr[nodes[i] + 1];
      sizes.count(relations, first, last);
      int64_t at = 0;
      for (const int32_t relation : sizes.present) end[relation] = at, at += sizes.size[relation];
      edges.resize(last - first);
      for (int64_t e = first; e < last; e++) edges[end[relations.of(e)]++] = e;
      int64_t* to = position + ptr[i];
      for (const int32_t relation : sizes.present) {
        const int64_t degree = sizes.size[relation], count = relations.drawn(relation, degree);
        const int64_t* own = edges.data() + end[relation] - degree;
        if (count == degree) {
          std::copy(own, own + count, to);
        } else {
          const uint64_t row = uint64_t(nodes[i]) | uint64_t(relation + 1) << 32;
          draw_some(degree, count, mix(key ^ mix(row)), taken, to);
          for (int64_t j = 0; j < count; j++) to[j] = own[to[j]];
        }
        to += count;
      }
      std::sort(position + ptr[i], to);
    }
  }
}

template <class Index>
int64_t number(const Index* src, const int64_t* position, int64_t num_edges, int64_t num_known, int32_t* local,
               int64_t* fresh, int64_t* local_src) {
  int64_t num_fresh = 0;
  for (int64_t e = 0; e < num_edges; e++) {
    if (e + 2 * AHEAD < num_edges) __builtin_prefetch(src + position[e + 2 * AHEAD]);
    if (e + AHEAD < num_edges) __builtin_prefetch(local + src[position[e + AHEAD]], 1);
    const Index node = src[position[e]];
    if (local[node] < 0) {
      local[node] = int32_t(num_known + num_fresh);
      fresh[num_fresh++] = node;
    }
    local_src[e] = local[node];
  }
  return num_fresh;
}

}  // namespace

extern "C" {

// Draws ptr[i + 1] - ptr[i] edges that enter each node; their positions in the graph are written in ascending order.
void sampling_draw(const void* indptr, int bytes, const int64_t* nodes, int64_t num_nodes, const int64_t* ptr,
                   uint64_t key, int64_t* position, int num_threads) {
  if (bytes == 4) draw(static_cast<const int32_t*>(indptr), nodes, num_nodes, ptr, key, position, num_threads);
  else draw(static_cast<const int64_t*>(indptr), nodes, num_nodes, ptr, key, position, num_threads);
}

// Counts the edges that each node draws, if it draws those of each relation for themselves.
void sampling_count_by_relation(const void* indptr, int bytes, const float* relation, int64_t stride,
                                const int64_t* most, int64_t num_relations, const int64_t* nodes, int64_t num_nodes,
                                int64_t* count, int num_threads) {
  const Relations relations{relation, stride, most, num_relations};
  if (bytes == 4)
    count_by_relation(static_cast<const int32_t*>(indptr), relations, nodes, num_nodes, count, num_threads);
  else count_by_relation(static_cast<const int64_t*>(indptr), relations, nodes, num_nodes, count, num_threads);
}

// Draws as many edges as counted above, as sampling_draw does.
void sampling_draw_by_relation(const void* indptr, int bytes, const float* relation, int64_t stride,
                               const int64_t* most, int64_t num_relations, const int64_t* nodes, int64_t num_nodes,
                               const int64_t* ptr, uint64_t key, int64_t* position, int num_threads) {
  const Relations relations{relation, stride, most, num_relations};
  if (bytes == 4)
    draw_by_relation(static_cast<const int32_t*>(indptr), relations, nodes, num_nodes, ptr, key, position, num_threads);
  else
    draw_by_relation(static_cast<const int64_t*>(indptr), relations, nodes, num_nodes, ptr, key, position, num_threads);
}

// Numbers the sources of edges in the order in which they appear, after those that `local` knows; returns how many are
// new. `local` holds -1 for a node without a number.
int64_t sampling_number(const void* src, int bytes, const int64_t* position, int64_t num_edges, int64_t num_known,
                        int32_t* local, int64_t* fresh, int64_t* local_src) {
  if (bytes == 4)
    return number(static_cast<const int32_t*>(src), position, num_edges, num_known, local, fresh, local_src);
  return number(static_cast<const int64_t*>(src), position, num_edges, num_known, local, fresh, local_src);
}

// Writes the destination of every edge, and the same edges by source.
void sampling_transpose(const int64_t* src, const int64_t* indptr, int64_t num_nodes, int64_t* dst, int64_t* T_src,
                        int64_t* T_dst, int64_t* T_indptr, int64_t* T_perm) {
  write_rows(indptr, num_nodes, [](int64_t row) { return row; }, dst);
  transpose(src, dst, indptr[num_nodes], num_nodes, T_src, T_dst, T_indptr, T_perm);
}
}
