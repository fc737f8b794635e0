// The machine's limits: how fast it reads memory, and how many multiplications and additions it does.
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
constexpr int AHEAD = 24;                    // rows between a prefetch and its use

extern "C" {

int lanes() { return LANES; }

// Reads every element once.
float read_all(const vf* from, int64_t num_floats, int threads) {
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total) schedule(static)
  for (int64_t block = 0; block < num_floats / (LANES * 512); block++) {
    vf sums[8] = {};
    for (int i = 0; i < 512; i += 8)
      for (int k = 0; k < 8; k++) sums[k] += from[block * 512 + i + k];
    for (int k = 1; k < 8; k++) sums[0] += sums[k];
    total += sums[0][0];
  }
  return total;
}

// Sums rows of a table in the order of `index`, each of `width` vectors, at most 32; a prefetch runs ahead of them.
void gather_rows(const vf* table, const int64_t* index, int64_t count, int64_t width, int threads, float* out) {
#pragma omp parallel num_threads(threads)
  {
    vf sums[32] = {};
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++) {
      const vf* ahead = table + index[i + AHEAD < count ? i + AHEAD : i] * width;
      for (int64_t at = 0; at < width; at += 64 / BYTES ? 64 / BYTES : 1) __builtin_prefetch(ahead + at);
      const vf* row = table + index[i] * width;
      for (int64_t at = 0; at < width; at++) sums[at] += row[at];
    }
    for (int64_t at = 1; at < width; at++) sums[0] += sums[at];
#pragma omp critical
    out[0] += sums[0][0];
  }
}

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
