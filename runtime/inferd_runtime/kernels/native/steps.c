// What a step computes between its products, in float32: norms, rotations, attention over pages, the activation.
//
// Every row is computed for itself, in an order that depends on its own position alone. So no bit of it depends on its company.
// Widths are multiples of LANES.

#include <limits.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define MOST_CHUNKS 8
#define MOST_QUERIES 12                // that are attended from at a time
#define MOST_SUMS (REGISTERS * 3 / 4)  // beside the registers that their values take
#define BESIDE(chunks) (MOST_SUMS / (chunks) < 1 ? 1 : MOST_SUMS / (chunks))
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

// Scores of one query for keys from `from` to its end, LANES at a time.
INLINE void score_alone(const int chunks, const float *query, const Pages *keys, float *scores, long from, long end) {
  Lanes own[MOST_CHUNKS], dots[LANES];
  UNROLL for (int c = 0; c < chunks; c++) own[c] = load(query + c * LANES);
  for (long at = from; at < end; at += LANES, scores += LANES) {
    UNROLL for (int j = 0; j < LANES; j++) {
      const float *key = slot(keys, at + j < end ? at + j : end - 1);
      dots[j] = times(own[0], load(key));
      UNROLL for (int c = 1; c < chunks; c++) dots[j] = times_plus(own[c], load(key + c * LANES), dots[j]);
    }
    store(scores, first_lanes(end - at, sums_of(dots), all(-__builtin_inff())));
  }
}

// Replaces `count` scores by e to their power, relative to the largest. Returns one over their sum.
INLINE Lanes soften(float *scores, long count) {
  Lanes most = all(-__builtin_inff()), total = all(0);
  for (long at = 0; at < count; at += LANES) most = larger(most, load(scores + at));
  most = all(largest_of(most));
  for (long at = 0; at < count; at += LANES) {
    Lanes share = first_lanes(count - at, exponential(minus(load(scores + at), most)), all(0));
    total = plus(total, share);
    store(scores + at, share);
  }
  return all(1.0f / sum_of(total));
}

// Adds shares of the values of every second key from `from` to `end` on to `sums` [count][width]. scores [count][apart] begin at `from`.
INLINE void add_values(const int chunks, const int count, const Pages *values, long from, long end, const float *scores, long apart, float *sums) {
  Lanes sum[MOST_SUMS];
  UNROLL for (int each = 0; each < count * chunks; each++) sum[each] = load(sums + each * LANES);
  for (long at = from; at < end; at += 2, scores += 2) {
    const float *value = slot(values, at);
    UNROLL for (int q = 0; q < count; q++) {
      Lanes share = all(scores[q * apart]);
      UNROLL for (int c = 0; c < chunks; c++) sum[q * chunks + c] = times_plus(share, load(value + c * LANES), sum[q * chunks + c]);
    }
  }
  UNROLL for (int each = 0; each < count * chunks; each++) store(sums + each * LANES, sum[each]);
}

// The same of all keys, for one query.
INLINE void add_values_alone(const int chunks, const Pages *values, long from, long end, const float *scores, float *even, float *odd) {
  Lanes sums[2][MOST_CHUNKS];
  UNROLL for (int c = 0; c < chunks; c++) sums[0][c] = load(even + c * LANES), sums[1][c] = load(odd + c * LANES);
  for (long at = from; at < end; at += 2) {
    UNROLL for (int j = 0; j < 2; j++) {
      if (at + j >= end) break;
      const float *value = slot(values, at + j);
      Lanes share = all(scores[at + j - from]);
      UNROLL for (int c = 0; c < chunks; c++) sums[j][c] = times_plus(share, load(value + c * LANES), sums[j][c]);
    }
  }
  UNROLL for (int c = 0; c < chunks; c++) store(even + c * LANES, sums[0][c]), store(odd + c * LANES, sums[1][c]);
}

#if WIDE

