// Aggregation of GENConv without a tensor of edges x channels: forward by destination, backward by source, each edge
// visited once in each. models/aggregate/cpu.py compiles this file and calls it through the functions at its end.
#include "encode.h"
#include "kinds.h"

struct Problem {  // mirrored by cpu.Problem, field by field
  int64_t num_rows, num_others, num_edges, num_positions, channels, edge_dim;
  int64_t aggregation, features, num_threads;
  int64_t ptr_wide, other_wide, position_wide;
  const void *ptr, *other, *position;
  const float *x, *attr, *weight, *bias;
  float param, eps;
  // forward
  float *out, *stat, *stat2;
  // backward
  const float* gradient;
  float *grad_x, *grad_attr, *grad_weight, *grad_bias, *grad_param;
};

enum Aggregation { SOFTMAX = 0, SOFTMAX_SG = 1, POWER = 2, ADD = 3, MAX = 4 };
constexpr int OK = 0, BROKEN_INDEX = 1;
constexpr int64_t PACK_ROWS = 256;

static Sorted sorted_edges(const Problem& p) {
  return {p.num_rows, p.num_others, p.num_edges, {p.ptr, bool(p.ptr_wide)}, {p.other, bool(p.other_wide)},
          {p.position, bool(p.position_wide)}};
}

// Rows that chunks share: what each chunk knows of the row it begins in and of the row it ends in.
template <class State>
struct Partials {
  int64_t num_blocks;
  Buffer<State> head, tail;
  Partials(int64_t num_chunks, int64_t num_blocks_)
      : num_blocks(num_blocks_), head(num_chunks * num_blocks_), tail(num_chunks * num_blocks_) {}

  // Where the state of an unfinished or late-begun row goes.
  State* of(int64_t chunk, const Segment& segment) {
    return (segment.whole ? tail.data : head.data) + chunk * num_blocks;
  }

  // Calls done(row, states of all blocks) for every row of more than one chunk.
  template <class Merge, class Done>
  void merge(const Sorted& edges, Merge merge, Done done) {
    std::vector<State> sum(num_blocks);
    const int64_t step = edges.chunk_edges();
    for (int64_t chunk = 0; chunk < edges.num_chunks(); chunk++) {
      const int64_t begin = chunk * step, end = std::min(edges.num_edges, begin + step);
      int64_t row = edges.row_of(begin);
      if (edges.ptr[row] < begin) {
        for (int64_t b = 0; b < num_blocks; b++) merge(sum[b], head[chunk * num_blocks + b]);
        if (edges.ptr[row + 1] <= end) done(row, sum.data());
      }
      row = edges.row_of(end - 1);
      if (edges.ptr[row] >= begin && edges.ptr[row + 1] > end)
        std::copy_n(tail.data + chunk * num_blocks, num_blocks, sum.data());
    }
  }
};

template <class Kind>
struct Forward {
  using State = typename Kind::State;
  const Problem& p;
  const Kind kind;
  const Sorted edges;
  Encoder encoder;
  const int64_t num_blocks;
  Partials<State> partials;

  explicit Forward(const Problem& p_)
      : p(p_),
        kind(p_.param),
        edges(sorted_edges(p_)),
        encoder(Features(p_.features), p_.channels, p_.edge_dim, p_.attr, p_.weight, p_.bias),
        num_blocks(encoder.num_blocks),
        partials(edges.num_chunks(), num_blocks) {}

  void write(int64_t row, int64_t block, const State& state) {
    const int lanes = int(std::min<int64_t>(LANES, p.channels - block * LANES));
    const int64_t at = row * p.channels + block * LANES;
    const Output result = kind.finish(state, float(edges.ptr[row + 1] - edges.ptr[row]));
    store(p.out + at, result.out, lanes);
    if (p.stat) store(p.stat + at, result.stat, lanes);
    if (p.stat2) store(p.stat2 + at, result.stat2, lanes);
  }

