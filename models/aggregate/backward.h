// Backward: packs the destinations, then walks the edges by source and recomputes each message once.
#pragma once
#include "problem.h"

constexpr int64_t PACK_ROWS = 256;
// The gradient of the table is summed in up to so many bytes of partial tables, but in at least MIN_STREAMS of them.
constexpr int64_t TABLE_BYTES = 16 << 20, MIN_STREAMS = 16;

// The chunks' sums for the table. Consecutive chunks form a stream, which one thread walks in order. How many there are
// depends only on the sizes, so that the number of threads changes no bit. A row is filled with zeros on its first use.
struct TableSums {
  const int64_t num_chunks, num_relations, num_blocks, num_streams;
  Buffer<vf> sums;       // [stream][relation][block]
  Buffer<uint8_t> used;  // [stream][relation]

  TableSums(int64_t num_chunks_, int64_t num_relations_, int64_t num_blocks_)
      : num_chunks(num_chunks_),
        num_relations(num_relations_),
        num_blocks(num_blocks_),
        num_streams(count_streams(num_chunks_, num_relations_ * num_blocks_ * int64_t(sizeof(vf)))),
        sums(num_relations_ ? num_streams * num_relations_ * num_blocks_ : 0),
        used(num_relations_ ? num_streams * num_relations_ : 0, 0) {}

  static int64_t count_streams(int64_t num_chunks, int64_t bytes) {
    return bytes ? std::min(num_chunks, std::max(MIN_STREAMS, TABLE_BYTES / bytes)) : num_chunks;
  }

  int64_t first_chunk(int64_t stream) const { return stream * num_chunks / num_streams; }
  vf* row(int64_t stream, int64_t relation) { return sums.data + (stream * num_relations + relation) * num_blocks; }

  void prepare(int64_t stream, const int64_t* relation, int num_edges) {
    uint8_t* here = used.data + stream * num_relations;
    for (int i = 0; i < num_edges; i++) {
      if (here[relation[i]]) continue;
      here[relation[i]] = 1;
      std::fill_n(row(stream, relation[i]), num_blocks, vf{});
    }
  }

  template <int BLOCKS>
  INLINE void add(int64_t stream, const int64_t* relation, int num_edges, int64_t block, const float* q) {
    vf* to = row(stream, 0) + block;
    for (int i = 0; i < num_edges; i++)
      for (int b = 0; b < BLOCKS; b++) to[relation[i] * num_blocks + b] += load(q + b * PLANE + i * LANES);
  }

  // Writes the sum over the streams of one relation's row.
  void finish(int64_t relation, int64_t channels, float* to) {
    for (int64_t block = 0; block < num_blocks; block++) {
      vf sum = {};
      for (int64_t stream = 0; stream < num_streams; stream++)
        if (used[stream * num_relations + relation]) sum += row(stream, relation)[block];
      store(to + block * LANES, sum, int(std::min<int64_t>(LANES, channels - block * LANES)));
    }
  }
};

template <class Kind>
struct Backward {
  const AggregationProblem& p;
  const Kind kind;
  const Sorted edges;
  Encoder encoder;
  const int64_t num_blocks, num_chunks, num_pack_blocks;
  Buffer<float> packed;  // [destination][block][Kind::packed][lane]
  Partials<vf> partials;
  // One of each per chunk, summed in order at the end.
  Buffer<float> weight_sums;
  Buffer<vf> bias_sums, param_sums, pack_sums;
  TableSums table_sums;

  explicit Backward(const AggregationProblem& p_)
      : p(p_),
        kind(p_.param, p_.low, p_.high),
        edges(sorted_edges(p_)),
        encoder(make_encoder(p_)),
        num_blocks(encoder.num_blocks),
        num_chunks(edges.num_chunks()),
        num_pack_blocks((p_.num_others + PACK_ROWS - 1) / PACK_ROWS),
        packed(p_.num_others * num_blocks * Kind::packed * LANES),
        partials(num_chunks, num_blocks),
        weight_sums(p_.grad_weight ? num_chunks * weight_size() : 0, 0.0f),
        bias_sums(num_chunks * num_blocks, vf{}),
        param_sums(num_chunks, vf{}),
        pack_sums(num_pack_blocks),
        table_sums(num_chunks, p_.grad_table ? p_.num_relations : 0, num_blocks) {}

