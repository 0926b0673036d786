// What a step computes between its products, in float32: norms, rotations, attention over pages, the activation.
//
// Every row is computed for itself, in an order that depends on its own position alone. So no bit of it depends on its company.
// Widths are multiples of LANES.

#include <omp.h>

#include "lanes.h"

#define MOST_CHUNKS 8
#define BOUND 3e4f  // see models/passes/attention.py

// e to the power of x, to two units in the last place; 0 far below zero. The polynomial is Cephes' expf.
INLINE Lanes exponential(Lanes x) {
  x = larger(x, all(-104.0f));
  Lanes whole = rounded(times(x, all(1.44269504f)));
  Lanes rest = times_plus(whole, all(-0.693359375f), x);
  rest = times_plus(whole, all(2.12194440e-4f), rest);
  Lanes sum = all(1.9875691500e-4f);
  sum = times_plus(sum, rest, all(1.3981999507e-3f));
  sum = times_plus(sum, rest, all(8.3334519073e-3f));
  sum = times_plus(sum, rest, all(4.1665795894e-2f));
  sum = times_plus(sum, rest, all(1.6666665459e-1f));
  sum = times_plus(sum, rest, all(5.0000001201e-1f));
  sum = times_plus(times(rest, rest), sum, plus(rest, all(1.0f)));
  return scaled(sum, whole);
}

// in, out [count, width]: in / sqrt(mean of squares + eps) * weight
void rms_norm(const float *in, const float *weight, float *out, long count, long width, float eps) {
  for (long row = 0; row < count; row++, in += width, out += width) {
    Lanes sum = all(0);
    for (long at = 0; at < width; at += LANES) sum = times_plus(load(in + at), load(in + at), sum);
    Lanes scale = all(1.0f / __builtin_sqrtf(sum_of(sum) / width + eps));
    for (long at = 0; at < width; at += LANES)
      store(out + at, times(times(load(in + at), scale), load(weight + at)));
  }
}

// in [count, 2 width], gate before up -> out [count, width]: silu(gate) * up
void silu_mul(const float *in, float *out, long count, long width) {
#pragma omp parallel for schedule(static) if (count > 8)
  for (long row = 0; row < count; row++)
    for (long at = 0; at < width; at += LANES) {
      Lanes gate = load(in + row * 2 * width + at), up = load(in + row * 2 * width + width + at);
      Lanes below = plus(exponential(minus(all(0), gate)), all(1.0f));
      store(out + row * width + at, times(divided(gate, below), up));
    }
}

INLINE Lanes bounded_to(Lanes x, int bounded) {
  if (!bounded) return x;
  x = zero_if_nan(x);
  return smaller(larger(x, all(-BOUND)), all(BOUND));
}

// Turns a head, behind a norm with these weights if there are any.
INLINE void rotate_head(const float *in, const float *norm, float eps, const float *cos, const float *sin, float *out, long width,
                        int bounded) {
  float normed[MOST_CHUNKS * LANES];
  if (norm) {
    rms_norm(in, norm, normed, 1, width, eps);
    in = normed;
  }
  for (long at = 0; at < width; at += LANES) {
    Lanes other = load(in + (at < width / 2 ? at + width / 2 : at - width / 2));
    Lanes turned = times_plus(other, load(sin + at), times(load(in + at), load(cos + at)));
    store(out + at, bounded_to(turned, bounded));
  }
}

// qkv [count, (queries + 2 shared) width] -> query [count, queries, width], turned, and the rows `slots` of keys and values
// [slots, shared, width]. cos, sin [count, width], the sign of the rotation in sin. Half a head is a multiple of LANES.
// norm [queries + shared, width] or null
void rotate_and_write(const float *qkv, const float *norm, float eps, const float *cos, const float *sin, const int64_t *slots, float *query, float *keys,
                      float *values, long count, long queries, long shared, long width, int bounded) {
  for (long row = 0; row < count; row++, cos += width, sin += width) {
    float *key = keys + slots[row] * shared * width, *value = values + slots[row] * shared * width;
    const float *scale = norm;
    for (long head = 0; head < queries; head++, qkv += width, query += width, scale += norm ? width : 0)
      rotate_head(qkv, scale, eps, cos, sin, query, width, 0);
    for (long head = 0; head < shared; head++, qkv += width, scale += norm ? width : 0)
      rotate_head(qkv, scale, eps, cos, sin, key + head * width, width, bounded);
    for (long at = 0; at < shared * width; at += LANES) store(value + at, bounded_to(load(qkv + at), bounded));
    qkv += shared * width;
  }
}