  template <int BLOCKS>
  void run_blocks(const Tile& tile, int64_t chunk, int64_t block, const float* features, float* z, State* carried) {
    encode<BLOCKS, true>(encoder, tile, tile.other, p.x, block, p.eps, features, z);
    for (int s = 0; s < tile.num_segments; s++) {
      const Segment& segment = tile.segments[s];
      State states[BLOCKS];
      if (!segment.fresh) std::copy_n(carried + block, BLOCKS, states);
      kind.template add<BLOCKS>(states, z + segment.begin * LANES, segment.end - segment.begin, segment.fresh);
      if (segment.last && segment.whole) {
        for (int b = 0; b < BLOCKS; b++) write(segment.row, block + b, states[b]);
      } else {
        std::copy_n(states, BLOCKS, (segment.last ? partials.of(chunk, segment) : carried) + block);
      }
    }
  }

  bool run_chunk(int64_t chunk, Tile& tile, float* features, float* z, State* carried) {
    bool broken = false;
    TileWalk walk(edges, chunk, p.num_positions, p.channels, p.channels);
    while (walk.next(tile, broken)) {
      const float* e = encoder.gather(tile, p.position == nullptr, features);
      int64_t block = 0;
      for (; block + 2 <= num_blocks; block += 2) run_blocks<2>(tile, chunk, block, e, z, carried);
      if (block < num_blocks) run_blocks<1>(tile, chunk, block, e, z, carried);
    }
    if (broken) return false;
    const Segment& end = tile.segments[tile.num_segments - 1];
    if (!end.last) std::copy_n(carried, num_blocks, partials.of(chunk, end));
    return true;
  }

  int run() {
    int broken = 0;
    const int64_t num_chunks = edges.num_chunks();
#pragma omp parallel num_threads(p.num_threads) reduction(| : broken)
    {
      Tile tile;
      Buffer<float> features(TILE * encoder.stride()), z(2 * PLANE);
      Buffer<State> carried(num_blocks);
#pragma omp for schedule(dynamic, 1)
      for (int64_t chunk = 0; chunk < num_chunks; chunk++)
        broken |= !run_chunk(chunk, tile, features.data, z.data, carried.data);
#pragma omp for schedule(static)
      for (int64_t row = 0; row < p.num_rows; row++) {
        if (edges.ptr[row] != edges.ptr[row + 1]) continue;
        for (float* array : {p.out, p.stat, p.stat2})
          if (array) std::fill_n(array + row * p.channels, p.channels, 0.0f);
      }
    }
    if (broken) return BROKEN_INDEX;
    partials.merge(
        edges, [&](State& sum, const State& part) { kind.merge(sum, part); },
        [&](int64_t row, const State* states) {
          for (int64_t b = 0; b < num_blocks; b++) write(row, b, states[b]);
        });
    return OK;
  }
};

template <class Kind>
struct Backward {
  const Problem& p;
  const Kind kind;
  const Sorted edges;
  Encoder encoder;
  const int64_t num_blocks, num_chunks, num_pack_blocks;
  Buffer<float> packed;  // [destination][block][Kind::packed][lane]
  Partials<vf> partials;
  // One of each per chunk, summed in order at the end.
  Buffer<float> weight_sums;
  Buffer<vf> bias_sums, param_sums, pack_sums;

  explicit Backward(const Problem& p_)
      : p(p_),
        kind(p_.param),
        edges(sorted_edges(p_)),
        encoder(Features(p_.features), p_.channels, p_.edge_dim, p_.attr, p_.weight, p_.bias),
        num_blocks(encoder.num_blocks),
        num_chunks(edges.num_chunks()),
        num_pack_blocks((p_.num_others + PACK_ROWS - 1) / PACK_ROWS),
        packed(p_.num_others * num_blocks * Kind::packed * LANES),
        partials(num_chunks, num_blocks),
        weight_sums(p_.grad_weight ? num_chunks * weight_size() : 0, 0.0f),
        bias_sums(num_chunks * num_blocks, vf{}),
        param_sums(num_chunks, vf{}),
        pack_sums(num_pack_blocks) {}