  int64_t weight_size() const { return num_blocks * encoder.stride() * LANES; }

  void store_grad_x(int64_t row, int64_t block, vf sum) {
    const int lanes = int(std::min<int64_t>(LANES, p.channels - block * LANES));
    store(p.grad_x + row * p.channels + block * LANES, sum, lanes);
  }

  // Writes the vectors of one block of PACK_ROWS destinations that their edges will read.
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

  // Replaces the arguments of the messages' ReLU by their gradients.
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

  // Sums q over each row for x, over all edges for the bias, and times a group of features for the weight.
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

  // Adds W^T q of this block of channels to `into`.
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
  void run_blocks(const Tile& tile, int64_t stream, int64_t chunk, int64_t block, const float* features,
                  const int64_t* relation, float* z, vf* carried, float* grad_features) {
    encode<BLOCKS, false>(encoder, tile, tile.row, p.x, block, p.eps, features, relation, z);
    differentiate<BLOCKS>(tile, chunk, block, z);
    if (p.grad_table) table_sums.add<BLOCKS>(stream, relation, tile.num_edges, block, z);
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

  // Room of one thread.
  struct Room {
    Tile tile;
    Buffer<float> features, z, grad_features;
    Buffer<int64_t> relation;
    Buffer<vf> carried;
    explicit Room(const Encoder& encoder)
        : features(TILE * encoder.stride()),
          z(2 * PLANE),
          grad_features(TILE * encoder.stride()),
          relation(encoder.table ? TILE : 0),
          carried(encoder.num_blocks) {}
  };

  int run_tile(Room& room, int64_t stream, int64_t chunk) {
    const Tile& tile = room.tile;
    int64_t* relation = room.relation.data;
    float *z = room.z.data, *grad_features = room.grad_features.data;
    if (!encoder.read_relations(tile, relation)) return BROKEN_RELATION;
    if (p.grad_table) table_sums.prepare(stream, relation, tile.num_edges);
    const float* e = encoder.gather(tile, p.position == nullptr, room.features.data);
    int64_t block = 0;
    for (; block + 2 <= num_blocks; block += 2)
      run_blocks<2>(tile, stream, chunk, block, e, relation, z, room.carried.data, grad_features);
    if (block < num_blocks) run_blocks<1>(tile, stream, chunk, block, e, relation, z, room.carried.data, grad_features);
    if (!p.grad_attr || encoder.kind != RAW) return OK;
    float* to = p.grad_attr + encoder.first_feature();
    for (int i = 0; i < tile.num_edges; i++)
      std::memcpy(to + tile.position[i] * encoder.columns(), grad_features + i * encoder.stride(), 4 * p.edge_dim);
    return OK;
  }

  int run_chunk(Room& room, int64_t stream, int64_t chunk) {
    const int64_t packed_floats = num_blocks * Kind::packed * LANES;
    return walk_tiles(TileWalk(edges, chunk, p.num_positions, p.channels, packed_floats, p.attr != nullptr), chunk,
                      room.tile, room.carried.data, &partials,
                      [&](const Tile&) { return run_tile(room, stream, chunk); });
  }

  int run() {
    int status = OK;
#pragma omp parallel num_threads(edges.team(p.num_threads)) reduction(max : status)
    {
      Room room(encoder);
#pragma omp for schedule(static)
      for (int64_t b = 0; b < num_pack_blocks; b++) pack(b);
#pragma omp for schedule(dynamic, 1)
      for (int64_t stream = 0; stream < table_sums.num_streams; stream++)
        for (int64_t c = table_sums.first_chunk(stream); c < table_sums.first_chunk(stream + 1); c++)
          status = std::max(status, run_chunk(room, stream, c));
#pragma omp for schedule(static)
      for (int64_t r = 0; r < table_sums.num_relations; r++)
        table_sums.finish(r, p.channels, p.grad_table + r * p.channels);
      visit_empty_rows(edges, [&](int64_t row) { std::fill_n(p.grad_x + row * p.channels, p.channels, 0.0f); });
    }
    if (status) return status;
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
