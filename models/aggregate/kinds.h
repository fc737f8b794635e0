// What each aggregation does to the messages of one destination (forward) and to one edge (backward), LANES channels
// at a time. Forward states merge in any grouping of the edges; `finish` makes the output and what backward needs.
#pragma once
#include "simd.h"

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
constexpr float POWER_LOW = 1e-7f, POWER_HIGH = 10.0f;

struct Output {
  vf out, stat, stat2;
};

// What an edge of backward reads at its destination, in the order of Kind::gathers.
struct Gathered {
  vf a, b, c;
};

// Weights are relative to 2^M, where M is a running maximum of t * m * log2(e). It only moves when a new maximum is
// SLACK above it, which is seldom after the first edges and costs no accuracy: weights are then at most 2^SLACK.
struct Softmax {
  static constexpr bool semi_grad = false;
  static constexpr int gathers = 3;  // gradient, log2-sum-exp2, out
  static constexpr float SLACK = 12.0f;
  float t, t2;
  Softmax(float t_, float) : t(t_), t2(t_ * LOG2_E) {}

  struct State {
    vf maximum = splat(-__builtin_inff()), total = {}, weighted = {};
  };

  INLINE void add(State& s, const float* m, int n) const {
    // The largest exponent belongs to the largest message, or to the smallest where t is negative.
    vf top = load<true>(m), other = top;
    if (t >= 0) {
      for (int i = 1; i + 1 < n; i += 2) {
        top = max(top, load<true>(m + i * LANES));
        other = max(other, load<true>(m + (i + 1) * LANES));
      }
      top = max(max(top, other), load<true>(m + (n - 1) * LANES));
    } else {
      for (int i = 1; i + 1 < n; i += 2) {
        top = min(top, load<true>(m + i * LANES));
        other = min(other, load<true>(m + (i + 1) * LANES));
      }
      top = min(min(top, other), load<true>(m + (n - 1) * LANES));
    }
    vf exponent = top * t2;
    if (any_greater(exponent, s.maximum + SLACK)) {
      vf raised = max(s.maximum, exponent);
      vf scale = exp2(s.maximum - raised);
      s.total *= scale;
      s.weighted *= scale;
      s.maximum = raised;
    }
    vf total = {}, weighted = {};
    for (int i = 0; i < n; i++) {
      vf message = load<true>(m + i * LANES);
      vf w = exp2(fma(message, splat(t2), -s.maximum));
      total += w;
      weighted = fma(w, message, weighted);
    }
    s.total += total;
    s.weighted += weighted;
  }

  INLINE void merge(State& s, const State& o) const {
    vf raised = max(s.maximum, o.maximum);
    vf left = exp2(s.maximum - raised), right = exp2(o.maximum - raised);
    s.total = s.total * left + o.total * right;
    s.weighted = s.weighted * left + o.weighted * right;
    s.maximum = raised;
  }

  INLINE Output finish(const State& s, float) const {
    return {s.weighted / s.total, s.maximum + log2(s.total), vf{}};
  }

  INLINE vf gradient(vf m, const Gathered& at, vf& dparam) const {
    vf share = exp2(fma(m, splat(t2), -at.b)) * at.a;
    vf r = share * (m - at.c);
    dparam = fma(m, r, dparam);
    return fma(r, splat(t), share);
  }
};

// The same forward; no gradient through the weights.
struct SoftmaxSemiGrad : Softmax {
  static constexpr int gathers = 2;
  using Softmax::Softmax;
  INLINE vf gradient(vf m, const Gathered& at, vf&) const { return exp2(fma(m, splat(t2), -at.b)) * at.a; }
};

struct Power {
  static constexpr int gathers = 1;  // gradient * stat
  float p;
  Power(float p_, float) : p(p_) {}

  struct State {
    vf total = {}, log_total = {};
  };

  static INLINE vf clamp(vf m) { return min(splat(POWER_HIGH), max(splat(POWER_LOW), m)); }

  INLINE void add(State& s, const float* m, int n) const {
    vf total = {}, log_total = {};
    for (int i = 0; i < n; i++) {
      vf log_m = log2(clamp(load<true>(m + i * LANES)));
      vf w = exp2(log_m * p);
      total += w;
      log_total = fma(w, log_m, log_total);
    }
    s.total += total;
    s.log_total += log_total;
  }

  INLINE void merge(State& s, const State& o) const {
    s.total += o.total;
    s.log_total += o.log_total;
  }

  // stat: d out / d sum(m^p), times p. stat2: d out / d p.
  INLINE Output finish(const State& s, float degree) const {
    vf mean = s.total / degree;
    vf log_mean = log2(clamp(mean));
    vf out = exp2(log_mean / p);
    vi inside = (mean >= POWER_LOW) & (mean <= POWER_HIGH);
    vf stat = inside ? out / s.total : splat(0.0f);
    vf slope = inside ? s.log_total / s.total : splat(0.0f);
    vf stat2 = out * (LN_2 / p) * (slope - log_mean / p);
    return {out, stat, stat2};
  }

  INLINE vf gradient(vf m, const Gathered& at, vf&) const {
    vf clamped = clamp(m);
    vf q = at.a * exp2(log2(clamped) * (p - 1.0f));
    return clamped == m ? q : splat(0.0f);
  }
};

struct Add {
  static constexpr int gathers = 1;  // gradient
  Add(float, float) {}

  struct State {
    vf total = {};
  };

  INLINE void add(State& s, const float* m, int n) const {
    vf total = {};
    for (int i = 0; i < n; i++) total += load<true>(m + i * LANES);
    s.total += total;
  }

  INLINE void merge(State& s, const State& o) const { s.total += o.total; }
  INLINE Output finish(const State& s, float) const { return {s.total, vf{}, vf{}}; }
  INLINE vf gradient(vf, const Gathered& at, vf&) const { return at.a; }
};

struct Max {
  static constexpr int gathers = 2;  // gradient / ties, out
  Max(float, float) {}

  struct State {
    vf maximum = splat(-__builtin_inff()), ties = {};
  };

  INLINE void add(State& s, const float* m, int n) const {
    vf maximum = s.maximum, ties = s.ties;
    for (int i = 0; i < n; i++) add_one(maximum, ties, load<true>(m + i * LANES), splat(1.0f));
    s.maximum = maximum;
    s.ties = ties;
  }

  // A NaN wins and stays.
  static INLINE void add_one(vf& maximum, vf& ties, vf m, vf count) {
    vi wins = (m > maximum) | (m != m);
    ties = wins ? count : (m == maximum ? ties + count : ties);
    maximum = wins ? m : maximum;
  }

  INLINE void merge(State& s, const State& o) const { add_one(s.maximum, s.ties, o.maximum, o.ties); }
  INLINE Output finish(const State& s, float) const { return {s.maximum, s.ties, vf{}}; }
  INLINE vf gradient(vf m, const Gathered& at, vf&) const { return m == at.b ? at.a : splat(0.0f); }
};
