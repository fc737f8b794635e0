// Random walks, and the pairs of nodes that lie close together on them. pipeline/graph/walks.py calls the functions below.
#include <algorithm>
#include <cstdint>

#include "../../models/kernels/hash.h"

namespace {

struct WalkProblem {  // walks.py reads its fields from here
  int64_t num_nodes, num_starts, length, random_starts, num_threads;
  uint64_t key;
  double p, q;
  const int64_t* ptr;         // [num_nodes + 1], neighbours of each node, ascending
  const int32_t* neighbor;    // [num_edges]
  const float* weight;        // [num_edges] or none
  const double* strength;     // [num_nodes], sum of a node's weights, or none
  const float* accept;        // [num_edges], alias table of each node's neighbours, or none
  const int32_t* alias;       // [num_edges], places among the neighbours
  const int32_t* starts;      // [num_starts] nodes
  const float* start_accept;  // [num_starts], alias table of the starts, or none
  const int32_t* start_alias;
};

constexpr int MAX_DRAWN = 10000;  // candidates of a step that are drawn before all of them are weighed

inline double uniform(uint64_t bits) { return double(bits >> 11) * 0x1p-53; }

struct Walk {
  const WalkProblem& p;
  Random random;

  Walk(const WalkProblem& p, int64_t number) : p(p), random(mix(p.key + uint64_t(number + 1) * GOLDEN)) {}

  // A place among `size` of an alias table.
  int64_t choose(int64_t size, const float* accept, const int32_t* alias) {
    const int64_t at = below(random(), size);
    return !accept || uniform(random()) < accept[at] ? at : alias[at];
  }

  int64_t first(int64_t number) {
    return p.starts[p.random_starts ? choose(p.num_starts, p.start_accept, p.start_alias) : number % p.num_starts];
  }

  // By weights alone.
  int64_t next(int64_t node) {
    const int64_t from = p.ptr[node], degree = p.ptr[node + 1] - from;
    if (!degree) return -1;
    return p.neighbor[from + choose(degree, p.accept ? p.accept + from : nullptr, p.alias ? p.alias + from : nullptr)];
  }

  // The place of an edge, or -1.
  int64_t find(int64_t node, int64_t to) const {
    const int32_t *begin = p.neighbor + p.ptr[node], *end = p.neighbor + p.ptr[node + 1];
    const int32_t* at = std::lower_bound(begin, end, int32_t(to));
    return at != end && *at == to ? at - p.neighbor : -1;
  }

  // node2vec: weights times 1/p back to the last node, 1 to its neighbours, 1/q elsewhere. Candidates are drawn by weight
  // and kept in proportion to the factor, over the larger of 1 and 1/q. What 1/p exceeds that by is an area of its own.
  int64_t next(int64_t node, int64_t last) {
    const int64_t from = p.ptr[node], degree = p.ptr[node + 1] - from;
    if (!degree) return -1;
    const double back = 1 / p.p, away = 1 / p.q, most = std::max(1.0, away), least = std::min(1.0, away);
    double area = p.strength ? p.strength[node] : double(degree), excess = 0;
    if (back > most) {
      const int64_t returning = find(node, last);
      if (returning >= 0) excess = (back - most) * (p.weight ? p.weight[returning] : 1.0);
    }
    area *= most;
    for (int drawn = 0; drawn < MAX_DRAWN; drawn++) {
      if (excess > 0 && uniform(random()) * (area + excess) < excess) return last;
      const int64_t to = next(node);
      const double y = uniform(random()) * most;
      if (to == last) {
        if (y < back) return to;
      } else if (y < least || y < (find(last, to) >= 0 ? 1.0 : away)) {
        return to;
      }
    }
    return scan(node, last);
  }

  // The same distribution as above, in time proportional to the degree: for factors so far apart that few are kept.
  int64_t scan(int64_t node, int64_t last) {
    const auto factor = [&](int64_t edge) {
      const int64_t to = p.neighbor[edge];
      const double by = to == last ? 1 / p.p : find(last, to) >= 0 ? 1.0 : 1 / p.q;
      return by * (p.weight ? p.weight[edge] : 1.0);
    };
    double total = 0;
    for (int64_t edge = p.ptr[node]; edge < p.ptr[node + 1]; edge++) total += factor(edge);
    if (!(total > 0)) return next(node);  // all weigh nothing
    double left = uniform(random()) * total;
    int64_t chosen = -1;
    for (int64_t edge = p.ptr[node]; edge < p.ptr[node + 1] && left >= 0; edge++)
      if (const double weight = factor(edge); weight > 0) chosen = edge, left -= weight;
    return p.neighbor[chosen];
  }
};

}  // namespace