// Where a sequence's keys (or values) of one head are: `table` its pages, `stride` numbers between two slots.
typedef struct {
  const float *cache;
  const int64_t *table;
  long page_bits, stride;
} Pages;

INLINE const float *slot(const Pages *pages, long key) {
  long place = key & ((1L << pages->page_bits) - 1);
  return pages->cache + ((pages->table[key >> pages->page_bits] << pages->page_bits) + place) * pages->stride;
}

// One head of one row: scores of the keys from `first` to `end` into `scores` (a multiple of LANES), then their mean of values.
INLINE void attend_head(const int chunks, const float *query, const Pages *keys, const Pages *values, float *out, float *scores,
                        long first, long end, float scaling) {
  Lanes own[MOST_CHUNKS], dots[LANES], sums[2][MOST_CHUNKS], most = all(-__builtin_inff()), total = all(0);
  UNROLL for (int c = 0; c < chunks; c++) {
    own[c] = times(load(query + c * LANES), all(scaling));
    sums[0][c] = sums[1][c] = all(0);
  }
  for (long at = first; at < end; at += LANES) {
    UNROLL for (int j = 0; j < LANES; j++) {
      const float *key = slot(keys, at + j < end ? at + j : end - 1);
      dots[j] = times(own[0], load(key));
      UNROLL for (int c = 1; c < chunks; c++) dots[j] = times_plus(own[c], load(key + c * LANES), dots[j]);
    }
    Lanes found = first_lanes(end - at, sums_of(dots), all(-__builtin_inff()));
    most = larger(most, found);
    store(scores + at - first, found);
  }
  most = all(largest_of(most));
  for (long at = 0; at < end - first; at += LANES) {
    Lanes share = first_lanes(end - first - at, exponential(minus(load(scores + at), most)), all(0));
    total = plus(total, share);
    store(scores + at, share);
  }
  for (long at = first; at < end; at += 2) {
    UNROLL for (int j = 0; j < 2; j++) {
      if (at + j >= end) break;
      const float *value = slot(values, at + j);
      Lanes share = all(scores[at + j - first]);
      UNROLL for (int c = 0; c < chunks; c++) sums[j][c] = times_plus(share, load(value + c * LANES), sums[j][c]);
    }
  }
  Lanes part = all(1.0f / sum_of(total));
  UNROLL for (int c = 0; c < chunks; c++) store(out + c * LANES, times(plus(sums[0][c], sums[1][c]), part));
}

// query, out [count, queries, width]; keys, values [pages, 2^page_bits, shared, width]. Row i attends to the keys from firsts[i] to
// ends[i], in the pages of row which[i] of tables [., table_width]. scores [threads, most]: most keys, filled up to LANES.
void attend(const float *query, const float *keys, const float *values, float *out, const int64_t *tables, const int64_t *which,
            const int64_t *firsts, const int64_t *ends, float *scores, long most, long count, long queries, long shared, long width,
            long page_bits, long table_width, float scaling) {
#pragma omp parallel for schedule(static) if (count * most > 512)
  for (long each = 0; each < count * queries; each++) {
    long row = each / queries, head = each % queries, own = head / (queries / shared);
    const int64_t *table = tables + which[row] * table_width;
    float *own_scores = scores + omp_get_thread_num() * most;
    Pages of_keys = {keys + own * width, table, page_bits, shared * width};
    Pages of_values = {values + own * width, table, page_bits, shared * width};
#define ATTEND(chunks)                                                                                                          \
  case chunks:                                                                                                                  \
    attend_head(chunks, query + each * width, &of_keys, &of_values, out + each * width, own_scores, firsts[row],          \
                ends[row], scaling);                                                                                            \
    break;
    switch (width / LANES) { ATTEND(2) ATTEND(4) ATTEND(6) ATTEND(8) }
  }
}