// Writes LANES keys from `key` on as [width][LANES]; the last one before `end` stands for those behind it.
INLINE void turn_keys(const int chunks, const Pages *keys, long key, long end, float *turned) {
  for (int c = 0; c < chunks; c++, turned += LANES * LANES) {
    __m512 x[LANES], y[LANES];
    UNROLL for (int j = 0; j < LANES; j++) x[j] = load(slot(keys, key + j < end ? key + j : end - 1) + c * LANES);
    UNROLL for (int j = 0; j < LANES; j += 2) {
      y[j] = _mm512_unpacklo_ps(x[j], x[j + 1]);
      y[j + 1] = _mm512_unpackhi_ps(x[j], x[j + 1]);
    }
    UNROLL for (int j = 0; j < LANES; j += 4)
      UNROLL for (int half = 0; half < 2; half++) {
        x[j + 2 * half] = (__m512)_mm512_unpacklo_pd((__m512d)y[j + half], (__m512d)y[j + 2 + half]);
        x[j + 2 * half + 1] = (__m512)_mm512_unpackhi_pd((__m512d)y[j + half], (__m512d)y[j + 2 + half]);
      }
    UNROLL for (int j = 0; j < 4; j++)
      UNROLL for (int half = 0; half < LANES; half += 8) {
        y[half + j] = _mm512_shuffle_f32x4(x[half + j], x[half + 4 + j], 0x88);
        y[half + 4 + j] = _mm512_shuffle_f32x4(x[half + j], x[half + 4 + j], 0xdd);
      }
    UNROLL for (int j = 0; j < 8; j++) {
      store(turned + (j % 4 + j / 4 * 4) * LANES, _mm512_shuffle_f32x4(y[j], y[8 + j], 0x88));
      store(turned + (8 + j % 4 + j / 4 * 4) * LANES, _mm512_shuffle_f32x4(y[j], y[8 + j], 0xdd));
    }
  }
}

// Scores of LANES turned keys for `count` queries: products are added up as in `score_alone`, whose `sums_of` adds lanes 0 and 2, 1 and 3, ..
INLINE void score_beside(const int chunks, const int count, const float *turned, const float *own, float *scores, long apart) {
  Lanes halves[2][MOST_QUERIES];
  UNROLL for (int four = 0; four < 4; four++) {
    Lanes quarter[MOST_QUERIES];
    UNROLL for (int odd = 0; odd < 2; odd++)
      UNROLL for (int q = 0; q < count; q++) {
        Lanes pair[2];
        UNROLL for (int i = 0; i < 2; i++) {
          const float *key = turned + (4 * four + odd + 2 * i) * LANES, *by = own + q * chunks * LANES + 4 * four + odd + 2 * i;
          pair[i] = times(all(*by), load(key));
          UNROLL for (int c = 1; c < chunks; c++) pair[i] = times_plus(all(by[c * LANES]), load(key + c * LANES * LANES), pair[i]);
        }
        Lanes sum = plus(pair[0], pair[1]);
        quarter[q] = odd ? plus(quarter[q], sum) : sum;
      }
    UNROLL for (int q = 0; q < count; q++) halves[four / 2][q] = four % 2 ? plus(halves[four / 2][q], quarter[q]) : quarter[q];
  }
  UNROLL for (int q = 0; q < count; q++) store(scores + q * apart, plus(halves[0][q], halves[1][q]));
}
#endif

// Does what `call` says for all queries, as many of them side by side as `most`, three or one: `part` of them from `q` on.
#define BY_PARTS(most, call)                            \
  for (long q = 0; q < count;)                          \
    if (count - q >= (most)) {                          \
      const int part = (most);                          \
      call;                                             \
      q += part;                                        \
    } else if (count - q >= 3 && (most) > 3) {          \
      const int part = 3;                               \
      call;                                             \
      q += part;                                        \
    } else {                                            \
      const int part = 1;                               \
      call;                                             \
      q += part;                                        \
    }

// Some queries of the same keys: heads that share them, of one row and of those behind it.
typedef struct {
  long count, first, least, most, ends[MOST_QUERIES];  // keys from `first` on; `least` and `most` of the ends
  const float *in[MOST_QUERIES];
  float *out[MOST_QUERIES];
} Queries;

// Scores of all queries, whose keys are turned once.
INLINE void score_together(const int chunks, const Queries *all_of, const Pages *keys, const float *own, float *scores, long apart) {
  const long width = chunks * LANES, count = all_of->count, first = all_of->first;
#if WIDE
  float turned[MOST_CHUNKS * LANES * LANES] __attribute__((aligned(64)));
  for (long at = first; at < all_of->most; at += LANES, scores += LANES) {
    turn_keys(chunks, keys, at, all_of->most, turned);
    BY_PARTS(4, score_beside(chunks, part, turned, own + q * width, scores + q * apart, apart))
    for (long q = 0; q < count; q++)
      if (all_of->ends[q] > at)
        store(scores + q * apart, first_lanes(all_of->ends[q] - at, load(scores + q * apart), all(-__builtin_inff())));
  }
#else
  for (long q = 0; q < count; q++) score_alone(chunks, own + q * width, keys, scores + q * apart, first, all_of->ends[q]);
#endif
}

