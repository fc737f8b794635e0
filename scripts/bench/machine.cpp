// How many multiplications and additions the machine does.
#include <cstdint>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float vf __attribute__((vector_size(BYTES)));
constexpr int LANES = BYTES / 4, SUMS = 12;  // enough independent sums to hide an instruction's latency

extern "C" {

// Returns the number of operations, two for each fused multiplication and addition.
int64_t multiply_add(int64_t rounds, int threads, float* out) {
#pragma omp parallel num_threads(threads)
  {
    vf sums[SUMS];
    const vf factor = vf{} + out[0], term = vf{} + out[1];
    for (int k = 0; k < SUMS; k++) sums[k] = vf{} + float(k);
    for (int64_t i = 0; i < rounds; i++)
      for (int k = 0; k < SUMS; k++) sums[k] = sums[k] * factor + term;
    for (int k = 1; k < SUMS; k++) sums[0] += sums[k];
#pragma omp critical
    out[2] += sums[0][0];
  }
  return 2 * rounds * SUMS * LANES * threads;
}
}
