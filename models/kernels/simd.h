// One vector of float per instruction: 16 lanes with AVX-512, 8 with AVX2, 4 elsewhere (GCC and Clang vector types).
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define SIMD_AVX512
#define SIMD_NAME "avx512"
#define SIMD_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define SIMD_AVX2
#define SIMD_NAME "avx2"
#define SIMD_LANES 8
#elif defined(__aarch64__)
#include <arm_neon.h>
#define SIMD_NEON
#define SIMD_NAME "neon"
#define SIMD_LANES 4
#else
#define SIMD_NAME "portable"
#define SIMD_LANES 4
#endif

#define INLINE inline __attribute__((always_inline))

// The level that a library was compiled for; native.py asks.
extern "C" __attribute__((unused)) const char* simd_name() { return SIMD_NAME; }

constexpr int LANES = SIMD_LANES;
constexpr int TILE = 128;  // edges worked on at a time: what fits in the first-level cache
constexpr int PLANE = TILE * LANES;
typedef float vf __attribute__((vector_size(4 * SIMD_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * SIMD_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * SIMD_LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * SIMD_LANES), aligned(4), may_alias));

INLINE vf splat(float a) { return vf{} + a; }

INLINE vf load(const float* from) { return *reinterpret_cast<const vf_unaligned*>(from); }
INLINE void store(float* to, vf a) { *reinterpret_cast<vf_unaligned*>(to) = a; }

#ifdef SIMD_AVX2
INLINE __m256i first_lanes(int lanes) {
  static const int32_t ONES_AND_ZEROS[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ONES_AND_ZEROS + LANES - lanes));
}
#endif

// The first `lanes` only, for the last channels; the others are read as 0.
INLINE vf load(const float* from, int lanes) {
  if (lanes == LANES) return load(from);
#if defined(SIMD_AVX512)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), from);
#elif defined(SIMD_AVX2)
  return (vf)_mm256_maskload_ps(from, first_lanes(lanes));
#else
  vf out = {};
  std::memcpy(&out, from, 4 * lanes);
  return out;
#endif
}

INLINE void store(float* to, vf a, int lanes) {
  if (lanes == LANES) return store(to, a);
#if defined(SIMD_AVX512)
  _mm512_mask_storeu_ps(to, (__mmask16)((1u << lanes) - 1), (__m512)a);
#elif defined(SIMD_AVX2)
  _mm256_maskstore_ps(to, first_lanes(lanes), (__m256)a);
#else
  std::memcpy(to, &a, 4 * lanes);
#endif
}

// Written out, because forward and backward must round alike: max finds its winners again by equality.
INLINE vf fma(vf a, vf b, vf c) {
#if defined(SIMD_AVX512)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(SIMD_AVX2)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(SIMD_NEON)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// If one of the two is NaN, `b` is returned: a NaN in the second place is kept.
INLINE vf max(vf a, vf b) {
#if defined(SIMD_AVX512)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(SIMD_AVX2)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

INLINE vf min(vf a, vf b) {
#if defined(SIMD_AVX512)
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(SIMD_AVX2)
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

// False if any lane is NaN.
INLINE bool all_less(vf a, vf b) {
#if defined(SIMD_AVX512)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLT_UQ) == 0;
#elif defined(SIMD_AVX2)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLT_UQ)) == 0;
#elif defined(SIMD_NEON)
  return vminvq_u32((uint32x4_t)(a < b)) != 0;
#else
  vi less = a < b;
  bool all = true;
  for (int i = 0; i < LANES; i++) all &= less[i] != 0;
  return all;
#endif
}

INLINE vf absolute(vf a) { return (vf)((vi)a & 0x7fffffff); }

// `a` must not be negative.
INLINE vf with_sign_of(vf a, vf sign) { return (vf)((vi)a | ((vi)sign & int32_t(0x80000000))); }

template <int TERMS>
INLINE vf polynomial(vf x, const float (&coefficients)[TERMS]) {  // from the highest power down
  vf out = splat(coefficients[0]);
  for (int k = 1; k < TERMS; k++) out = fma(out, x, splat(coefficients[k]));
  return out;
}

// 2^a within two units in the last place; NaN stays NaN, far below -126 it is 0.
INLINE vf exp2(vf a) {
#ifdef SIMD_AVX512
  // Fraction in [0, 1) and scaling by 2^floor(a): one instruction each.
  vf f = (vf)_mm512_reduce_ps((__m512)a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  vf p = polynomial(f, {1.8775678925e-03f, 8.9893613442e-03f, 5.5826300219e-02f, 2.4015362307e-01f, 6.9315307250e-01f,
                        9.9999992508e-01f});
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)a);
#else
  // From the second argument of both, NaN is kept. Below -127, the factor is 0, and from 127.5 on infinity.
  vf c = min(splat(128.0f), max(splat(-127.0f), a));
  vf shifted = c + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer, left in the low bits
  vf f = c - (shifted - 12582912.0f);
  vf p = polynomial(f, {1.3276409889e-03f, 9.6755408374e-03f, 5.5507134656e-02f, 2.4022119736e-01f, 6.9314696695e-01f,
                        1.0000000717e+00f});
  return p * (vf)(((vi)shifted << 23) + 0x3f800000);
#endif
}

// log2 of positive normal numbers; infinity and NaN stay what they are.
INLINE vf log2(vf a) {
  vi exponent = ((vi)a - 0x3f400000) >> 23;  // the rest is in [0.75, 1.5)
  vf x = (vf)((vi)a - (exponent << 23)) - 1.0f;
  vf p =
      polynomial(x, {-6.4344143901e-02f, 1.5066694676e-01f, -1.9027847329e-01f, 2.0910101088e-01f, -2.4014821048e-01f,
                     2.8838403681e-01f, -3.6067485447e-01f, 4.8090077239e-01f, -7.2134753738e-01f, 1.4426950349e+00f});
  return a < __builtin_inff() ? fma(p, x, __builtin_convertvector(exponent, vf)) : a;
}

// In double, for what is added up once in a pass.
INLINE double sum(vf a) {
  double total = 0;
  for (int i = 0; i < LANES; i++) total += a[i];
  return total;
}

// By halves, in float.
INLINE float quick_sum(vf a) {
#if defined(SIMD_AVX512)
  return _mm512_reduce_add_ps((__m512)a);
#elif defined(SIMD_AVX2)
  __m128 half = _mm256_castps256_ps128((__m256)a) + _mm256_extractf128_ps((__m256)a, 1);
  half += _mm_movehl_ps(half, half);
  return half[0] + half[1];
#elif defined(SIMD_NEON)
  return vaddvq_f32((float32x4_t)a);
#else
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) a[i] += a[i + half];
  return a[0];
#endif
}