  int64_t weight_size() const { return num_blocks * encoder.stride() * LANES; }

  void store_grad_x(int64_t row, int64_t block, vf sum) {
    const int lanes = int(std::min<int64_t>(LANES, p.channels - block * LANES));
    store(p.grad_x + row * p.channels + block * LANES, sum, lanes);
  }

  // One block of PACK_ROWS destinations: all that their edges will read, side by side.
  void pack(int64_t pack_block) {
    const int64_t end = std::min(edges.num_others, (pack_block + 1) * PACK_ROWS);
    vf dparam = {};
    for (int64_t node = pack_block * PACK_ROWS; node < end; node++) {
      for (int64_t block = 0; block < num_blocks; block++) {
        const int lanes = int(std::min<int64_t>(LANES, p.channels - block * LANES));
        const int64_t at = node * p.channels + block * LANES;
        auto read = [&](const float* array) { return array ? load(array + at, lanes) : vf{}; };
        vf into[Kind::packed];
        kind.pack({read(p.gradient), read(p.out), read(p.stat), read(p.stat2)}, into, dparam);
        for (int k = 0; k < Kind::packed; k++)
          store(packed.data + ((node * num_blocks + block) * Kind::packed + k) * LANES, into[k]);
      }
    }
    pack_sums[pack_block] = dparam;
  }

  // From the arguments of the messages' relu to their gradients, in place.
  template <int BLOCKS>
  INLINE void differentiate(const Tile& tile, int64_t chunk, int64_t block, float* z) {
    const float* from = packed.data + block * Kind::packed * LANES;
    const int n = tile.num_edges;
    const vf eps = splat(p.eps);
    const Kind local = kind;  // the compiler cannot know that writing z leaves `kind` alone
    vf dparam[BLOCKS] = {};
    for (int i = 0; i < n; i++) {
      const float *here = from + tile.other[i], *ahead = from + tile.other[i + AHEAD];
      for (int b = 0; b < BLOCKS; b++) {
        vf at[Kind::packed];
        for (int k = 0; k < Kind::packed; k++) {
          __builtin_prefetch(ahead + (b * Kind::packed + k) * LANES);
          at[k] = load(here + (b * Kind::packed + k) * LANES);
        }
        float* zi = z + b * PLANE + i * LANES;
        const vf argument = load(zi);
        const vf gradient = local.gradient(max(vf{}, argument) + eps, at, dparam[b]);
        store(zi, argument > 0.0f ? gradient : vf{});
      }
    }
    for (int b = 0; b < BLOCKS; b++) param_sums[chunk] += dparam[b];
  }

  // Sums of q: over each row for x, over all for the bias, times a group of features for the weight.
  template <int BLOCKS, bool Weighted>
  INLINE void add_up(const Tile& tile, int64_t chunk, int64_t block, const float* features, const float* q,
                     vf* carried) {
    const int64_t stride = encoder.stride();
    vf weight[BLOCKS][GROUP] = {}, bias[BLOCKS] = {};
    for (int s = 0; s < tile.num_segments; s++) {
      const Segment& segment = tile.segments[s];
      vf sum[BLOCKS] = {};
      const float* e = features + segment.begin * stride;
      for (int i = segment.begin; i < segment.end; i++, e += stride) {
        vf qi[BLOCKS];
        for (int b = 0; b < BLOCKS; b++) {
          qi[b] = load(q + b * PLANE + i * LANES);
          sum[b] += qi[b];
        }
        if constexpr (Weighted)
          for (int k = 0; k < GROUP; k++)
            for (int b = 0; b < BLOCKS; b++) weight[b][k] = fma(splat(e[k]), qi[b], weight[b][k]);
      }
      for (int b = 0; b < BLOCKS; b++) {
        bias[b] += sum[b];
        if (!segment.fresh) sum[b] += carried[block + b];
        if (segment.last && segment.whole) {
          store_grad_x(segment.row, block + b, sum[b]);
        } else if (segment.last) {
          partials.of(chunk, segment)[block + b] = sum[b];
        } else {
          carried[block + b] = sum[b];
        }
      }
    }
    for (int b = 0; b < BLOCKS; b++) {
      bias_sums[chunk * num_blocks + block + b] += bias[b];
      if (Weighted) add_to_weight(chunk, block + b, 0, weight[b]);
    }
  }

