// Sorting of edge lists, and checksums that tell whether one was changed. sorting.py calls the functions at the end.
#include <algorithm>
#include <cstring>
#include <vector>

#include "hash.h"

constexpr int OK = 0, BROKEN_INDEX = 1;

// Groups edges by `key` with a stable counting sort.
template <class T>
static int sort_by(const T* key, const T* other, int64_t num_edges, int64_t num_keys, T* ptr, T* sorted_other,
                   T* position) {
  std::fill_n(ptr, num_keys + 1, T(0));
  for (int64_t e = 0; e < num_edges; e++) {
    if (key[e] < 0 || key[e] >= num_keys) return BROKEN_INDEX;
    ptr[key[e] + 1]++;
  }
  for (int64_t k = 0; k < num_keys; k++) ptr[k + 1] += ptr[k];
  std::vector<T> next(ptr, ptr + num_keys);
  for (int64_t e = 0; e < num_edges; e++) {
    T to = next[key[e]]++;
    sorted_other[to] = other[e];
    position[to] = T(e);
  }
  return OK;
}

// Computes a checksum of memory, the same for any number of threads. Sixteen parallel chains hide the latency.
static uint64_t hash_words(const unsigned char* bytes, int64_t num_bytes, uint64_t seed) {
  constexpr int CHAINS = 16;
  uint64_t chain[CHAINS], words[CHAINS];
  for (int k = 0; k < CHAINS; k++) chain[k] = (seed + k + 1) * GOLDEN;
  for (int64_t at = 0; at < num_bytes; at += sizeof(words)) {
    const size_t left = std::min<int64_t>(sizeof(words), num_bytes - at);
    if (left < sizeof(words)) std::memset(words, 0, sizeof(words));
    std::memcpy(words, bytes + at, left);
    for (int k = 0; k < CHAINS; k++) {
      chain[k] = (chain[k] ^ words[k]) * GOLDEN;
      chain[k] ^= chain[k] >> 29;
    }
  }
  uint64_t sum = num_bytes;
  for (int k = 0; k < CHAINS; k++) sum = (sum ^ chain[k]) * GOLDEN, sum ^= sum >> 32;
  return sum;
}

extern "C" {

uint64_t edges_hash(const void* data, int64_t num_bytes, int64_t num_threads) {
  const int64_t block = 1 << 18, num_blocks = (num_bytes + block - 1) / block;
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t sum = 0;
#pragma omp parallel for num_threads(int(std::max<int64_t>(1, std::min(num_threads, num_blocks)))) reduction(+ : sum)
  for (int64_t b = 0; b < num_blocks; b++)
    sum += hash_words(bytes + b * block, std::min(block, num_bytes - b * block), uint64_t(b));
  return sum;
}

int edges_sort(const void* key, const void* other, int64_t num_edges, int64_t num_keys, int wide, void* ptr,
               void* sorted_other, void* position) {
  if (wide)
    return sort_by((const int64_t*)key, (const int64_t*)other, num_edges, num_keys, (int64_t*)ptr,
                   (int64_t*)sorted_other, (int64_t*)position);
  return sort_by((const int32_t*)key, (const int32_t*)other, num_edges, num_keys, (int32_t*)ptr, (int32_t*)sorted_other,
                 (int32_t*)position);
}
}