// Attends from some queries. What all of them attend to is read once for several; each comes to the same bits as alone.
INLINE void attend_queries(const int chunks, const Queries *all_of, const Pages *keys, const Pages *values, float *scores, long apart, float scaling) {
  const long width = chunks * LANES, count = all_of->count, first = all_of->first;
  float own[MOST_QUERIES * MOST_CHUNKS * LANES], sums[2][MOST_QUERIES * MOST_CHUNKS * LANES];
  const long together = REGISTERS == 32 && count > 1 ? (all_of->least - first) / 2 * 2 : 0;  // keys whose values are read for several
  Lanes parts[MOST_QUERIES];
  memset(sums, 0, sizeof sums);
  for (long q = 0; q < count; q++)
    UNROLL for (int c = 0; c < chunks; c++) store(own + q * width + c * LANES, times(load(all_of->in[q] + c * LANES), all(scaling)));
  if (count > 1) score_together(chunks, all_of, keys, own, scores, apart);
  else score_alone(chunks, own, keys, scores, first, all_of->ends[0]);
  for (long q = 0; q < count; q++) parts[q] = soften(scores + q * apart, all_of->ends[q] - first);
  for (int odd = 0; odd < 2 && together; odd++)
    BY_PARTS(BESIDE(chunks), add_values(chunks, part, values, first + odd, first + together, scores + q * apart + odd, apart, sums[odd] + q * width))
  for (long q = 0; q < count; q++) {
    float *even = sums[0] + q * width, *odd = sums[1] + q * width;
    add_values_alone(chunks, values, first + together, all_of->ends[q], scores + q * apart + together, even, odd);
    UNROLL for (int c = 0; c < chunks; c++)
      store(all_of->out[q] + c * LANES, times(plus(load(even + c * LANES), load(odd + c * LANES)), parts[q]));
  }
}

// Returns how many rows from `row` on, `most` at most, attend to the same pages from the same key on.
static long alike(const int64_t *which, const int64_t *firsts, long row, long count, long most) {
  long found = 1;
  while (found < most && row + found < count && which[row + found] == which[row] && firsts[row + found] == firsts[row]) found++;
  return found;
}

// query, out [count, queries, width]; keys, values [pages, 2^page_bits, shared, width]. Row i attends to the keys from firsts[i] to
// ends[i], in the pages of row which[i] of tables [., table_width]. scores [threads, MOST_QUERIES, most]: most keys, filled up to LANES.
void attend(const float *query, const float *keys, const float *values, float *out, const int64_t *tables, const int64_t *which,
            const int64_t *firsts, const int64_t *ends, float *scores, long most, long count, long queries, long shared, long width,
            long page_bits, long table_width, float scaling) {
  const long heads = queries / shared, rows = heads < MOST_QUERIES ? MOST_QUERIES / heads : 1;
  long *starts = malloc((count + 1) * sizeof(long)), blocks = 0;
  for (long row = 0; row < count; row += alike(which, firsts, row, count, rows)) starts[blocks++] = row;
  starts[blocks] = count;
#pragma omp parallel for schedule(static) if (count * most > 512)
  for (long each = 0; each < blocks * shared; each++) {
    const long row = starts[each / shared], own = each % shared, all_of = (starts[each / shared + 1] - row) * heads;
    const int64_t *table = tables + which[row] * table_width;
    float *own_scores = scores + omp_get_thread_num() * MOST_QUERIES * most;
    Pages of_keys = {keys + own * width, table, page_bits, shared * width};
    Pages of_values = {values + own * width, table, page_bits, shared * width};
    for (long from = 0; from < all_of; from += MOST_QUERIES) {
      Queries some = {all_of - from < MOST_QUERIES ? all_of - from : MOST_QUERIES, firsts[row], LONG_MAX, 0};
      for (long q = 0; q < some.count; q++) {
        const long of_row = row + (from + q) / heads, at = (of_row * queries + own * heads + (from + q) % heads) * width;
        some.in[q] = query + at, some.out[q] = out + at, some.ends[q] = ends[of_row];
        if (ends[of_row] < some.least) some.least = ends[of_row];
        if (ends[of_row] > some.most) some.most = ends[of_row];
      }
#define ATTEND(chunks) \
  case chunks: attend_queries(chunks, &some, &of_keys, &of_values, own_scores, most, scaling); break;
      switch (width / LANES) { ATTEND(2) ATTEND(4) ATTEND(6) ATTEND(8) }
    }
  }
  free(starts);
}