extern "C" {

// Walks number `first` and those after it: [num_walks, length + 1] nodes, -1 behind the last.
void walks_draw(const WalkProblem* problem, int64_t first, int64_t num_walks, int32_t* walks) {
  const WalkProblem& p = *problem;
  const bool second_order = p.p != 1 || p.q != 1;
#pragma omp parallel for num_threads(p.num_threads) schedule(dynamic, 64)
  for (int64_t i = 0; i < num_walks; i++) {
    Walk walk(p, first + i);
    int32_t* to = walks + i * (p.length + 1);
    int64_t node = walk.first(first + i), last = -1;
    to[0] = int32_t(node);
    for (int64_t step = 1; step <= p.length; step++) {
      const int64_t next = node < 0 ? -1 : second_order && last >= 0 ? walk.next(node, last) : walk.next(node);
      last = node, node = next;
      to[step] = int32_t(node);
    }
  }
}

// Pairs of a walk's nodes at most `distance` steps apart, (earlier, later) and with `both` also (later, earlier), in blocks
// of the partitions of the two: of a fixed number of chunks of walks, so that their order does not depend on threads.
// Without `pairs` they are counted: offsets [num_chunks, num_parts, num_parts]. With them, offsets say where those of a
// chunk and block begin, and are moved on.
void walks_pairs(const int32_t* walks, int64_t num_walks, int64_t nodes_each, int64_t distance, int64_t both,
                 const int32_t* row, const int64_t* first_row, const int32_t* part, int64_t num_parts,
                 int64_t num_chunks, int64_t num_threads, int64_t* offsets, int32_t* pairs) {
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
    int64_t* offset = offsets + chunk * num_parts * num_parts;
    const auto emit = [&](int32_t a, int32_t b) {
      const int64_t i = part[a], j = part[b], at = offset[i * num_parts + j]++;
      if (!pairs) return;
      pairs[2 * at] = int32_t(row[a] - first_row[i]);
      pairs[2 * at + 1] = int32_t(row[b] - first_row[j]);
    };
    for (int64_t w = chunk * num_walks / num_chunks; w < (chunk + 1) * num_walks / num_chunks; w++) {
      const int32_t* walk = walks + w * nodes_each;
      for (int64_t a = 0; a < nodes_each && walk[a] >= 0; a++)
        for (int64_t b = a + 1; b < nodes_each && b <= a + distance && walk[b] >= 0; b++) {
          if (walk[a] == walk[b]) continue;  // a node is no context of its own
          emit(walk[a], walk[b]);
          if (both) emit(walk[b], walk[a]);
        }
    }
  }
}

// Alias tables of rows of weights (Vose): a place is drawn evenly, and its alias taken in place of it where a uniform number
// is not below `accept`. Rows without any weight accept all.
void walks_alias(const int64_t* ptr, int64_t num_rows, const float* weight, int64_t num_threads, float* accept,
                 int32_t* alias) {
#pragma omp parallel num_threads(num_threads)
  {
    int64_t room = 0;
    int32_t* stack = nullptr;
    double* scaled = nullptr;
#pragma omp for schedule(dynamic, 256)
    for (int64_t row = 0; row < num_rows; row++) {
      const int64_t from = ptr[row], size = ptr[row + 1] - from;
      if (size > room) {
        delete[] stack, delete[] scaled;
        room = 2 * size, stack = new int32_t[room], scaled = new double[room];
      }
      double total = 0;
      for (int64_t i = 0; i < size; i++) total += weight[from + i];
      // Those below the mean grow from the left of the stack, the others from its right.
      int64_t small = 0, large = size;
      for (int64_t i = 0; i < size; i++) {
        scaled[i] = total > 0 ? weight[from + i] * (size / total) : 1.0;
        accept[from + i] = 1, alias[from + i] = int32_t(i);
        stack[scaled[i] < 1 ? small++ : --large] = int32_t(i);
      }
      while (small > 0 && large < size) {
        const int32_t less = stack[--small], more = stack[large];
        accept[from + less] = float(scaled[less]), alias[from + less] = more;
        scaled[more] -= 1 - scaled[less];
        if (scaled[more] < 1) large++, stack[small++] = more;
      }
    }
    delete[] stack, delete[] scaled;
  }
}
}