  void add_up_other_groups(int n, int64_t chunk, int64_t block, const float* features, const float* q) {
    const int64_t stride = encoder.stride();
    for (int64_t group = 1; group < encoder.num_groups; group++) {
      vf sums[GROUP] = {};
      const float* e = features + group * GROUP;
      for (int i = 0; i < n; i++, e += stride) {
        vf qi = load(q + i * LANES);
        for (int k = 0; k < GROUP; k++) sums[k] = fma(splat(e[k]), qi, sums[k]);
      }
      add_to_weight(chunk, block, group, sums);
    }
  }

  INLINE void add_to_weight(int64_t chunk, int64_t block, int64_t group, const vf* sums) {
    float* to = weight_sums.data + chunk * weight_size() + (block * encoder.stride() + group * GROUP) * LANES;
    for (int k = 0; k < GROUP; k++) store(to + k * LANES, load(to + k * LANES) + sums[k]);
  }

  // W^T q of this block's channels, added up over the blocks in `into`.
  INLINE void to_features(int n, int64_t block, const float* q, float* into) {
    typedef float vg __attribute__((vector_size(4 * GROUP)));
    const int64_t stride = encoder.stride();
    for (int64_t group = 0; group < encoder.num_groups; group++) {
      alignas(64) vg columns[LANES];
      for (int lane = 0; lane < LANES; lane++)
        for (int k = 0; k < GROUP; k++) columns[lane][k] = *encoder.weight_at(block, group * GROUP + k, lane);
      for (int i = 0; i < n; i++) {
        vg* to = reinterpret_cast<vg*>(into + i * stride + group * GROUP);
        vg sum = block ? *to : vg{};
        for (int lane = 0; lane < LANES; lane++) sum += columns[lane] * q[i * LANES + lane];
        *to = sum;
      }
    }
  }

  template <int BLOCKS>
  void run_blocks(const Tile& tile, int64_t chunk, int64_t block, const float* features, float* z, vf* carried,
                  float* grad_features) {
    encode<BLOCKS, false>(encoder, tile, tile.row, p.x, block, p.eps, features, z);
    differentiate<BLOCKS>(tile, chunk, block, z);
    if (p.grad_weight) {
      add_up<BLOCKS, true>(tile, chunk, block, features, z, carried);
    } else {
      add_up<BLOCKS, false>(tile, chunk, block, features, z, carried);
    }
    for (int b = 0; b < BLOCKS; b++) {
      const float* q = z + b * PLANE;
      if (p.grad_weight) add_up_other_groups(tile.num_edges, chunk, block + b, features, q);
      if (p.grad_attr && encoder.kind == RAW) to_features(tile.num_edges, block + b, q, grad_features);
      if (p.grad_attr && encoder.kind == ENCODED) scatter_encoded(tile, block + b, q);
    }
  }

  void scatter_encoded(const Tile& tile, int64_t block, const float* q) {
    const int lanes = int(std::min<int64_t>(LANES, p.channels - block * LANES));
    for (int i = 0; i < tile.num_edges; i++)
      store(p.grad_attr + tile.position[i] * p.channels + block * LANES, load(q + i * LANES), lanes);
  }

