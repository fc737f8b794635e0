// Skip-gram with negative sampling on blocks of pairs. tests/helpers/skipgram_numpy.py computes the same in numpy.
//
// A block holds pairs (head, tail) of two partitions of the nodes. They are sorted by head and cut into groups of at most
// GROUP pairs of one head. The groups are shuffled, and TILES groups in a row share their negatives. Blocks that share no
// rows run in parallel, so that the order of all updates depends only on the key.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "../kernels/hash.h"
#include "../kernels/simd.h"
#include "../kernels/tasks.h"

#if defined(__x86_64__) && defined(__GLIBC__)
// The version of exp that every glibc has. The one of glibc 2.29 computes the same, and would keep a library from
// systems that are older than the compiler's.
__asm__(".symver exp,exp@GLIBC_2.2.5");
#endif

struct SkipGramProblem {  // skipgram.py reads its fields from here
  int64_t stride;         // floats between two rows, a multiple of 16; beyond the vectors they are 0
  int64_t num_tasks;      // lists of blocks: those of different tasks share no rows
  int64_t num_negatives, num_threads, optimizer;
  uint64_t key;
  float lr, weight_decay, negative_weight, beta1, beta2, eps;
  float *heads, *tails;                // [num_rows, stride], perhaps the same table
  float *head_moments, *tail_moments;  // [num_rows, stride or 2 * stride], for adagrad and adam
  float *head_steps, *tail_steps;      // [num_rows], updates of a row so far, for adam
  const int64_t* task_ptr;             // [num_tasks + 1], into blocks
  const int64_t* blocks;  // [num_blocks, 7]: number, first rows, rows of heads and tails, first and last pair
  const int32_t* pairs;   // [num_pairs, 2], rows within their partitions
  const float* accept;    // [num_rows], alias table of each partition's tails
  const int32_t* alias;
  double* loss;  // [num_blocks, 2]: sum over some pairs, and their number
};

namespace skipgram {

constexpr int GROUP = 8, TILES = 8;
constexpr int64_t LOSS_EVERY = 16;  // tiles
// The pairs of a tile move a row from one value of the other rows. Their number times the learning rate is at most this.
constexpr double MOST_PER_TILE = 1;

struct Group {
  int32_t head, count;
  int64_t first;
};

INLINE vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + exp2(x * -1.44269504f)); }

enum Optimizer { SGD, ADAGRAD, ADAM };

// Moves a row along the gradient of the log-likelihood.
template <int OPTIMIZER>
struct Update {
  const SkipGramProblem& p;
  float *row, *moments;
  float rate, second = 0;

  Update(const SkipGramProblem& p, float* table, float* moments_, float* steps, int64_t number, float lr)
      : p(p), row(table + number * p.stride), moments(moments_), rate(lr) {
    if (OPTIMIZER == ADAGRAD) moments += number * p.stride;
    if (OPTIMIZER == ADAM) {
      moments += number * 2 * p.stride;
      const float t = steps[number] += 1;
      rate = lr / (1 - std::pow(p.beta1, t));
      second = 1 / (1 - std::pow(p.beta2, t));
    }
  }
  INLINE void operator()(int64_t c, vf g) const {
    const vf x = load(row + c);
    g = fma(x, splat(-p.weight_decay), g);
    if (OPTIMIZER == SGD) return store(row + c, fma(g, splat(rate), x));
    if (OPTIMIZER == ADAGRAD) {
      const vf sum = fma(g, g, load(moments + c));
      store(moments + c, sum);
      return store(row + c, x + g * rate / (root(sum) + p.eps));
    }
    const vf m = load(moments + c) * p.beta1 + g * (1 - p.beta1);
    const vf v = load(moments + p.stride + c) * p.beta2 + g * g * (1 - p.beta2);
    store(moments + c, m), store(moments + p.stride + c, v);
    store(row + c, x + m * rate / (root(v * second) + p.eps));
  }
  static INLINE vf root(vf a) {
    for (int i = 0; i < LANES; i++) a[i] = __builtin_sqrtf(a[i]);
    return a;
  }
};

template <int OPTIMIZER>
struct Block {
  const SkipGramProblem& p;
  const int64_t number, first_head, first_tail, num_heads, num_tails, first_pair, last_pair;
  const int64_t stride, num_negatives;
  std::vector<int32_t> tails;  // of the pairs, sorted by head
  std::vector<Group> groups;
  std::vector<float> head_lr, tail_lr;  // of each row, empty if that of all is p.lr
  std::vector<float> buffer;
  float *U, *G, *N, *S;  // heads, their gradients, negatives, weighted sigmoids
  std::vector<int32_t> negatives;
  double loss = 0, counted = 0;

