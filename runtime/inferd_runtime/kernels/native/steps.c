// What a step computes between its products, in float32: norms, rotations, attention over slots of a cache, the activation. And, with
// products, all layers at once: layers.h.
//
// Every row is computed for itself, in an order that depends on its own position alone. So no bit of it depends on its company.
// Widths are multiples of LANES.

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define MOST_CHUNKS 8
#define MOST_QUERIES 64  // that are attended from at a time
#define SCORED(chunks) (REGISTERS == 32 ? 16 / (chunks) : 1)  // queries whose scores are found side by side
#define MOST_SUMS (REGISTERS == 32 ? 24 : 6)
#define SUMMED(chunks) (REGISTERS == 32 ? (chunks) > 4 ? (chunks) / 2 : (chunks) : 1)
#define BESIDE(chunks) (MOST_SUMS / 2 / (chunks))
#define NEAR 64   // keys whose values stay in the nearest cache
#define AHEAD 32  // keys that are fetched before they are read: processors do so by themselves inside of a page alone
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

// Where a sequence's keys (or values) of one head are: the slot of each, `stride` numbers between two slots.
typedef struct {
  const float *cache;
  const int64_t *slots;
  long stride;
} Places;

INLINE const float *place(const Places *places, long key) { return places->cache + places->slots[key] * places->stride; }

// Finds `count` keys (or values) from `key` on, the last one before `end` standing for those behind it.
INLINE void find(const Places *places, long key, const int count, long end, const float **found) {
  for (int j = 0; j < count; j++) found[j] = place(places, key + j < end ? key + j : end - 1);
}

// Has `chunks` vectors brought near.
INLINE void fetch(const int chunks, const float *at) {
  UNROLL for (int c = 0; c < chunks; c++) __builtin_prefetch(at + c * LANES);
}

