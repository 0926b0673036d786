// What a step computes between its products, in float32: norms, rotations, attention over pages, the activation.
//
// Every row is computed for itself, in an order that depends on its own position alone. So no bit of it depends on its company.
// Widths are multiples of LANES.

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define MOST_CHUNKS 8
#define MOST_QUERIES 64  // that are attended from at a time
#define MOST_SCORED 4    // queries whose scores are found side by side
#define MOST_SUMS (REGISTERS == 32 ? 24 : 8)
#define BESIDE(chunks) (MOST_SUMS / 2 / (chunks))
#define NEAR 64  // keys whose values stay in the nearest cache
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
    store(scores, sums_of(dots));
  }
}

// Replaces `count` scores by e to their power, relative to the largest. Returns one over their sum.
INLINE Lanes soften(float *scores, long count) {
  Lanes most = all(-__builtin_inff()), total = all(0);
  for (long at = 0; at < count; at += LANES) most = larger(most, first_lanes(count - at, load(scores + at), all(-__builtin_inff())));
  most = all(largest_of(most));
  for (long at = 0; at < count; at += LANES) {
    Lanes share = first_lanes(count - at, exponential(minus(load(scores + at), most)), all(0));
    total = plus(total, share);
    store(scores + at, share);
  }
  return all(1.0f / sum_of(total));
}

// Adds shares of the values of keys from `from` to `end` on to sums [count][width], those of every second key to `odd`: `chunks` vectors of
// each value. scores [count][apart] begin at `from`.
INLINE void add_values(const int chunks, const int count, const Pages *values, long from, long end, const float *scores, long apart, float *even,
                       float *odd, long width) {
  Lanes sums[2][MOST_SUMS / 2];
  UNROLL for (int each = 0; each < count * chunks; each++) {
    const long at = each / chunks * width + each % chunks * LANES;
    sums[0][each] = load(even + at), sums[1][each] = load(odd + at);
  }
  for (long at = from; at < end; at += 2, scores += 2)
    UNROLL for (int j = 0; j < 2; j++) {
      if (at + j >= end) break;
      const float *value = slot(values, at + j);
      UNROLL for (int q = 0; q < count; q++) {
        Lanes share = all(scores[q * apart + j]);
        UNROLL for (int c = 0; c < chunks; c++) sums[j][q * chunks + c] = times_plus(share, load(value + c * LANES), sums[j][q * chunks + c]);
      }
    }
  UNROLL for (int each = 0; each < count * chunks; each++) {
    const long at = each / chunks * width + each % chunks * LANES;
    store(even + at, sums[0][each]), store(odd + at, sums[1][each]);
  }
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

// Scores of LANES keys of each of `tiles` turned tiles for `count` queries: products are added up as in `score_alone`, whose `sums_of` adds
// lanes 0 and 2, 1 and 3, ..
INLINE void score_beside(const int chunks, const int count, const int tiles, const float *turned, const float *own, float *scores, long apart) {
  Lanes fours[4][2 * MOST_SCORED], pair[2][2 * MOST_SCORED];
  UNROLL for (int four = 0; four < 4; four++)
    UNROLL for (int odd = 0; odd < 2; odd++) {
      UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int c = 0; c < chunks; c++) {
          const long lane = c * LANES + 4 * four + odd + 2 * i;
          UNROLL for (int q = 0; q < count; q++) {
            const Lanes by = all(own[q * chunks * LANES + lane]);
            UNROLL for (int t = 0; t < tiles; t++) {
              const Lanes key = load(turned + (t * chunks * LANES + lane) * LANES);
              pair[i][q * tiles + t] = c ? times_plus(by, key, pair[i][q * tiles + t]) : times(by, key);
            }
          }
        }
      UNROLL for (int each = 0; each < count * tiles; each++) {
        const Lanes sum = plus(pair[0][each], pair[1][each]);
        fours[four][each] = odd ? plus(fours[four][each], sum) : sum;
      }
    }
  UNROLL for (int each = 0; each < count * tiles; each++) {
    const Lanes sum = plus(plus(fours[0][each], fours[1][each]), plus(fours[2][each], fours[3][each]));
    store(scores + each / tiles * apart + each % tiles * LANES, sum);
  }
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
  long count, first, most, ends[MOST_QUERIES];  // keys from `first` on, to the `most` of the ends
  const float *in[MOST_QUERIES];
  float *out[MOST_QUERIES];
} Queries;

