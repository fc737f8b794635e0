// Backward: each edge is visited once. The gradients of the nodes at its far end are added to a copy of each thread, which
// sums up a part of the edges. The number of parts never depends on the threads, and their sums are added in order.
// Rows are destinations, or sources (`by_source` of a score): then the copies hold gradients of the destinations' scores (GAT)
// or queries (dot products), not of messages.
#pragma once
#include <memory>

#include "attention_gradients.h"

// The problem whose rows are the sources, for edges that are sorted by source: the gradients of the outputs are read as
// messages are, and the messages stand in the place of these gradients.
static AttentionProblem by_source(AttentionProblem p) {
  std::swap(p.num_dst, p.num_src);
  std::swap(p.message, p.gradient);
  std::swap(p.source, p.target);
  std::swap(p.grad_source, p.grad_target);
  return p;
}

template <class Score, bool EDGES>
struct AttentionBackward : AttentionGradients<Score, EDGES> {
  using Base = AttentionGradients<Score, EDGES>;
  using Base::edges, Base::encoded_size, Base::groups, Base::layout, Base::p, Base::row_size, Base::score_size,
      Base::size, Base::width, Base::BY_HEAD, Base::BY_SOURCE, Base::ENCODES, Base::PROJECTS;
  using Part = typename Base::Part;
  using Row = typename Base::Row;

  static constexpr int64_t MAX_PARTS = BY_HEAD ? 16 : BY_SOURCE ? 8 : 4;

  const int64_t num_parts;
  std::unique_ptr<Part> total;
  Partials<float> partials;

  explicit AttentionBackward(const AttentionProblem& p_)
      : Base(p_),
        // Their sums together stay smaller than a tensor of edges x channels, even if every part has its own thread.
        num_parts(std::max<int64_t>(
            1, std::min({MAX_PARTS, std::max<int64_t>(2, edges.num_edges / (4 * std::max<int64_t>(p_.num_src, 1))),
                         edges.num_chunks()}))),
        partials(edges.num_chunks(), row_size) {}

  // What a thread works with.
  struct Worker {
    AttentionBackward& pass;
    Buffer<float> features, z;
    Row row;
    std::unique_ptr<Part> part;
    int64_t chunk = 0;
    int num_slices = 0;
    Segment last = {};

    explicit Worker(AttentionBackward& pass_)
        : pass(pass_), features(SLICE * pass.p.edge_dim), z(ENCODES ? SLICE * pass.encoded_size : 0), row(pass) {}

    void begin(const Slice& slice) {
      if (ENCODES) pass.encode(slice, z.data);
    }
    void visit(const Slice& slice, const Segment& segment) {
      last = segment;
      if (segment.fresh) pass.open(segment.row, row);
      if (segment.begin < segment.end) pass.add(*part, pass.edges_of(slice, segment, z.data), row);
      if (segment.last) close(segment);
    }
    void close(const Segment& segment) {
      if (PROJECTS) pass.finish_projected(*part, row);
      if (segment.last && segment.whole) {
        pass.write(row.node, row.sum.data);
      } else {
        std::copy_n(row.sum.data, pass.row_size, pass.partials.of(chunk, segment));
      }
    }
    void end(const Slice& slice) {
      if (ENCODES) pass.add_features(*part, slice, z.data);
      if (++num_slices % 4 == 0) flush();
    }
    void flush() {
      if (Score::READS_ATT) part->att.flush();
      if (EDGES) part->weight.flush();
    }
  };

  int run() {
    int broken = 0;
    const int64_t num_chunks = edges.num_chunks();
    bool full = false;
#pragma omp parallel num_threads(std::min<int>(edges.team(p.num_threads), int(num_parts))) reduction(| : broken)
    {
      Worker worker(*this);
#pragma omp for schedule(dynamic, 1) ordered
      for (int64_t i = 0; i < num_parts; i++) {
        try {
          if (!worker.part) worker.part.reset(new Part(*this));
        } catch (const std::bad_alloc&) {
#pragma omp atomic write
          full = true;
          continue;
        }
        const int64_t end = (i + 1) * num_chunks / num_parts;
        for (worker.chunk = i * num_chunks / num_parts; worker.chunk < end; worker.chunk++) {
          broken |= !this->walk(worker.chunk, worker.features.data, worker);
          if (!broken && !worker.last.last) worker.close(worker.last);
        }
        worker.flush();
#pragma omp ordered
        total ? total->take(*worker.part) : total.swap(worker.part);
      }
    }
    if (full) return OUT_OF_MEMORY;
    if (broken) return BROKEN_INDEX;
    partials.merge(
        edges, [](float& sum, float part) { sum += part; }, [&](int64_t row, const float* sum) { write(row, sum); });
    write_sums();
    return OK;
  }

  // Writes the gradients of a row.
  void write(int64_t row, const float* sum) const {
    if (BY_SOURCE) layout.unpack(sum, p.grad_message + row * p.heads * p.channels), sum += size;
    float* to = p.grad_target + row * this->score_dim();
    if (!BY_HEAD) return layout.unpack(sum, to);
    for (int64_t h = 0; h < p.heads; h++) to[h] = groups.sum(load(sum + h / width * LANES))[h % width];
  }

  // Writes the gradients of the nodes at the far ends, of rows without edges, and of the parameters.
  void write_sums() const {
    const int64_t dim = p.heads * p.channels;
#pragma omp parallel num_threads(edges.team(p.num_threads))
    {
#pragma omp for schedule(static) nowait
      for (int64_t node = 0; node < p.num_src; node++) {
        if (!BY_SOURCE) layout.unpack(total->message.data + node * size, p.grad_message + node * dim);
        const float* from = total->source.data + node * score_size;
        if (BY_HEAD) std::copy_n(from, p.heads, p.grad_source + node * p.heads);
        if (Score::LINEAR) layout.unpack(from, p.grad_source + node * dim);
      }
      visit_empty_rows(edges, [&](int64_t row) {
        if (BY_SOURCE) std::fill_n(p.grad_message + row * dim, dim, 0.0f);
        std::fill_n(p.grad_target + row * this->score_dim(), this->score_dim(), 0.0f);
      });
    }
    if (Score::READS_ATT) {
      const std::vector<float> sums(total->att.total.data, total->att.total.data + size);
      layout.unpack(sums.data(), p.grad_att);
    }
    if (EDGES) write_weight(total->weight.total.data);
  }

  void write_weight(const double* sums) const {
    std::vector<float> packed(encoded_size), column(this->score_dim());
    for (int64_t d = 0; d < p.edge_dim; d++) {
      for (int64_t i = 0; i < encoded_size; i++)
        packed[i] = float(sums[(i / LANES * p.edge_dim + d) * LANES + i % LANES]);
      if (BY_HEAD) {  // the groups are copies
        for (int64_t h = 0; h < p.heads; h++) column[h] = packed[h / width * LANES + h % width];
      } else {
        layout.unpack(packed.data(), column.data());
      }
      for (size_t i = 0; i < column.size(); i++) p.grad_weight[i * p.edge_dim + d] = column[i];
    }
  }
};
