// The aggregations: messages of one destination in forward, one edge in backward, LANES channels at a time. BLOCKS such
// blocks of channels lie PLANE floats apart. States of forward can be merged in any grouping of the edges; `finish`
// computes the output and the values that backward needs. Before backward, `pack` computes the `packed` vectors of a
// destination that each of its edges reads. These reads are most of backward's memory traffic, so they should be few.
#pragma once
#include <cmath>

#include "../kernels/simd.h"

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

struct Output {
  vf out, stat, stat2;
};

// A destination in backward: the gradient that arrives, and forward's output.
struct Arriving {
  vf gradient, out, stat, stat2;
};

// 2^(from - to), exactly 1 if they are equal, as a row of many chunks is scaled many times.
INLINE vf scale(vf from, vf to) { return from == to ? splat(1.0f) : exp2(from - to); }

// The sum of weights and the weighted sum, both relative to 2^base.
struct WeightedSums {
  vf base = splat(-__builtin_inff()), total = {}, weighted = {};

  INLINE void merge(const WeightedSums& o) {
    vf top = max(base, o.base);
    vf left = scale(base, top), right = scale(o.base, top);
    total = total * left + o.total * right;
    weighted = weighted * left + o.weighted * right;
    base = top;
  }
};

// Weights are relative to 2^base, where base is the exponent t * m * log2(e) of the row's first message. This saves a
// pass over the messages to find the maximum. Only if weights grow large, the maximum is used after all.
struct Softmax {
  static constexpr int packed = 2;
  static constexpr float LARGE = 1 << 24;
  float t, t2;
  Softmax(float t_, float, float) : t(t_), t2(t_ * LOG2_E) {}

  using State = WeightedSums;

  template <int BLOCKS>
  INLINE void add(State* s, const float* messages, int n, bool fresh) const {
    const vf slope = splat(t2);
    vf minus_base[BLOCKS], total[BLOCKS] = {}, weighted[BLOCKS] = {};
    for (int b = 0; b < BLOCKS; b++) minus_base[b] = fresh ? load(messages + b * PLANE) * -slope : -s[b].base;
    for (int i = 0; i < n; i++) {
      for (int b = 0; b < BLOCKS; b++) {
        vf m = load(messages + b * PLANE + i * LANES);
        vf w = exp2(fma(m, slope, minus_base[b]));
        total[b] += w;
        weighted[b] = fma(w, m, weighted[b]);
      }
    }
    for (int b = 0; b < BLOCKS; b++) {
      if (__builtin_expect(all_less(total[b], splat(LARGE)), 1)) {
        s[b].base = -minus_base[b];
        s[b].total += total[b];
        s[b].weighted += weighted[b];
      } else {
        add_large(s[b], messages + b * PLANE, n);
      }
    }
  }

  void __attribute__((noinline)) add_large(State& s, const float* messages, int n) const {
    State part;
    for (int i = 0; i < n; i++) part.base = max(part.base, load(messages + i * LANES) * t2);
    for (int i = 0; i < n; i++) {
      vf m = load(messages + i * LANES);
      vf w = exp2(fma(m, splat(t2), -part.base));
      part.total += w;
      part.weighted = fma(w, m, part.weighted);
    }
    merge(s, part);
  }

  INLINE void merge(State& s, const State& o) const { s.merge(o); }

  INLINE Output finish(const State& s, float) const { return {s.weighted / s.total, s.base + log2(s.total), vf{}}; }

  // Tells whether exponents reach `limit`, from where on their rounding matters.
  INLINE bool is_steep(const State& s, float limit) const {
    return !all_less(absolute(s.base) >= limit ? splat(1.0f) : vf{}, splat(0.5f));
  }

  // Two vectors instead of three: the gradient's magnitude goes into the exponent, its sign to `out`, which has none.
  INLINE void pack(const Arriving& d, vf* into, vf&) const {
    vf magnitude = absolute(d.gradient);
    into[0] = magnitude < SMALLEST_NORMAL ? splat(__builtin_inff()) : d.stat - log2(magnitude);
    into[1] = with_sign_of(d.out, d.gradient);
  }

  INLINE vf gradient(vf m, const vf* at, vf& dparam) const {
    vf share = with_sign_of(exp2(fma(m, splat(t2), -at[0])), at[1]);
    vf above = m - absolute(at[1]), r = share * above;
    // Written as a variance: in the form share * m * (m - out) the rounding of `out` would not cancel.
    dparam = fma(above, r, dparam);
    return fma(r, splat(t), share);
  }
};

// Forward as Softmax, but without a gradient through the weights.
struct SoftmaxSemiGrad : Softmax {
  using Softmax::Softmax;
  INLINE void pack(const Arriving& d, vf* into, vf&) const {
    into[0] = d.stat;
    into[1] = d.gradient;
  }
  INLINE vf gradient(vf m, const vf* at, vf&) const { return exp2(fma(m, splat(t2), -at[0])) * at[1]; }
};

// Sums of m^p are relative to 2^base. A base of 0 is enough for most rows. If sums come near the ends of float's range,
// the base is the exponent of the row's largest power.
struct Power {
  static constexpr int packed = 2;
  static constexpr float SMALL = 0x1p-100f, LARGE = 0x1p+100f;
  // log2 of the largest mean, and how far the rounding of a mean at its bound may carry its log2.
  static constexpr float MOST = 126.95f, ROUNDING = 5.8e-6f;
  float p, low, high;     // messages and the mean of their powers are clamped to [low, high]
  float least, greatest;  // log2 of the bounds of the mean's root
  Power(float p_, float low_, float high_) : p(p_), low(low_), high(high_) {
    least = log2_of(low), greatest = log2_of(high);
    if (greatest < least) std::swap(least, greatest);
  }