#if WIDE

// Scores of all queries for the keys of `tiles` tiles from `at` on, which are turned once.
INLINE void score_tiles(const int chunks, const int tiles, const Queries *all_of, const Pages *keys, const float *own, float *scores, long apart, long at) {
  const long width = chunks * LANES, count = all_of->count;
  float turned[2 * MOST_CHUNKS * LANES * LANES] __attribute__((aligned(64)));
  for (int t = 0; t < tiles; t++) turn_keys(chunks, keys, at + t * LANES, all_of->most, turned + t * width * LANES);
  BY_PARTS(MOST_SCORED, score_beside(chunks, part, tiles, turned, own + q * width, scores + q * apart, apart))
}

#endif

// Scores of all queries.
INLINE void score_together(const int chunks, const Queries *all_of, const Pages *keys, const float *own, float *scores, long apart) {
  const long width = chunks * LANES, first = all_of->first, most = all_of->most;
#if WIDE
  long at = first;
  if (all_of->count > 1) {
    for (; at + LANES < most; at += 2 * LANES) score_tiles(chunks, 2, all_of, keys, own, scores + at - first, apart, at);
    if (at < most) score_tiles(chunks, 1, all_of, keys, own, scores + at - first, apart, at);
    return;
  }
#endif
  for (long q = 0; q < all_of->count; q++) score_alone(chunks, own + q * width, keys, scores + q * apart, first, all_of->ends[q]);
}

// Adds shares of the values of keys from `at` on, NEAR at most, for `count` queries from `q` on: those that all attend to are read once.
INLINE void add_near(const int chunks, const int count, const Pages *values, const Queries *all_of, long q, long at, const float *scores, long apart,
                     float *even, float *odd, long width) {
  const long stop = all_of->most < at + NEAR ? all_of->most : at + NEAR;
  long least = stop;
  UNROLL for (int each = 0; each < count; each++) least = all_of->ends[q + each] < least ? all_of->ends[q + each] : least;
  const long together = least < at ? at : at + (least - at) / 2 * 2;
  add_values(chunks, count, values, at, together, scores, apart, even, odd, width);
  for (int each = 0; each < count; each++) {
    const long end = all_of->ends[q + each] < stop ? all_of->ends[q + each] : stop;
    if (together < end) add_values(chunks, 1, values, together, end, scores + each * apart + together - at, apart, even + each * width, odd + each * width, width);
  }
}

// Adds up the shares of all values, those of every second key in `odd`; even, odd [queries][width].
INLINE void add_all_values(const int chunks, const Queries *all_of, const Pages *values, const float *scores, long apart, float *even, float *odd) {
  const int some = chunks > 4 ? chunks / 2 : chunks;  // at a time, so that registers hold the sums of several queries
  const long width = chunks * LANES, count = all_of->count;
  for (long at = all_of->first; at < all_of->most; at += NEAR)
    for (long from = 0; from < width; from += some * LANES) {
      const Pages own = {values->cache + from, values->table, values->page_bits, values->stride};
      BY_PARTS(BESIDE(some), add_near(some, part, &own, all_of, q, at, scores + q * apart + at - all_of->first, apart, even + q * width + from,
                                      odd + q * width + from, width))
    }
}