  Block(const SkipGramProblem& p, int64_t index)
      : p(p),
        number(p.blocks[7 * index]),
        first_head(p.blocks[7 * index + 1]),
        first_tail(p.blocks[7 * index + 2]),
        num_heads(p.blocks[7 * index + 3]),
        num_tails(p.blocks[7 * index + 4]),
        first_pair(p.blocks[7 * index + 5]),
        last_pair(p.blocks[7 * index + 6]),
        stride(p.stride),
        num_negatives((p.num_negatives + 3) / 4 * 4),
        buffer((2 * TILES + num_negatives) * stride + TILES * num_negatives + 16),
        negatives(num_negatives) {
    U = buffer.data() + (16 - (uintptr_t(buffer.data()) / 4) % 16) % 16;  // whole lines of the cache
    G = U + TILES * stride, N = G + TILES * stride, S = N + num_negatives * stride;
  }

  void sort() {
    std::vector<int32_t> end(num_heads + 1, 0);
    const int32_t* pairs = p.pairs;
    for (int64_t i = first_pair; i < last_pair; i++) end[pairs[2 * i] + 1]++;
    for (int64_t u = 0; u < num_heads; u++) end[u + 1] += end[u];
    tails.resize(last_pair - first_pair);
    std::vector<int32_t> place(end.begin(), end.end() - 1);
    for (int64_t i = first_pair; i < last_pair; i++) tails[place[pairs[2 * i]]++] = pairs[2 * i + 1];
    for (int64_t u = 0; u < num_heads; u++)
      for (int32_t first = end[u]; first < end[u + 1]; first += GROUP)
        groups.push_back({int32_t(u), std::min(GROUP, end[u + 1] - first), first});
    bound_steps(end);
  }

  // Lowers the learning rate of rows that many pairs of a tile are expected to move: otherwise small blocks and hubs diverge.
  void bound_steps(const std::vector<int32_t>& end) {
    const double per_pair = double(GROUP) * TILES / double(last_pair - first_pair);
    std::vector<double> moves(num_heads);
    for (int64_t u = 0; u < num_heads; u++) moves[u] = per_pair * (1 + p.negative_weight) * (end[u + 1] - end[u]);
    head_lr = lower(moves);
    const double per_negative = double(GROUP) * TILES * p.negative_weight / double(num_tails);
    moves.assign(num_tails, 0);
    for (const int32_t v : tails) moves[v] += per_pair;
    for (int64_t v = 0; v < num_tails; v++) {
      const double kept = p.accept[first_tail + v];
      moves[v] += per_negative * kept, moves[p.alias[first_tail + v]] += per_negative * (1 - kept);
    }
    tail_lr = lower(moves);
  }

  std::vector<float> lower(const std::vector<double>& moves) const {
    if (*std::max_element(moves.begin(), moves.end()) * p.lr <= MOST_PER_TILE) return {};
    std::vector<float> lr(moves.size(), p.lr);
    for (size_t i = 0; i < moves.size(); i++)
      if (moves[i] * p.lr > MOST_PER_TILE) lr[i] = float(MOST_PER_TILE / moves[i]);
    return lr;
  }

  void train() {
    if (last_pair == first_pair) return;
    sort();
    Random random(mix(p.key + uint64_t(number + 1) * GOLDEN));
    for (int64_t i = int64_t(groups.size()) - 1; i > 0; i--) std::swap(groups[i], groups[below(random(), i + 1)]);
    for (size_t first = 0; first < groups.size(); first += TILES) {
      for (int64_t k = 0; k < p.num_negatives; k++)
        negatives[k] = int32_t(draw_row(random(), num_tails, p.accept + first_tail, p.alias + first_tail));
      tile(groups.data() + first, int(std::min<size_t>(TILES, groups.size() - first)), first / TILES % LOSS_EVERY == 0);
    }
  }

  Update<OPTIMIZER> head(int64_t u) const {
    return {p, p.heads, p.head_moments, p.head_steps, first_head + u, head_lr.empty() ? p.lr : head_lr[u]};
  }
  Update<OPTIMIZER> tail(int64_t v) const {
    return {p, p.tails, p.tail_moments, p.tail_steps, first_tail + v, tail_lr.empty() ? p.lr : tail_lr[v]};
  }

  void tile(const Group* group, int size, bool count_loss) {
    for (int i = 0; i < TILES; i++) {
      // Missing groups of the last tile are zeros.
      if (i < size) std::memcpy(U + i * stride, p.heads + (first_head + group[i].head) * stride, 4 * stride);
      else std::memset(U + i * stride, 0, 4 * stride);
    }
    std::memset(G, 0, 4 * TILES * stride);
    for (int i = 0; i < size; i++) positives(group[i], U + i * stride, G + i * stride, count_loss);
    for (int64_t k = 0; k < num_negatives; k++) {
      if (k < p.num_negatives) std::memcpy(N + k * stride, p.tails + (first_tail + negatives[k]) * stride, 4 * stride);
      else std::memset(N + k * stride, 0, 4 * stride);
    }
    products();
    weigh(group, size, count_loss);
    add_to_heads();
    add_to_negatives();
    for (int i = 0; i < size; i++) {
      const auto update = head(group[i].head);
      for (int64_t c = 0; c < stride; c += LANES) update(c, load(G + i * stride + c));
    }
  }

