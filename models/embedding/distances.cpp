// Sums of the moduli of complex differences and their gradients, for models/embedding/distances.py.
//
// Rows are `half` real parts and then `half` imaginary parts, float32. Batches are independent of each other and each
// sum is computed by one thread in one order, so the result has the same bits for any number of threads.
#include <cmath>
#include <cstdint>

namespace {
// Smallest square of a modulus, whose gradient at 0 would be infinite; as TINY in distances.py.
constexpr float TINY = 1e-30f;
}  // namespace

extern "C" {

void modulus_forward(const float* queries, const float* entities, float* sums, int64_t batches, int64_t n, int64_t m,
                     int64_t half, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < batches * n; ++row) {
    const float *qr = queries + row * 2 * half, *qi = qr + half;
    const float* others = entities + row / n * m * 2 * half;
    for (int64_t j = 0; j < m; ++j) {
      const float *er = others + j * 2 * half, *ei = er + half;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < half; ++k) {
        const float re = qr[k] - er[k], im = qi[k] - ei[k], square = re * re + im * im;
        sum += std::sqrt(square < TINY ? TINY : square);  // so that a NaN stays a NaN
      }
      sums[row * m + j] = sum;
    }
  }
}

void modulus_backward(const float* queries, const float* entities, const float* grads, float* to_queries,
                      float* to_entities, int64_t batches, int64_t n, int64_t m, int64_t half, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = batch * n + i;
      const float *qr = queries + row * 2 * half, *qi = qr + half;
      float *gr = to_queries + row * 2 * half, *gi = gr + half;
      for (int64_t j = 0; j < m; ++j) {
        const int64_t column = batch * m + j;
        const float *er = entities + column * 2 * half, *ei = er + half;
        float *hr = to_entities + column * 2 * half, *hi = hr + half;
        const float grad = grads[row * m + j];
#pragma omp simd
        for (int64_t k = 0; k < half; ++k) {
          const float re = qr[k] - er[k], im = qi[k] - ei[k], square = re * re + im * im;
          const float scale = grad / std::sqrt(square < TINY ? TINY : square);
          gr[k] += scale * re, gi[k] += scale * im;
          hr[k] -= scale * re, hi[k] -= scale * im;
        }
      }
    }
  }
}
}
