// LayerNorm, ReLU and dropout of each row in one pass. Backward recomputes all but the row's mean and deviation.
#pragma once
#include "hash.h"
#include "tiles.h"

struct NormProblem {  // norm.py reads its fields from here
  int64_t num_rows, channels, num_threads, seed;
  float eps, dropout;
  const float *x, *weight, *bias;
  float *out, *mean, *scale;
  // backward
  const float* gradient;
  float *grad_x, *grad_weight, *grad_bias;
};

struct NormReluDropout {
  static constexpr int64_t MAX_ROW_CHUNKS = 64, MIN_ROWS = 64;
  const NormProblem& p;
  const int64_t num_blocks, chunk_rows, num_chunks;
  const float rescale;
  const uint32_t threshold;  // random numbers below it drop their element
  vu lane;

  explicit NormReluDropout(const NormProblem& p_)
      : p(p_),
        num_blocks((p_.channels + LANES - 1) / LANES),
        // Independent of the number of threads, as is the order in which the chunks' sums are added.
        chunk_rows(std::max(MIN_ROWS, (p_.num_rows + MAX_ROW_CHUNKS - 1) / MAX_ROW_CHUNKS)),
        num_chunks((p_.num_rows + chunk_rows - 1) / chunk_rows),
        rescale(1 / (1 - p_.dropout)),
        threshold(uint32_t(double(p_.dropout) * 4294967296.0)) {
    for (int i = 0; i < LANES; i++) lane[i] = i;
  }

  int lanes_of(int64_t block) const { return int(std::min<int64_t>(LANES, p.channels - block * LANES)); }

  // Zero past the last channel.
  INLINE vf masked(vf a, int lanes) const {
    return lanes == LANES ? a : (vf)((vi)a & (vi)(lane < vu{} + uint32_t(lanes)));
  }

  // Returns the dropout factor of an element, 0 or 1 / (1 - dropout), a function of (seed, row, channel).
  INLINE vf kept(uint64_t key, int64_t block) const {
    const vu h = hash_element(key, lane + uint32_t(block * LANES));
    return h >= vu{} + threshold ? splat(rescale) : vf{};
  }

  INLINE vf normalised(const float* x, int64_t block, int lanes, float mean, float scale) const {
    return (load(x + block * LANES, lanes) - mean) * scale;
  }
  INLINE vf affine(vf a, int64_t block, int lanes) const {
    return fma(a, load(p.weight + block * LANES, lanes), load(p.bias + block * LANES, lanes));
  }

  void forward_row(int64_t row) const {
    const float* x = p.x + row * p.channels;
    float* out = p.out + row * p.channels;
    vf total = {}, squares = {};
    for (int64_t b = 0; b < num_blocks; b++) total += load(x + b * LANES, lanes_of(b));
    const float mean = quick_sum(total) / p.channels;
    for (int64_t b = 0; b < num_blocks; b++) {
      const int lanes = lanes_of(b);
      vf a = masked(load(x + b * LANES, lanes) - mean, lanes);
      squares = fma(a, a, squares);
    }
    const float scale = 1 / __builtin_sqrtf(quick_sum(squares) / p.channels + p.eps);
    const uint64_t key = key_of_row(p.seed, row);
    for (int64_t b = 0; b < num_blocks; b++) {
      const int lanes = lanes_of(b);
      vf y = max(vf{}, affine(normalised(x, b, lanes, mean, scale), b, lanes));
      if (threshold) y *= kept(key, b);
      store(out + b * LANES, y, lanes);
    }
    if (p.mean) p.mean[row] = mean, p.scale[row] = scale;
  }

  void backward_row(int64_t row, vf* grad_weight, vf* grad_bias, vf* q) const {
    const float* x = p.x + row * p.channels;
    const float mean = p.mean[row], scale = p.scale[row];
    const uint64_t key = key_of_row(p.seed, row);
    vf plain = {}, along = {};
    for (int64_t b = 0; b < num_blocks; b++) {
      const int lanes = lanes_of(b);
      const vf a = normalised(x, b, lanes, mean, scale);
      vf g = load(p.gradient + row * p.channels + b * LANES, lanes);
      if (threshold) g *= kept(key, b);
      g = affine(a, b, lanes) > 0.0f ? g : vf{};
      grad_bias[b] += g;
      grad_weight[b] = fma(g, a, grad_weight[b]);
      q[b] = g * load(p.weight + b * LANES, lanes);
      plain += q[b];
      along = fma(q[b], a, along);
    }
    const float mean_q = quick_sum(plain) / p.channels, mean_qa = quick_sum(along) / p.channels;
    for (int64_t b = 0; b < num_blocks; b++) {
      const int lanes = lanes_of(b);
      const vf a = normalised(x, b, lanes, mean, scale);
      store(p.grad_x + row * p.channels + b * LANES, (q[b] - mean_q - a * mean_qa) * scale, lanes);
    }
  }

  int team() const { return int(std::max<int64_t>(1, std::min(p.num_threads, num_chunks))); }

  int forward() const {
#pragma omp parallel for num_threads(team()) schedule(static)
    for (int64_t row = 0; row < p.num_rows; row++) forward_row(row);
    return 0;
  }

  int backward() const {
    Buffer<vf> sums(num_chunks * 2 * num_blocks, vf{});
#pragma omp parallel num_threads(team())
    {
      Buffer<vf> q(num_blocks);
#pragma omp for schedule(static)
      for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
        vf* own = sums.data + chunk * 2 * num_blocks;
        const int64_t end = std::min(p.num_rows, (chunk + 1) * chunk_rows);
        for (int64_t row = chunk * chunk_rows; row < end; row++) backward_row(row, own, own + num_blocks, q.data);
      }
    }
    for (int64_t b = 0; b < num_blocks; b++) {
      vf weight = {}, bias = {};
      for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
        weight += sums[(2 * chunk) * num_blocks + b];
        bias += sums[(2 * chunk + 1) * num_blocks + b];
      }
      store(p.grad_weight + b * LANES, weight, lanes_of(b));
      store(p.grad_bias + b * LANES, bias, lanes_of(b));
    }
    return 0;
  }
};
