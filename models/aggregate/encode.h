// Messages before their relu: x of the source plus the encoded edge features, one tile and LANES channels at a time.
#pragma once
#include "tiles.h"

enum Features { NONE = 0, RAW = 1, ENCODED = 2 };

// The encoder's weight as [block][feature][lane] and its bias as [block][lane]; channels and features past the end
// are 0, so that the loops over them need no special case.
struct Encoder {
  Features kind;
  int64_t channels, dim, num_blocks, num_groups;
  const float* attr;
  Buffer<float> weight, bias;

  Encoder(Features kind_, int64_t channels_, int64_t dim_, const float* attr_, const float* weight_, const float* bias_)
      : kind(kind_),
        channels(channels_),
        dim(dim_),
        num_blocks((channels_ + LANES - 1) / LANES),
        num_groups(kind_ == RAW ? (dim_ + GROUP - 1) / GROUP : 0),
        attr(attr_),
        weight(num_blocks * num_groups * GROUP * LANES, 0.0f),
        bias(num_blocks * LANES, 0.0f) {
    if (kind != RAW) return;
    for (int64_t c = 0; c < channels; c++) {
      if (bias_) bias[c] = bias_[c];
      for (int64_t k = 0; k < dim; k++) *weight_at(c / LANES, k, c % LANES) = weight_[c * dim + k];
    }
  }

  float* weight_at(int64_t block, int64_t feature, int64_t lane = 0) {
    return weight.data + ((block * num_groups * GROUP) + feature) * LANES + lane;
  }
  int64_t stride() const { return num_groups * GROUP; }

  // The tile's raw features with the columns filled up to whole groups: in place if they are already so.
  const float* gather(const Tile& tile, bool in_order, float* into) const {
    if (kind != RAW) return nullptr;
    if (in_order && dim == stride()) return attr + tile.position[0] * dim;
    for (int i = 0; i < tile.num_edges; i++) {
      const float* from = attr + tile.position[i] * dim;
      float* to = into + i * stride();
      if (dim == GROUP) {
        std::memcpy(to, from, 4 * GROUP);
      } else {
        std::memcpy(to, from, 4 * dim);
        std::fill(to + dim, to + stride(), 0.0f);
      }
    }
    return into;
  }
};

// What the messages of a tile's edges are made of in one block of channels, for a batch of edges: the row of nodes
// (or of the tile's edges) that begins at base + at[i], and then the last group of features.
struct Plain {
  const float* base;
  const int64_t* at;
  template <int N>
  INLINE void operator()(vf* z, Size<N>, int i) const {
    for (int u = 0; u < N; u++) z[u] = load(base + at[i + u]);
  }
  INLINE void prefetch(int i) const { __builtin_prefetch(base + at[i]); }
};

struct Linear {
  const float* base;
  const int64_t* at;
  const float* features;
  int64_t stride;
  vf bias, weight[GROUP];
  template <int N>
  INLINE void operator()(vf* z, Size<N>, int i) const {
    const float* e = features + i * stride;
    for (int u = 0; u < N; u++) z[u] = load(base + at[i + u]) + bias;
    for (int k = 0; k < GROUP; k++)
      for (int u = 0; u < N; u++) z[u] = fma(splat(e[u * stride + k]), weight[k], z[u]);
  }
  INLINE void prefetch(int i) const { __builtin_prefetch(base + at[i]); }
};

// Calls body(arguments) with one of the above. Only what these two cannot do in registers goes through `z`: channels
// that do not fill a vector, features that are encoded already, and all groups of features but the last.
template <class Body>
INLINE void with_arguments(Encoder& encoder, const Tile& tile, const int64_t* node, const float* x, int64_t block,
                           const float* features, float* z, Body body) {
  const int64_t stride = encoder.stride(), last = encoder.num_groups - 1;
  const int lanes = int(std::min<int64_t>(LANES, encoder.channels - block * LANES));
  const float* base = x + block * LANES;
  const int64_t* at = node;
  if (lanes < LANES || encoder.kind == ENCODED || last > 0) {
    for (int i = 0; i < tile.num_edges; i++) {
      __builtin_prefetch(base + node[i + AHEAD]);
      vf a = load(base + node[i], lanes);
      if (encoder.kind == ENCODED) a += load(encoder.attr + tile.position[i] * encoder.channels + block * LANES, lanes);
      for (int64_t k = 0; k < last * GROUP; k++)
        a = fma(splat(features[i * stride + k]), load(encoder.weight_at(block, k)), a);
      store(z + i * LANES, a);
    }
    base = z;
    at = tile.in_tile;
  }
  if (encoder.kind != RAW) return body(Plain{base, at});
  Linear arguments{base, at, features + last * GROUP, stride, load(encoder.bias.data + block * LANES), {}};
  for (int k = 0; k < GROUP; k++) arguments.weight[k] = load(encoder.weight_at(block, last * GROUP + k));
  body(arguments);
}
