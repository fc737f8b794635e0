// Messages before their ReLU: source plus encoded edge features and the relation's row of a table, one tile and LANES channels at a time.
#pragma once
#include "../kernels/walk.h"

#define INLINE_LAMBDA __attribute__((always_inline))

enum Features { NONE = 0, RAW = 1, ENCODED = 2 };

// The encoder's weight as [block][feature][lane] and its bias as [block][lane]; channels and features past the end
// are 0, so that the loops over them need no special case. With a table [num_relations][channel], column 0 of `attr` is
// the number of the edge's relation, and the `dim` features follow it.
struct Encoder {
  Features kind;
  int64_t channels, dim, num_blocks, num_groups, num_relations;
  const float *attr, *table;
  Buffer<float> weight, bias;

  Encoder(Features kind_, int64_t channels_, int64_t dim_, const float* attr_, const float* weight_, const float* bias_,
          int64_t num_relations_, const float* table_)
      : kind(kind_),
        channels(channels_),
        dim(dim_),
        num_blocks((channels_ + LANES - 1) / LANES),
        num_groups(kind_ == RAW ? (dim_ + GROUP - 1) / GROUP : 0),
        num_relations(num_relations_),
        attr(attr_),
        table(table_),
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
  int64_t first_feature() const { return table ? 1 : 0; }
  int64_t columns() const { return dim + first_feature(); }

  // Reads the relations of a tile's edges; false if one is not a whole number in [0, num_relations).
  bool read_relations(const Tile& tile, int64_t* to) const {
    if (!table) return true;
    bool broken = false;
    for (int i = 0; i < tile.num_edges; i++) {
      const float number = attr[tile.position[i] * columns()];
      const bool inside = number >= 0.0f && number < float(num_relations);  // false for NaN
      to[i] = inside ? int64_t(number) : 0;
      broken |= !inside || float(to[i]) != number || to[i] >= num_relations;
    }
    return !broken;
  }

  // Returns the tile's raw features with columns padded to whole groups, without a copy if they are so already.
  const float* gather(const Tile& tile, bool in_order, float* into) const {
    if (kind != RAW) return nullptr;
    if (in_order && dim == stride() && !table) return attr + tile.position[0] * dim;
    for (int i = 0; i < tile.num_upcoming; i++) __builtin_prefetch(attr + tile.upcoming[i] * columns(), 0, 2);
    for (int i = 0; i < tile.num_edges; i++) {
      const float* from = attr + tile.position[i] * columns() + first_feature();
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

// Computes z = x[node] + W e + b, with `Related` also + table[relation], and relu(z) + eps if `Message`, for a tile's
// edges and BLOCKS blocks of channels; z is [block][TILE][lane]. Two blocks at a time share the reads of e, which limit
// the speed of one.
template <int BLOCKS, bool Message, bool Related>
INLINE void encode_tile(Encoder& encoder, const Tile& tile, const int64_t* node, const float* x, int64_t block,
                        float eps, const float* features, const int64_t* relation, float* z) {
  const int n = tile.num_edges, last = BLOCKS - 1;
  const int lanes = int(std::min<int64_t>(LANES, encoder.channels - (block + last) * LANES));  // of the last block
  const float *base = x + block * LANES, *table = encoder.table + block * LANES;
  const int64_t channels = encoder.channels;
  vf bias[BLOCKS];
  for (int b = 0; b < BLOCKS; b++) bias[b] = load(encoder.bias.data + (block + b) * LANES);
  auto begin = [=](int i, vf* a) INLINE_LAMBDA {
    for (int b = 0; b < BLOCKS; b++) {
      const float* from = base + node[i] + b * LANES;
      __builtin_prefetch(base + node[i + AHEAD] + b * LANES);
      a[b] = (b < last ? load(from) : load(from, lanes)) + bias[b];
      if constexpr (Related) {
        const float* row = table + relation[i] * channels + b * LANES;
        a[b] += b < last ? load(row) : load(row, lanes);
      }
    }
  };
  auto end = [=](int i, vf a, int b)
                 INLINE_LAMBDA { store(z + b * PLANE + i * LANES, Message ? max(vf{}, a) + eps : a); };

  if (encoder.num_groups == 0) {
    const bool encoded = encoder.kind == ENCODED;
    for (int i = 0; i < n; i++) {
      vf a[BLOCKS];
      begin(i, a);
      const float* from = encoder.attr + tile.position[i] * encoder.channels + block * LANES;
      for (int b = 0; b < BLOCKS; b++) {
        if (encoded) a[b] += b < last ? load(from + b * LANES) : load(from + b * LANES, lanes);
        end(i, a[b], b);
      }
    }
    return;
  }
  const int64_t stride = encoder.stride(), groups = encoder.num_groups;
  for (int64_t group = 0; group < groups; group++) {
    vf weight[BLOCKS][GROUP];
    for (int b = 0; b < BLOCKS; b++)
      for (int k = 0; k < GROUP; k++) weight[b][k] = load(encoder.weight_at(block + b, group * GROUP + k));
    const float* e = features + group * GROUP;
    // Two sums per block, as in a single one each instruction would wait for the one before it.
    auto multiply = [&](vf* a) INLINE_LAMBDA {
      vf other[BLOCKS];
      for (int b = 0; b < BLOCKS; b++) other[b] = splat(e[0]) * weight[b][0];
      for (int k = 1; k < GROUP / 2; k++)
        for (int b = 0; b < BLOCKS; b++) other[b] = fma(splat(e[k]), weight[b][k], other[b]);
      for (int k = GROUP / 2; k < GROUP; k++)
        for (int b = 0; b < BLOCKS; b++) a[b] = fma(splat(e[k]), weight[b][k], a[b]);
      for (int b = 0; b < BLOCKS; b++) a[b] += other[b];
      e += stride;
    };
    auto again = [=](int i, vf* a) INLINE_LAMBDA {
      for (int b = 0; b < BLOCKS; b++) a[b] = load(z + b * PLANE + i * LANES);
    };
    auto keep = [=](int i, vf a, int b) INLINE_LAMBDA { store(z + b * PLANE + i * LANES, a); };
    auto run = [&](auto first, auto then) INLINE_LAMBDA {
      for (int i = 0; i < n; i++) {
        vf a[BLOCKS];
        first(i, a);
        multiply(a);
        for (int b = 0; b < BLOCKS; b++) then(i, a[b], b);
      }
    };
    if (groups == 1) {
      run(begin, end);
    } else if (group == 0) {
      run(begin, keep);
    } else if (group < groups - 1) {
      run(again, keep);
    } else {
      run(again, end);
    }
  }
}

template <int BLOCKS, bool Message>
INLINE void encode(Encoder& encoder, const Tile& tile, const int64_t* node, const float* x, int64_t block, float eps,
                   const float* features, const int64_t* relation, float* z) {
  if (encoder.table) {
    encode_tile<BLOCKS, Message, true>(encoder, tile, node, x, block, eps, features, relation, z);
  } else {
    encode_tile<BLOCKS, Message, false>(encoder, tile, node, x, block, eps, features, relation, z);
  }
}
