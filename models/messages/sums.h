// Sums of whole rows in registers, of values as they are or times a factor of each edge. Most layers need nothing else,
// forward and backward.
#pragma once
#include "problem.h"

enum Factor { NO_FACTOR, ONE_FACTOR, FACTOR_OF_BLOCK, FACTOR_OF_CHANNEL };

// Runs a pass chunk by chunk, then finishes the rows that several chunks share.
template <class Pass>
int run_rows(const Pass& pass) {
  const MessageProblem& p = pass.p;
  const Sorted& edges = pass.edges;
  Partials<vf> partials(p.out ? edges.num_chunks() : 0, pass.num_blocks);
  const int status = run_chunks(
      edges, p.num_threads, [&] { return typename Pass::Room(pass.num_blocks); },
      [&](int64_t chunk, typename Pass::Room& room) { return pass.run_chunk(chunk, room, partials); },
      [&](int64_t row) { std::fill_n(p.out + row * p.channels, p.channels, 0.0f); }, p.out);
  if (status) return status;
  if (!p.out) return OK;
  partials.merge(
      edges, [](vf& sum, const vf& part) { sum += part; },
      [&](int64_t row, const vf* sums) { pass.finish(row, 0, sums, pass.num_blocks); });
  return OK;
}

struct Sums {
  const MessageProblem& p;
  const Sorted edges;
  Operand values = {}, factors = {};
  Factor factor = NO_FACTOR;      // of each edge
  Factor row_factor = NO_FACTOR;  // of a whole sum
  int64_t num_blocks, num_whole;  // the last block overlaps the one before if the channels are not a multiple of LANES

  explicit Sums(const MessageProblem& p_)
      : p(p_), edges(sorted_edges(p_)), num_blocks((p_.channels + LANES - 1) / LANES), num_whole(p_.channels / LANES) {}

  // Tells whether the pass is such a sum.
  bool fits() {
    if (p.channels < LANES || p.edge_out.data || !p.ptr || p.num_edges == 0) return false;
    if (p.backward ? !fits_backward() : !fits_forward()) return false;
    if (values.map || values.dtype != FLOAT32 || values.place == ROW || values.place == NOWHERE) return false;
    if (factors.place == NOWHERE) return true;
    if (factors.dtype != FLOAT32) return false;
    bool runs = true, splats = true;
    for (int64_t block = 0; block < num_blocks; block++) {
      const Access access = find_block(factors, channel_of(block), LANES).access;
      runs &= access == RUN, splats &= access == SPLAT;
    }
    (factors.place == ROW ? row_factor : factor) = factors.width == 1 ? ONE_FACTOR
                                                   : splats           ? FACTOR_OF_BLOCK
                                                                      : FACTOR_OF_CHANNEL;
    return runs || splats;
  }

  bool fits_forward() {
    if (p.reduction != SUM) return false;
    choose(p.left, p.operation == MUL ? p.right : Operand{});
    return p.operation == COPY || p.operation == MUL;
  }

  bool fits_backward() {
    choose(p.gradient, p.operation != MUL ? Operand{} : p.row_side == LEFT ? p.right : p.left);
    if (p.row_side == NEITHER || p.edge_side != NEITHER || p.second.data) return false;
    return p.operation <= MUL && !(p.operation == SUB && p.row_side == RIGHT);
  }

  // The values are whole rows of other nodes or of edges, of nodes if both are.
  void choose(const Operand& one, const Operand& another) {
    values = one, factors = another;
    const bool both = !another.map && another.place == OTHER && one.place == EDGE;
    if (another.place != NOWHERE && (one.map || one.place == ROW || both)) std::swap(values, factors);
  }

  int64_t channel_of(int64_t block) const { return std::min(block * LANES, p.channels - LANES); }

  INLINE vf factor_of(const float* f, Factor kind, int64_t channel) const {
    if (kind == ONE_FACTOR) return splat(*f);
    const int64_t column = find_block(factors, channel, LANES).column;
    return kind == FACTOR_OF_CHANNEL ? load(f + column) : splat(f[column]);
  }

  // Stores blocks of the sum of a row.
  INLINE void finish(int64_t row, int64_t first, const vf* sums, int64_t count) const {
    const float* f = static_cast<const float*>(factors.data) + row * factors.width;
    for (int64_t b = 0; b < count; b++) {
      const int64_t channel = channel_of(first + b);
      const vf sum = row_factor == NO_FACTOR ? sums[b] : sums[b] * factor_of(f, row_factor, channel);
      store(p.out + row * p.channels + channel, sum);
    }
  }