// Attends from some queries. What all of them attend to is read once for several; each comes to the same bits as alone.
INLINE void attend_queries(const int chunks, const Queries *all_of, const Pages *keys, const Pages *values, float *scores, long apart, float scaling) {
  const long width = chunks * LANES, count = all_of->count;
  float own[MOST_QUERIES * MOST_CHUNKS * LANES], even[MOST_QUERIES * MOST_CHUNKS * LANES], odd[MOST_QUERIES * MOST_CHUNKS * LANES];
  Lanes parts[MOST_QUERIES];
  memset(even, 0, count * width * sizeof *even), memset(odd, 0, count * width * sizeof *odd);
  for (long q = 0; q < count; q++)
    UNROLL for (int c = 0; c < chunks; c++) store(own + q * width + c * LANES, times(load(all_of->in[q] + c * LANES), all(scaling)));
  score_together(chunks, all_of, keys, own, scores, apart);
  for (long q = 0; q < count; q++) parts[q] = soften(scores + q * apart, all_of->ends[q] - all_of->first);
  add_all_values(chunks, all_of, values, scores, apart, even, odd);
  for (long q = 0; q < count; q++)
    for (long at = 0; at < width; at += LANES)
      store(all_of->out[q] + at, times(plus(load(even + q * width + at), load(odd + q * width + at)), parts[q]));
}

// Returns how many rows from `row` on attend to the same pages from the same key on.
static long alike(const int64_t *which, const int64_t *firsts, long row, long count) {
  long found = 1;
  while (row + found < count && which[row + found] == which[row] && firsts[row + found] == firsts[row]) found++;
  return found;
}

// Writes where blocks of rows that are attended from together begin, and the end. Of rows that attend to the same pages there are as few
// blocks as `most` rows allow and `least` blocks, divided evenly. Returns how many there are.
static long divide_rows(const int64_t *which, const int64_t *firsts, long count, long most, long least, long *starts) {
  long blocks = 0;
  for (long row = 0; row < count;) {
    const long found = alike(which, firsts, row, count), wanted = (found + most - 1) / most;
    const long each = wanted < least ? (found + least - 1) / least : (found + wanted - 1) / wanted;
    for (const long end = row + found; row < end; row += each) starts[blocks++] = row, starts[blocks] = row + each < end ? row + each : end;
    row = starts[blocks];
  }
  return blocks;
}

// query, out [count, queries, width]; keys, values [pages, 2^page_bits, shared, width]. Row i attends to the keys from firsts[i] to
// ends[i], in the pages of row which[i] of tables [., table_width]. `together` queries at a time, MOST_QUERIES at most.
// scores [threads, together, most]: most keys, filled up to LANES.
void attend(const float *query, const float *keys, const float *values, float *out, const int64_t *tables, const int64_t *which,
            const int64_t *firsts, const int64_t *ends, float *scores, long most, long count, long queries, long shared, long width,
            long page_bits, long table_width, long together, float scaling) {
  const long heads = queries / shared, rows = heads < together ? together / heads : 1, threads = omp_get_max_threads();
  long *starts = malloc((count + 1) * sizeof(long));
  const long blocks = divide_rows(which, firsts, count, rows, threads > 1 ? (2 * threads + shared - 1) / shared : 1, starts);
#pragma omp parallel for schedule(static) if (count * most > 512)
  for (long each = 0; each < blocks * shared; each++) {
    const long row = starts[each / shared], own = each % shared, all_of = (starts[each / shared + 1] - row) * heads;
    const int64_t *table = tables + which[row] * table_width;
    float *own_scores = scores + omp_get_thread_num() * together * most;
    Pages of_keys = {keys + own * width, table, page_bits, shared * width};
    Pages of_values = {values + own * width, table, page_bits, shared * width};
    for (long from = 0; from < all_of; from += together) {
      Queries some = {all_of - from < together ? all_of - from : together, firsts[row], 0};
      for (long q = 0; q < some.count; q++) {
        const long of_row = row + (from + q) / heads, at = (of_row * queries + own * heads + (from + q) % heads) * width;
        some.in[q] = query + at, some.out[q] = out + at, some.ends[q] = ends[of_row];
        if (ends[of_row] > some.most) some.most = ends[of_row];
      }
#define ATTEND(chunks) \
  case chunks: attend_queries(chunks, &some, &of_keys, &of_values, own_scores, most, scaling); break;
      switch (width / LANES) { ATTEND(2) ATTEND(4) ATTEND(6) ATTEND(8) }
    }
  }
  free(starts);
}
