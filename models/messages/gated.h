// The sum over a node's edges of sigmoid(key_i + query_j + A e) * (value_j + B e), and its gradients. Each pass walks
// over edges that are sorted by row. Rows are cut into chunks that depend only on the edges, never on the number of threads.
#pragma once
#include "../kernels/tiles.h"

#define ALWAYS __attribute__((always_inline))  // for lambdas

constexpr int GATED_OK = 0, GATED_BROKEN_INDEX = 1;
constexpr int MAX_EDGE_DIM = 32;
constexpr int NUM_CHUNKS = 64;

struct GatedProblem {  // gated.py reads its fields from here
  int64_t num_rows, num_others, num_edges, channels, edge_dim, num_threads;
  int64_t ptr_wide, other_wide, position_wide;
  const void *ptr, *other, *position;
  // Keys [num_dst, channels], queries and values [num_src, 2 x channels], edge features [num_edges, edge_dim], and
  // their weights [edge_dim, 2 x channels], those of the gates first.
  const float *key, *pair, *attr, *weight;
  float* out;             // [num_dst, channels]
  const float* gradient;  // of out
  float *grad_key, *grad_pair, *grad_attr;
  float* grad_weight;  // [NUM_CHUNKS, edge_dim, 2 x channels], to be summed
};

class Gated {
 public:
  explicit Gated(const GatedProblem& p_) : p(p_), edges(sorted_edges(p_)) {}

  int forward() {  // rows are destinations
    return walk([&](int, int64_t row, int64_t channel, int lanes, const Weights& weights) ALWAYS {
      const vf key = load(p.key + row * p.channels + channel, lanes);
      vf total = {};
      const int64_t end = edges.ptr[row + 1];
      for (int64_t edge = edges.ptr[row]; edge < end; edge++) {
        prefetch_pair(edge, channel);
        const Message message = compute(key, pair_of(edges.other[edge], channel), attr_of(edge), weights, lanes);
        total += message.gate * message.value;
      }
      store(p.out + row * p.channels + channel, total, lanes);
    });
  }

  int backward_by_destination() {  // the gradients of keys, edge features and weights
    return walk([&](int chunk, int64_t row, int64_t channel, int lanes, const Weights& weights) ALWAYS {
      const vf key = load(p.key + row * p.channels + channel, lanes);
      const vf gradient = load(p.gradient + row * p.channels + channel, lanes);
      vf total = {}, of_weight[2 * MAX_EDGE_DIM] = {};
      const int64_t end = edges.ptr[row + 1];
      for (int64_t edge = edges.ptr[row]; edge < end; edge++) {
        prefetch_pair(edge, channel);
        const float* attr = attr_of(edge);
        const Message message = compute(key, pair_of(edges.other[edge], channel), attr, weights, lanes);
        const vf of_gate = message.differentiate(gradient), of_value = gradient * message.gate;
        total += of_gate;
        if (!attr) continue;
        for (int d = 0; d < p.edge_dim; d++) {
          of_weight[2 * d] = fma(of_gate, splat(attr[d]), of_weight[2 * d]);
          of_weight[2 * d + 1] = fma(of_value, splat(attr[d]), of_weight[2 * d + 1]);
        }
        if (p.grad_attr) add_to_attr(edge, of_gate, of_value, weights);
      }
      store(p.grad_key + row * p.channels + channel, total, lanes);
      for (int d = 0; p.attr && d < 2 * p.edge_dim; d++) {
        float* to = p.grad_weight + ((chunk * p.edge_dim + d / 2) * 2 + d % 2) * p.channels + channel;
        store(to, load(to, lanes) + of_weight[d], lanes);
      }
    });
  }

  int backward_by_source() {  // the gradients of queries and values
    return walk([&](int, int64_t row, int64_t channel, int lanes, const Weights& weights) ALWAYS {
      const float* pair = pair_of(row, channel);
      vf of_query = {}, of_value = {};
      const int64_t end = edges.ptr[row + 1];
      for (int64_t edge = edges.ptr[row]; edge < end; edge++) {
        if (edge + AHEAD < p.num_edges) {
          const int64_t upcoming = edges.other[edge + AHEAD] * p.channels + channel;
          __builtin_prefetch(p.key + upcoming), __builtin_prefetch(p.gradient + upcoming);
        }
        const int64_t target = edges.other[edge] * p.channels + channel;
        const Message message = compute(load(p.key + target, lanes), pair, attr_of(edge), weights, lanes);
        const vf gradient = load(p.gradient + target, lanes);
        of_query += message.differentiate(gradient);
        of_value = fma(gradient, message.gate, of_value);
      }
      float* to = p.grad_pair + row * 2 * p.channels + channel;
      store(to, of_query, lanes);
      store(to + p.channels, of_value, lanes);
    });
  }

