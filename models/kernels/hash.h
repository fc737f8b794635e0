// Random numbers as hashes: no draw depends on threads or on the draws before it.
#pragma once
#include <cstdint>

constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64: every bit of the result depends on every bit of z.
inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// An integer from 0 below a bound.
inline int64_t below(uint64_t bits, int64_t bound) {
  return int64_t((unsigned __int128)bits * uint64_t(bound) >> 64);
}

// Numbers of a sequence, each a hash of the key and its place.
struct Random {
  uint64_t key, place = 0;
  explicit Random(uint64_t key) : key(key) {}
  uint64_t operator()() { return mix(key + ++place * GOLDEN); }
};