// Scores of LANES keys for `count` queries.
INLINE void score_keys(const int chunks, const int count, const float *own, const float *const *keys, float *scores, long apart) {
#if WIDE
  Lanes dots[SCORED(2)][LANES];  // of the narrowest heads there are most
  UNROLL for (int j = 0; j < LANES; j++)
    UNROLL for (int q = 0; q < count; q++) {
      const float *query = own + q * chunks * LANES;
      Lanes dot = times(load(query), load(keys[j]));
      UNROLL for (int c = 1; c < chunks; c++) dot = times_plus(load(query + c * LANES), load(keys[j] + c * LANES), dot);
      dots[q][j] = dot;
    }
  UNROLL for (int q = 0; q < count; q++) store(scores + q * apart, sums_of(dots[q]));
#else
  UNROLL for (int q = 0; q < count; q++) {
    const float *query = own + q * chunks * LANES;
    store(scores + q * apart, (Lanes){half_products_with(2 * chunks, query, keys), half_products_with(2 * chunks, query, keys + 8)});
  }
#endif
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

// Adds shares of `many` values on to sums [count][width], those of every second one to `odd`: `chunks` vectors of each, from `first` on.
// scores [count][apart]. ahead: what is brought near meanwhile, or null.
INLINE void add_values(const int chunks, const int count, const float *const *values, const float *const *ahead, long first, long many, const float *scores,
                       long apart, float *even, float *odd, long width) {
  Lanes sums[2][MOST_SUMS / 2];
  UNROLL for (int each = 0; each < count * chunks; each++) {
    const long at = each / chunks * width + each % chunks * LANES;
    sums[0][each] = load(even + at), sums[1][each] = load(odd + at);
  }
  for (long at = 0; at < many; at += 2, scores += 2)
    UNROLL for (int j = 0; j < 2; j++) {
      if (at + j >= many) break;
      const float *value = values[at + j] + first;
      if (ahead) fetch(chunks, ahead[at + j] + first);
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

// Scores of all queries, for LANES keys after the other.
INLINE void score_together(const int chunks, const Queries *all_of, const Places *keys, const float *own, float *scores, long apart) {
  const long width = chunks * LANES, count = all_of->count;
  const float *near[LANES + AHEAD];
  for (long at = all_of->first; at < all_of->most; at += LANES, scores += LANES) {
    find(keys, at, LANES + AHEAD, all_of->most, near);
    UNROLL for (int j = 0; j < LANES; j++) fetch(chunks, near[j + AHEAD]);
    BY_PARTS(SCORED(chunks), score_keys(chunks, part, own + q * width, near, scores + q * apart, apart))
  }
}

// Adds shares of the values of keys from `at` on, NEAR at most, for `count` queries from `q` on: those that all attend to are read once.
INLINE void add_near(const int chunks, const int count, const float *const *values, long first, const Queries *all_of, long q, long at, const float *scores,
                     long apart, float *even, float *odd, long width) {
  const long stop = all_of->most < at + NEAR ? all_of->most : at + NEAR;
  long least = stop;
  UNROLL for (int each = 0; each < count; each++) least = all_of->ends[q + each] < least ? all_of->ends[q + each] : least;
  const long together = least < at ? 0 : (least - at) / 2 * 2;
  add_values(chunks, count, values, q ? NULL : values + AHEAD, first, together, scores, apart, even, odd, width);
  for (int each = 0; each < count; each++) {
    const long rest = (all_of->ends[q + each] < stop ? all_of->ends[q + each] : stop) - at - together;
    if (rest > 0) add_values(chunks, 1, values + together, NULL, first, rest, scores + each * apart + together, apart, even + each * width, odd + each * width, width);
  }
}

// Adds up the shares of all values, those of every second key in `odd`; even, odd [queries][width].
INLINE void add_all_values(const int chunks, const Queries *all_of, const Places *values, const float *scores, long apart, float *even, float *odd) {
  const int some = SUMMED(chunks);  // at a time, so that registers hold the sums of several queries
  const long width = chunks * LANES, count = all_of->count;
  const float *near[NEAR + AHEAD];
  for (long at = all_of->first; at < all_of->most; at += NEAR, scores += NEAR) {
    find(values, at, NEAR + AHEAD, all_of->most, near);
    for (long from = 0; from < width; from += some * LANES)
      BY_PARTS(BESIDE(some), add_near(some, part, near, from, all_of, q, at, scores + q * apart, apart, even + q * width + from, odd + q * width + from, width))
  }
}

// Attends from some queries. What all of them attend to is read once for several; each comes to the same bits as alone.
INLINE void attend_queries(const int chunks, const Queries *all_of, const Places *keys, const Places *values, float *scores, long apart, float scaling) {
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

// Which keys each row of a step attends to: row i those from firsts[i] to ends[i], in the slots that row which[i] of tables [., table_width]
// lists. most: keys of a row, filled up to LANES. together: queries that are attended from at a time, MOST_QUERIES at most.
typedef struct {
  const int64_t *tables, *which, *firsts, *ends;
  long most, table_width, together;
} Seen;

// query, out [count, queries, width]; keys, values [slots, shared, width]. scores [threads, together, most]
void attend(const float *query, const float *keys, const float *values, float *out, const Seen *seen, float *scores, long count, long queries,
            long shared, long width, float scaling) {
  const int64_t *which = seen->which, *firsts = seen->firsts, *ends = seen->ends;
  const long most = seen->most, together = seen->together;
  const long heads = queries / shared, rows = heads < together ? together / heads : 1, threads = omp_get_max_threads();
  long *starts = malloc((count + 1) * sizeof(long));
  const long blocks = divide_rows(which, firsts, count, rows, threads > 1 ? (2 * threads + shared - 1) / shared : 1, starts);
#pragma omp parallel for schedule(static) if (count * most > 512)
  for (long each = 0; each < blocks * shared; each++) {
    const long row = starts[each / shared], own = each % shared, all_of = (starts[each / shared + 1] - row) * heads;
    const int64_t *slots = seen->tables + which[row] * seen->table_width;
    float *own_scores = scores + omp_get_thread_num() * together * most;
    Places of_keys = {keys + own * width, slots, shared * width}, of_values = {values + own * width, slots, shared * width};
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

#include "layers.h"