  // Adds up the edges of a chunk, which begins in `row`, BLOCKS blocks of channels at a time. Sums of rows that the chunk
  // does not hold whole are left in `head` and `tail`. `at` tells where the values of an edge are, `factor_at` its factors.
  template <int BLOCKS, Factor FACTOR>
  void add_rows(const Index& at, const Index& factor_at, int64_t begin, int64_t end, int64_t row, int64_t first,
                vf* head, vf* tail) const {
    const float* from = static_cast<const float*>(values.data) + channel_of(first);
    const float* factors_from = static_cast<const float*>(factors.data);
    int64_t column[BLOCKS];
    if (FACTOR == FACTOR_OF_BLOCK || FACTOR == FACTOR_OF_CHANNEL)
      for (int b = 0; b < BLOCKS; b++) column[b] = find_block(factors, channel_of(first + b), LANES).column;
    vf sums[BLOCKS];
    const auto add = [&](int64_t i) {
      const float *here = from + at[i] * p.channels, *f = factors_from;
      if (FACTOR != NO_FACTOR) f += factor_at[i] * factors.width;
      for (int b = 0; b < BLOCKS; b++) {
        const vf value = load(here + b * LANES);
        if (FACTOR == NO_FACTOR) sums[b] += value;
        if (FACTOR == ONE_FACTOR) sums[b] = fma(splat(*f), value, sums[b]);
        if (FACTOR == FACTOR_OF_BLOCK) sums[b] = fma(splat(f[column[b]]), value, sums[b]);
        if (FACTOR == FACTOR_OF_CHANNEL) sums[b] = fma(load(f + column[b]), value, sums[b]);
      }
    };
    for (int64_t i = begin; i < end; row++) {
      const int64_t row_begin = edges.ptr[row], row_end = edges.ptr[row + 1], stop = std::min(row_end, end);
      if (row_end <= i) continue;
      std::fill_n(sums, BLOCKS, vf{});
      for (; i < std::min(stop, p.num_edges - AHEAD); i++) {
        const float* ahead = from + at[i + AHEAD] * p.channels;
        for (int b = 0; b < BLOCKS; b += 16 / LANES) __builtin_prefetch(ahead + b * LANES);
        if (FACTOR != NO_FACTOR) __builtin_prefetch(factors_from + factor_at[i + AHEAD] * factors.width);
        add(i);
      }
      for (; i < stop; i++) add(i);
      if (row_begin < begin || row_end > end) std::copy_n(sums, BLOCKS, (row_begin < begin ? head : tail) + first);
      else finish(row, first, sums, BLOCKS);
    }
  }

  template <Factor FACTOR>
  int add_blocks(int64_t chunk, Partials<vf>& partials) const {
    const int64_t begin = chunk * edges.chunk_edges(), end = std::min(p.num_edges, begin + edges.chunk_edges());
    const int64_t row = edges.row_of(begin);
    const Index &at = values.place == EDGE ? edges.position : edges.other,
                &factor_at = factors.place == EDGE ? edges.position : edges.other;
    bool good = edges.rows_are_sorted(row, begin, end) &&
                at.is_below(values.place == EDGE ? p.num_edges : p.num_others, begin, end);
    if (FACTOR != NO_FACTOR && factors.place != values.place)
      good &= factor_at.is_below(factors.place == EDGE ? p.num_edges : p.num_others, begin, end);
    if (!good) return BROKEN_INDEX;
    vf *head = partials.head.data + chunk * num_blocks, *tail = partials.tail.data + chunk * num_blocks;
    int64_t block = 0;
    for (; block + 8 <= num_whole; block += 8) add_rows<8, FACTOR>(at, factor_at, begin, end, row, block, head, tail);
    for (; block + 4 <= num_whole; block += 4) add_rows<4, FACTOR>(at, factor_at, begin, end, row, block, head, tail);
    for (; block + 2 <= num_whole; block += 2) add_rows<2, FACTOR>(at, factor_at, begin, end, row, block, head, tail);
    for (; block < num_blocks; block++) add_rows<1, FACTOR>(at, factor_at, begin, end, row, block, head, tail);
    return OK;
  }

  struct Room {  // of one thread; sums lie in registers
    explicit Room(int64_t) {}
  };

  int run_chunk(int64_t chunk, Room&, Partials<vf>& partials) const {
    switch (factor) {
      case NO_FACTOR: return add_blocks<NO_FACTOR>(chunk, partials);
      case ONE_FACTOR: return add_blocks<ONE_FACTOR>(chunk, partials);
      case FACTOR_OF_BLOCK: return add_blocks<FACTOR_OF_BLOCK>(chunk, partials);
      default: return add_blocks<FACTOR_OF_CHANNEL>(chunk, partials);
    }
  }

  int run() const { return run_rows(*this); }
};