  // Pulls a head and its tails together. All products are computed before the group moves the tails.
  INLINE void positives(const Group& group, const float* u, float* g, bool count_loss) {
    const int32_t* v = tails.data() + group.first;
    float x[16] = {};
    for (int j = 0; j < group.count; j++) {
      const float* row = p.tails + (first_tail + v[j]) * stride;
      vf sum = {};
      for (int64_t c = 0; c < stride; c += LANES) sum = fma(load(u + c), load(row + c), sum);
      x[j] = quick_sum(sum);
    }
    if (count_loss) {
      for (int j = 0; j < group.count; j++) loss += softplus(-x[j]);
      counted += group.count;
    }
    for (int j = 0; j < GROUP; j += LANES) store(x + j, 1.0f - sigmoid(load(x + j)));
    for (int j = 0; j < group.count; j++) {
      const auto update = tail(v[j]);
      for (int64_t c = 0; c < stride; c += LANES) {
        store(g + c, fma(splat(x[j]), load(update.row + c), load(g + c)));
        update(c, x[j] * load(u + c));
      }
    }
  }

  static double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

  // S = U N^T, two heads with four negatives at a time.
  INLINE void products() {
    for (int64_t k = 0; k < num_negatives; k += 4)
      for (int i = 0; i < TILES; i += 2) {
        vf sum[2][4] = {};
        for (int64_t c = 0; c < stride; c += LANES) {
          const vf a = load(U + i * stride + c), b = load(U + (i + 1) * stride + c);
          for (int j = 0; j < 4; j++) {
            const vf n = load(N + (k + j) * stride + c);
            sum[0][j] = fma(a, n, sum[0][j]), sum[1][j] = fma(b, n, sum[1][j]);
          }
        }
        for (int j = 0; j < 4; j++)
          S[i * num_negatives + k + j] = quick_sum(sum[0][j]),
                                    S[(i + 1) * num_negatives + k + j] = quick_sum(sum[1][j]);
      }
  }

  // Turns products into -weight * sigmoid. The weight of a group is proportional to its number of pairs.
  INLINE void weigh(const Group* group, int size, bool count_loss) {
    for (int i = 0; i < TILES; i++) {
      float* s = S + i * num_negatives;
      const float weight = i < size ? p.negative_weight * group[i].count / p.num_negatives : 0;
      if (count_loss)
        for (int64_t k = 0; k < p.num_negatives; k++) loss += weight * softplus(s[k]);
      for (int64_t k = 0; k < num_negatives; k += 4) {  // num_negatives is a multiple of four
        vf x = {};
        std::memcpy(&x, s + k, 16);
        x = sigmoid(x) * -weight;
        std::memcpy(s + k, &x, 16);
      }
      for (int64_t k = p.num_negatives; k < num_negatives; k++) s[k] = 0;
    }
  }

  // G += S N, four heads at a time.
  INLINE void add_to_heads() {
    for (int64_t c = 0; c < stride; c += LANES)
      for (int i = 0; i < TILES; i += 4) {
        vf sum[4];
        for (int j = 0; j < 4; j++) sum[j] = load(G + (i + j) * stride + c);
        for (int64_t k = 0; k < num_negatives; k++) {
          const vf n = load(N + k * stride + c);
          for (int j = 0; j < 4; j++) sum[j] = fma(splat(S[(i + j) * num_negatives + k]), n, sum[j]);
        }
        for (int j = 0; j < 4; j++) store(G + (i + j) * stride + c, sum[j]);
      }
  }

  void add_to_negatives() {
    for (int64_t k = 0; k < p.num_negatives; k++) {
      const auto update = tail(negatives[k]);
      float s[TILES];
      for (int i = 0; i < TILES; i++) s[i] = S[i * num_negatives + k];
      for (int64_t c = 0; c < stride; c += LANES) {
        vf even = splat(s[0]) * load(U + c), odd = splat(s[1]) * load(U + stride + c);
        for (int i = 2; i < TILES; i += 2) {
          even = fma(splat(s[i]), load(U + i * stride + c), even);
          odd = fma(splat(s[i + 1]), load(U + (i + 1) * stride + c), odd);
        }
        update(c, even + odd);
      }
    }
  }
};

}  // namespace skipgram