 private:
  struct Weights {  // of the edge features, for a block of channels
    vf of_gate[MAX_EDGE_DIM], of_value[MAX_EDGE_DIM];
  };

  struct Message {
    vf gate, value;
    INLINE vf differentiate(vf gradient) const { return gradient * value * gate * (1.0f - gate); }
  };

  INLINE void prefetch_pair(int64_t edge, int64_t channel) const {
    if (edge + AHEAD >= p.num_edges) return;
    const float* upcoming = pair_of(edges.other[edge + AHEAD], channel);
    __builtin_prefetch(upcoming), __builtin_prefetch(upcoming + p.channels);
  }

  INLINE const float* pair_of(int64_t node, int64_t channel) const { return p.pair + node * 2 * p.channels + channel; }
  INLINE const float* attr_of(int64_t edge) const {
    return p.attr ? p.attr + edges.position[edge] * p.edge_dim : nullptr;
  }

  INLINE Message compute(vf key, const float* pair, const float* attr, const Weights& weights, int lanes) const {
    vf gate = key + load(pair, lanes), value = load(pair + p.channels, lanes);
    for (int d = 0; attr && d < p.edge_dim; d++) {
      const vf feature = splat(attr[d]);
      gate = fma(weights.of_gate[d], feature, gate);
      value = fma(weights.of_value[d], feature, value);
    }
    return {1.0f / (1.0f + exp2(gate * -1.44269504089f)), value};
  }

  INLINE void add_to_attr(int64_t edge, vf of_gate, vf of_value, const Weights& weights) const {
    float* to = p.grad_attr + edges.position[edge] * p.edge_dim;
    for (int d = 0; d < p.edge_dim; d++)
      to[d] += quick_sum(of_gate * weights.of_gate[d] + of_value * weights.of_value[d]);
  }

  // Calls `visit` for each row and block of channels.
  template <class Visit>
  int walk(const Visit& visit) {
    if (broken()) return GATED_BROKEN_INDEX;
#pragma omp parallel for num_threads(edges.team(p.num_threads)) schedule(dynamic, 1)
    for (int chunk = 0; chunk < NUM_CHUNKS; chunk++) {
      const int64_t end = first_row(chunk + 1);
      for (int64_t row = first_row(chunk); row < end; row++)
        for (int64_t channel = 0; channel < p.channels; channel += LANES) {
          const int lanes = int(std::min<int64_t>(LANES, p.channels - channel));
          Weights weights;
          const float* from = p.weight + channel;
          for (int d = 0; d < p.edge_dim; d++, from += 2 * p.channels)
            weights.of_gate[d] = load(from, lanes), weights.of_value[d] = load(from + p.channels, lanes);
          if (lanes == LANES) visit(chunk, row, channel, LANES, weights);
          else visit(chunk, row, channel, lanes, weights);
        }
    }
    return GATED_OK;
  }

  int64_t first_row(int chunk) const {  // the first row that starts at or after the chunk's share of the edges
    if (chunk == 0) return 0;
    if (chunk == NUM_CHUNKS) return p.num_rows;
    const int64_t share = p.num_edges * chunk / NUM_CHUNKS;
    int64_t low = 0, high = p.num_rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (edges.ptr[middle] < share) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  bool broken() const {  // whether an index points outside of its array
    if (edges.ptr[0] != 0 || edges.ptr[p.num_rows] != p.num_edges) return true;
    bool wrong = false;
#pragma omp parallel for num_threads(edges.team(p.num_threads)) reduction(|| : wrong)
    for (int64_t edge = 0; edge < p.num_edges; edge++)
      wrong = wrong || uint64_t(edges.other[edge]) >= uint64_t(p.num_others) ||
              (p.attr && uint64_t(edges.position[edge]) >= uint64_t(p.num_edges));
#pragma omp parallel for num_threads(edges.team(p.num_threads)) reduction(|| : wrong)
    for (int64_t row = 0; row < p.num_rows; row++) wrong = wrong || edges.ptr[row] > edges.ptr[row + 1];
    return wrong;
  }

  const GatedProblem& p;
  const Sorted edges;
};