  using State = WeightedSums;  // averages log2(m)

  INLINE vf clamp(vf m) const { return min(splat(high), max(splat(low), m)); }

  template <int BLOCKS>
  INLINE void add(State* s, const float* messages, int n, bool) const {
    vf total[BLOCKS] = {}, weighted[BLOCKS] = {};
    for (int i = 0; i < n; i++) {
      for (int b = 0; b < BLOCKS; b++) {
        vf log_m = log2(clamp(load(messages + b * PLANE + i * LANES)));
        vf w = exp2(log_m * p);
        total[b] += w;
        weighted[b] = fma(w, log_m, weighted[b]);
      }
    }
    for (int b = 0; b < BLOCKS; b++) {
      if (__builtin_expect(all_less(total[b], splat(LARGE)) && all_less(splat(SMALL), total[b]), 1)) {
        merge(s[b], {vf{}, total[b], weighted[b]});
      } else {
        add_extreme(s[b], messages + b * PLANE, n);
      }
    }
  }

  void __attribute__((noinline)) add_extreme(State& s, const float* messages, int n) const {
    State part;
    for (int i = 0; i < n; i++) part.base = max(part.base, log2(clamp(load(messages + i * LANES))) * p);
    for (int i = 0; i < n; i++) {
      vf log_m = log2(clamp(load(messages + i * LANES)));
      vf w = exp2(fma(log_m, splat(p), -part.base));
      part.total += w;
      part.weighted = fma(w, log_m, part.weighted);
    }
    merge(s, part);
  }

  INLINE void merge(State& s, const State& o) const { s.merge(o); }

  INLINE bool is_steep(const State&, float) const { return false; }

  // stat: log2 of the sum of m^p, infinite where the mean was clamped. stat2: the derivative by p.
  INLINE Output finish(const State& s, float degree) const {
    return clamp_mean((s.base + log2(s.total / degree)) / p, s.base + log2(s.total), s.weighted / s.total);
  }

  INLINE Output clamp_mean(vf log_out, vf log_sum, vf log_mean) const {
    const vf inside = max(splat(least), min(splat(greatest), log_out));
    const vi clamped = (log_out < splat(least - ROUNDING)) | (log_out > splat(greatest + ROUNDING));
    log_out = clamped ? inside : log_out;
    const vf out = exp2(log_out), slope = out * (LN_2 / p) * ((clamped ? vf{} : log_mean) - log_out);
    return {out, clamped ? splat(__builtin_inff()) : log_sum, log_out < splat(MOST) ? slope : vf{}};
  }

  float log2_of(float bound) const { return std::min(std::log2(bound) / p, float(MOST)); }

  // PyG's power mean of no messages.
  INLINE Output of_nothing() const { return clamp_mean(splat(-__builtin_inff() / p), vf{}, vf{}); }

  INLINE void pack(const Arriving& d, vf* into, vf& dparam) const {
    into[0] = d.stat;
    into[1] = d.gradient * d.out;
    dparam = fma(d.gradient, d.stat2, dparam);
  }

  INLINE vf gradient(vf m, const vf* at, vf&) const {
    vf clamped = clamp(m);
    vf q = at[1] * exp2(fma(log2(clamped), splat(p - 1.0f), -at[0]));
    return clamped == m ? q : vf{};
  }
};

struct Add {
  static constexpr int packed = 1;
  Add(float, float, float) {}

  struct State {
    vf total = {};
  };

  template <int BLOCKS>
  INLINE void add(State* s, const float* messages, int n, bool) const {
    vf total[BLOCKS] = {};
    for (int i = 0; i < n; i++)
      for (int b = 0; b < BLOCKS; b++) total[b] += load(messages + b * PLANE + i * LANES);
    for (int b = 0; b < BLOCKS; b++) merge(s[b], {total[b]});
  }

  INLINE void merge(State& s, const State& o) const { s.total += o.total; }
  INLINE bool is_steep(const State&, float) const { return false; }
  INLINE Output finish(const State& s, float) const { return {s.total, vf{}, vf{}}; }
  INLINE void pack(const Arriving& d, vf* into, vf&) const { into[0] = d.gradient; }
  INLINE vf gradient(vf, const vf* at, vf&) const { return at[0]; }
};

struct Max {
  static constexpr int packed = 2;
  Max(float, float, float) {}

  struct State {
    vf maximum = splat(-__builtin_inff()), ties = {};
  };

  template <int BLOCKS>
  INLINE void add(State* s, const float* messages, int n, bool) const {
    State sum[BLOCKS];
    for (int i = 0; i < n; i++)
      for (int b = 0; b < BLOCKS; b++)
        add_one(sum[b].maximum, sum[b].ties, load(messages + b * PLANE + i * LANES), splat(1.0f));
    for (int b = 0; b < BLOCKS; b++) merge(s[b], sum[b]);
  }

  // A NaN is larger than all numbers.
  static INLINE void add_one(vf& maximum, vf& ties, vf m, vf count) {
    vi wins = (m > maximum) | (m != m);
    ties = wins ? count : (m == maximum ? ties + count : ties);
    maximum = wins ? m : maximum;
  }

  INLINE void merge(State& s, const State& o) const { add_one(s.maximum, s.ties, o.maximum, o.ties); }
  INLINE bool is_steep(const State&, float) const { return false; }
  INLINE Output finish(const State& s, float) const { return {s.maximum, s.ties, vf{}}; }
  INLINE void pack(const Arriving& d, vf* into, vf&) const {
    into[0] = d.gradient / d.stat;
    into[1] = d.out;
  }
  INLINE vf gradient(vf m, const vf* at, vf&) const { return m == at[1] ? at[0] : vf{}; }
};
