// Where heads and channels lie in vectors.
#pragma once
#include "../kernels/walk.h"

INLINE vf permute(vf a, vi lane) {
#if defined(SIMD_AVX512)
  return (vf)_mm512_permutexvar_ps((__m512i)lane, (__m512)a);
#elif defined(SIMD_AVX2)
  return (vf)_mm256_permutevar8x32_ps((__m256)a, (__m256i)lane);
#else
  vf out;
  for (int i = 0; i < LANES; i++) out[i] = a[lane[i]];
  return out;
#endif
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

// Transposes four rows of four numbers.
INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  const auto row = [&](int i) { return *reinterpret_cast<const four*>(from + i * from_stride); };
  const auto column = [&](int i) -> four& { return *reinterpret_cast<four*>(to + i * to_stride); };
  const auto mix_low = [](four a, four b) { return four{a[0], b[0], a[1], b[1]}; };
  const auto mix_high = [](four a, four b) { return four{a[2], b[2], a[3], b[3]}; };
  const four a = row(0), b = row(1), c = row(2), d = row(3);
  column(0) = mix_low(mix_low(a, c), mix_low(b, d)), column(1) = mix_high(mix_low(a, c), mix_low(b, d));
  column(2) = mix_low(mix_high(a, c), mix_high(b, d)), column(3) = mix_high(mix_high(a, c), mix_high(b, d));
}

// Heads lie in the lanes of a vector, so that a score needs no long sum over lanes. A vector has `groups` channels of
// `width` heads each; lane = group * width + head. More heads than lanes form several blocks. Rows of nodes are
// [block][vector][lane]; missing heads and channels are 0.
// Numbers of heads, as scores, are dense: [block][head]. Then a vector has those of `groups` edges.
struct Layout {
  int64_t heads, channels;
  int width, groups;
  int64_t blocks, vectors;
  bool transposes;             // whether rows are packed four by four
  std::vector<int32_t> place;  // of each element [head][channel] in a packed row
  vi head;                     // of each lane

  Layout(int64_t heads_, int64_t channels_) : heads(heads_), channels(channels_), width(1) {
    while (width < heads && width < LANES) width *= 2;
    groups = LANES / width;
    blocks = (heads + width - 1) / width;
    vectors = (channels + groups - 1) / groups;
    transposes = heads % width == 0 && width % 4 == 0 && channels % groups == 0 && channels % 4 == 0;
    for (int i = 0; i < LANES; i++) head[i] = i % width;
    for (int64_t h = 0; h < heads; h++)
      for (int64_t c = 0; c < channels; c++)
        place.push_back(int32_t(((h / width * vectors + c / groups) * groups + c % groups) * width + h % width));
  }
  int64_t size() const { return blocks * vectors * LANES; }
  int64_t dense_heads() const { return blocks * width; }

  // Calls move(from [head][channel], its stride, packed, its stride) for four heads and channels at a time.
  template <class Move>
  void each_four(Move move) const {
    for (int64_t h = 0; h < heads; h += 4)
      for (int64_t c = 0; c < channels; c += 4)
        move(h * channels + c, channels, (h / width * channels + c) * width + h % width, width);
  }
  void pack(const float* from, float* to) const {
    if (transposes)
      return each_four([&](int64_t i, int64_t i_stride, int64_t k, int64_t k_stride) {
        transpose(from + i, i_stride, to + k, k_stride);
      });
    if (int64_t(place.size()) != size()) std::fill_n(to, size(), 0.0f);
    for (size_t i = 0; i < place.size(); i++) to[place[i]] = from[i];
  }
  void unpack(const float* from, float* to) const {
    if (transposes)
      return each_four([&](int64_t i, int64_t i_stride, int64_t k, int64_t k_stride) {
        transpose(from + k, k_stride, to + i, i_stride);
      });
    for (size_t i = 0; i < place.size(); i++) to[i] = from[place[i]];
  }
  void pack_heads(const float* from, float* to) const {
    std::copy_n(from, heads, to);
    std::fill(to + heads, to + dense_heads(), 0.0f);
  }
  // Reads dense numbers of a block of heads; every lane gets that of its head. Reads up to LANES numbers.
  INLINE vf spread(const float* from) const { return permute(load(from), head); }
};

// Combines the groups of a vector; every lane gets the sum, or the largest, of its head.
struct Groups {
  int steps = 0;
  vi lane[5];
  explicit Groups(const Layout& layout) {
    for (int step = layout.width; step < LANES; step *= 2, steps++)
      for (int i = 0; i < LANES; i++) lane[steps][i] = i ^ step;
  }
  INLINE vf sum(vf a) const {
    for (int i = 0; i < steps; i++) a += permute(a, lane[i]);
    return a;
  }
  INLINE vf largest(vf a) const {
    for (int i = 0; i < steps; i++) a = max(a, permute(a, lane[i]));
    return a;
  }
};