  bool run_chunk(int64_t chunk, Tile& tile, float* features, float* z, vf* carried, float* grad_features) {
    bool broken = false;
    TileWalk walk(edges, chunk, p.num_positions, p.channels, num_blocks * Kind::packed * LANES);
    while (walk.next(tile, broken)) {
      const float* e = encoder.gather(tile, p.position == nullptr, features);
      int64_t block = 0;
      for (; block + 2 <= num_blocks; block += 2) run_blocks<2>(tile, chunk, block, e, z, carried, grad_features);
      if (block < num_blocks) run_blocks<1>(tile, chunk, block, e, z, carried, grad_features);
      if (!p.grad_attr || encoder.kind != RAW) continue;
      for (int i = 0; i < tile.num_edges; i++)
        std::memcpy(p.grad_attr + tile.position[i] * p.edge_dim, grad_features + i * encoder.stride(), 4 * p.edge_dim);
    }
    if (broken) return false;
    const Segment& end = tile.segments[tile.num_segments - 1];
    if (!end.last) std::copy_n(carried, num_blocks, partials.of(chunk, end));
    return true;
  }

  int run() {
    int broken = 0;
#pragma omp parallel num_threads(p.num_threads) reduction(| : broken)
    {
      Tile tile;
      Buffer<float> features(TILE * encoder.stride()), z(2 * PLANE), grad_features(TILE * encoder.stride());
      Buffer<vf> carried(num_blocks);
#pragma omp for schedule(static)
      for (int64_t b = 0; b < num_pack_blocks; b++) pack(b);
#pragma omp for schedule(dynamic, 1)
      for (int64_t chunk = 0; chunk < num_chunks; chunk++)
        broken |= !run_chunk(chunk, tile, features.data, z.data, carried.data, grad_features.data);
#pragma omp for schedule(static)
      for (int64_t row = 0; row < p.num_rows; row++)
        if (edges.ptr[row] == edges.ptr[row + 1]) std::fill_n(p.grad_x + row * p.channels, p.channels, 0.0f);
    }
    if (broken) return BROKEN_INDEX;
    partials.merge(
        edges, [](vf& sum, const vf& part) { sum += part; },
        [&](int64_t row, const vf* sums) {
          for (int64_t b = 0; b < num_blocks; b++) store_grad_x(row, b, sums[b]);
        });
    reduce();
    return OK;
  }

  void reduce() {
    double param = 0;
    for (int64_t b = 0; b < num_pack_blocks; b++) param += sum(pack_sums[b]);
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) param += sum(param_sums[chunk]);
    if (p.grad_param) *p.grad_param = float(param);
    for (int64_t c = 0; c < p.channels; c++) {
      const int64_t block = c / LANES, lane = c % LANES;
      if (p.grad_bias) {
        double bias = 0;
        for (int64_t chunk = 0; chunk < num_chunks; chunk++) bias += bias_sums[chunk * num_blocks + block][lane];
        p.grad_bias[c] = float(bias);
      }
      for (int64_t k = 0; p.grad_weight && k < p.edge_dim; k++) {
        double weight = 0;
        for (int64_t chunk = 0; chunk < num_chunks; chunk++)
          weight += weight_sums[chunk * weight_size() + (block * encoder.stride() + k) * LANES + lane];
        p.grad_weight[c * p.edge_dim + k] = float(weight);
      }
    }
  }
};

template <template <class> class Pass>
static int dispatch(const Problem& p) {
  switch (p.aggregation) {
    case SOFTMAX: return Pass<Softmax>(p).run();
    case SOFTMAX_SG: return Pass<SoftmaxSemiGrad>(p).run();
    case POWER: return Pass<Power>(p).run();
    case ADD: return Pass<Add>(p).run();
    default: return Pass<Max>(p).run();
  }
}

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

extern "C" {

const char* fused_simd() { return SIMD_NAME; }

int fused_forward(const Problem* p) { return dispatch<Forward>(*p); }

int fused_backward(const Problem* p) { return dispatch<Backward>(*p); }

int fused_sort(const void* key, const void* other, int64_t num_edges, int64_t num_keys, int wide, void* ptr,
               void* sorted_other, void* position) {
  if (wide)
    return sort_by((const int64_t*)key, (const int64_t*)other, num_edges, num_keys, (int64_t*)ptr,
                   (int64_t*)sorted_other, (int64_t*)position);
  return sort_by((const int32_t*)key, (const int32_t*)other, num_edges, num_keys, (int32_t*)ptr,
                 (int32_t*)sorted_other, (int32_t*)position);
}
}
