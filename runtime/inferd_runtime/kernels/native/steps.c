// What a step computes between its products, in float32: norms, rotations, attention over pages, the activation.
//
// Every row is computed for itself, in an order that depends on its own position alone. So no bit of it depends on its company.
// Widths are multiples of LANES.

#include <immintrin.h>
#include <omp.h>
#include <stdint.h>

#define LANES 16
#define MOST_CHUNKS 8
#define BOUND 3e4f  // see models/passes/attention.py
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

// e to the power of x, to two units in the last place; 0 far below zero. The polynomial is Cephes' expf.
INLINE __m512 exponential(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
  __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
  rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
  __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.3981999507e-3f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(8.3334519073e-3f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(4.1665795894e-2f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.6666665459e-1f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.0000001201e-1f));
  sum = _mm512_fmadd_ps(_mm512_mul_ps(rest, rest), sum, _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(sum, whole);
}

// in, out [count, width]: in / sqrt(mean of squares + eps) * weight
void rms_norm(const float *in, const float *weight, float *out, long count, long width, float eps) {
  for (long row = 0; row < count; row++, in += width, out += width) {
    __m512 sum = _mm512_setzero_ps();
    for (long at = 0; at < width; at += LANES) sum = _mm512_fmadd_ps(_mm512_loadu_ps(in + at), _mm512_loadu_ps(in + at), sum);
    __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(sum) / width + eps));
    for (long at = 0; at < width; at += LANES)
      _mm512_storeu_ps(out + at, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(in + at), scale), _mm512_loadu_ps(weight + at)));
  }
}

// in [count, 2 width], gate before up -> out [count, width]: silu(gate) * up
void silu_mul(const float *in, float *out, long count, long width) {
#pragma omp parallel for schedule(static) if (count > 8)
  for (long row = 0; row < count; row++)
    for (long at = 0; at < width; at += LANES) {
      __m512 gate = _mm512_loadu_ps(in + row * 2 * width + at), up = _mm512_loadu_ps(in + row * 2 * width + width + at);
      __m512 below = _mm512_add_ps(exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate)), _mm512_set1_ps(1.0f));
      _mm512_storeu_ps(out + row * width + at, _mm512_mul_ps(_mm512_div_ps(gate, below), up));
    }
}

INLINE __m512 bounded_to(__m512 x, int bounded) {
  if (!bounded) return x;
  x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
  return _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-BOUND)), _mm512_set1_ps(BOUND));
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
    __m512 other = _mm512_loadu_ps(in + (at < width / 2 ? at + width / 2 : at - width / 2));
    __m512 turned = _mm512_fmadd_ps(other, _mm512_loadu_ps(sin + at), _mm512_mul_ps(_mm512_loadu_ps(in + at), _mm512_loadu_ps(cos + at)));
    _mm512_storeu_ps(out + at, bounded_to(turned, bounded));
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
    for (long at = 0; at < shared * width; at += LANES) _mm512_storeu_ps(value + at, bounded_to(_mm512_loadu_ps(qkv + at), bounded));
    qkv += shared * width;
  }
}

// Returns the sums of 16 vectors, in order.
INLINE __m512 sums_of(const __m512 *each) {
  __m512 by2[8], by4[4], by8[2];
  UNROLL for (int i = 0; i < 8; i++)
    by2[i] = _mm512_add_ps(_mm512_unpacklo_ps(each[2 * i], each[2 * i + 1]), _mm512_unpackhi_ps(each[2 * i], each[2 * i + 1]));
  UNROLL for (int i = 0; i < 4; i++) {
    __m512d one = (__m512d)by2[2 * i], two = (__m512d)by2[2 * i + 1];
    by4[i] = _mm512_add_ps((__m512)_mm512_unpacklo_pd(one, two), (__m512)_mm512_unpackhi_pd(one, two));
  }
  UNROLL for (int i = 0; i < 2; i++)
    by8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(by4[2 * i], by4[2 * i + 1], 0x88), _mm512_shuffle_f32x4(by4[2 * i], by4[2 * i + 1], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(by8[0], by8[1], 0x88), _mm512_shuffle_f32x4(by8[0], by8[1], 0xdd));
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
  __m512 own[MOST_CHUNKS], dots[LANES], sums[2][MOST_CHUNKS], most = _mm512_set1_ps(-__builtin_inff()), total = _mm512_setzero_ps();
  UNROLL for (int c = 0; c < chunks; c++) {
    own[c] = _mm512_mul_ps(_mm512_loadu_ps(query + c * LANES), _mm512_set1_ps(scaling));
    sums[0][c] = sums[1][c] = _mm512_setzero_ps();
  }
  for (long at = first; at < end; at += LANES) {
    UNROLL for (int j = 0; j < LANES; j++) {
      const float *key = slot(keys, at + j < end ? at + j : end - 1);
      dots[j] = _mm512_mul_ps(own[0], _mm512_loadu_ps(key));
      UNROLL for (int c = 1; c < chunks; c++) dots[j] = _mm512_fmadd_ps(own[c], _mm512_loadu_ps(key + c * LANES), dots[j]);
    }
    __mmask16 seen = end - at < LANES ? (1u << (end - at)) - 1 : 0xffff;
    __m512 found = _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), seen, sums_of(dots));
    most = _mm512_max_ps(most, found);
    _mm512_storeu_ps(scores + at - first, found);
  }
  most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  for (long at = 0; at < end - first; at += LANES) {
    __mmask16 seen = end - first - at < LANES ? (1u << (end - first - at)) - 1 : 0xffff;
    __m512 share = _mm512_maskz_mov_ps(seen, exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + at), most)));
    total = _mm512_add_ps(total, share);
    _mm512_storeu_ps(scores + at, share);
  }
  for (long at = first; at < end; at += 2) {
    UNROLL for (int j = 0; j < 2; j++) {
      if (at + j >= end) break;
      const float *value = slot(values, at + j);
      __m512 share = _mm512_set1_ps(scores[at + j - first]);
      UNROLL for (int c = 0; c < chunks; c++) sums[j][c] = _mm512_fmadd_ps(share, _mm512_loadu_ps(value + c * LANES), sums[j][c]);
    }
  }
  __m512 part = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
  UNROLL for (int c = 0; c < chunks; c++) _mm512_storeu_ps(out + c * LANES, _mm512_mul_ps(_mm512_add_ps(sums[0][c], sums[1][c]), part));
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
