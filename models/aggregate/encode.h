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

// z[i] = x[node[i]] + W e[i] + b for channels of one block.
template <bool Full>
INLINE void encode(Encoder& encoder, const Tile& tile, const int64_t* node, const float* x, int64_t block,
                   const float* features, float* z) {
  const int n = tile.num_edges;
  const int64_t channels = encoder.channels;
  const int lanes = Full ? LANES : int(channels - block * LANES);
  const float* base = x + block * LANES;
  const vf bias = load<true>(encoder.bias.data + block * LANES);
  if (encoder.num_groups == 0) {
    const float* attr = encoder.attr + block * LANES;
    for (int i = 0; i < n; i++) {
      __builtin_prefetch(base + node[i + AHEAD] * channels);
      vf a = load<Full>(base + node[i] * channels, lanes) + bias;
      if (encoder.kind == ENCODED) a += load<Full>(attr + tile.position[i] * channels, lanes);
      store<true>(z + i * LANES, a);
    }
    return;
  }
  for (int64_t group = 0; group < encoder.num_groups; group++) {
    const float* weight = encoder.weight_at(block, group * GROUP);
    vf w[GROUP];
    for (int k = 0; k < GROUP; k++) w[k] = load<true>(weight + k * LANES);
    const float* e = features + group * GROUP;
    const int64_t stride = encoder.stride();
    if (group == 0) {
      for (int i = 0; i < n; i++, e += stride) {
        __builtin_prefetch(base + node[i + AHEAD] * channels);
        vf a = load<Full>(base + node[i] * channels, lanes) + bias;
        for (int k = 0; k < GROUP; k++) a = fma(splat(e[k]), w[k], a);
        store<true>(z + i * LANES, a);
      }
    } else {
      for (int i = 0; i < n; i++, e += stride) {
        vf a = load<true>(z + i * LANES);
        for (int k = 0; k < GROUP; k++) a = fma(splat(e[k]), w[k], a);
        store<true>(z + i * LANES, a);
      }
    }
  }
}
