// Random numbers as hashes: no draw depends on threads or on the draws before it. hash.py has the same in Python.
#pragma once
#include <cstdint>

constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64: every bit of the result depends on every bit of z.
inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The key of a row's elements, whose dropout `hash_element` decides.
inline uint64_t key_of_row(int64_t seed, int64_t row) { return mix(uint64_t(seed) + uint64_t(row + 1) * GOLDEN); }

// Mixes the key of a row and the number of an element, or of several elements in a vector of uint32_t.
template <class Number>
inline __attribute__((always_inline)) Number hash_element(uint64_t key, Number element) {
  Number h = element * 0x9e3779b1u + uint32_t(key);
  h = (h ^ (h >> 16)) * 0x7feb352du + uint32_t(key >> 32);
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  return h ^ (h >> 16);
}

// Scales random bits to an integer from 0 to bound - 1.
inline int64_t below(uint64_t bits, int64_t bound) { return int64_t((unsigned __int128)bits * uint64_t(bound) >> 64); }

// Draws a row of an alias table [size] with the probability that the table gives it.
inline int64_t draw_row(uint64_t bits, int64_t size, const float* accept, const int32_t* alias) {
  const int64_t row = int64_t((bits >> 32) * uint64_t(size) >> 32);
  const float uniform = float(uint32_t(bits) >> 8) * 0x1p-24f;
  return uniform < accept[row] ? row : alias[row];
}

// Generates the numbers of a SplitMix64 sequence: each is a hash of the key and of its place.
struct Random {
  uint64_t key, place = 0;
  explicit Random(uint64_t key) : key(key) {}
  uint64_t operator()() { return mix(key + ++place * GOLDEN); }
};
