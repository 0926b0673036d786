// 16 numbers that are computed with together: in one register with AVX-512, in two with AVX2.
//
// Both do the same operations in the same order, so that products have the same bits on either. Only sums over the lanes of a vector differ,
// and with them norms and attention.

#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24")
#define WIDE (__AVX512F__ && __AVX512BW__ && __AVX512VL__)

#if WIDE

#define REGISTERS 32  // how many Lanes they hold
#define READ_AGAIN(x)
typedef __m512 Lanes;

INLINE Lanes load(const float *at) { return _mm512_loadu_ps(at); }
INLINE void store(float *at, Lanes x) { _mm512_storeu_ps(at, x); }
INLINE Lanes all(float x) { return _mm512_set1_ps(x); }
INLINE Lanes plus(Lanes x, Lanes y) { return _mm512_add_ps(x, y); }
INLINE Lanes minus(Lanes x, Lanes y) { return _mm512_sub_ps(x, y); }
INLINE Lanes times(Lanes x, Lanes y) { return _mm512_mul_ps(x, y); }
INLINE Lanes divided(Lanes x, Lanes y) { return _mm512_div_ps(x, y); }
INLINE Lanes times_plus(Lanes x, Lanes y, Lanes z) { return _mm512_fmadd_ps(x, y, z); }
INLINE Lanes larger(Lanes x, Lanes y) { return _mm512_max_ps(x, y); }   // y, where one is no number
INLINE Lanes smaller(Lanes x, Lanes y) { return _mm512_min_ps(x, y); }  // as above
INLINE Lanes rounded(Lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE Lanes zero_if_nan(Lanes x) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x); }
INLINE float sum_of(Lanes x) { return _mm512_reduce_add_ps(x); }
INLINE float largest_of(Lanes x) { return _mm512_reduce_max_ps(x); }

// Returns x times 2 to the power of `whole`, which is above -150.
INLINE Lanes scaled(Lanes x, Lanes whole) { return _mm512_scalef_ps(x, whole); }

// Returns the first `count` lanes of x, and those behind them of `other`.
INLINE Lanes first_lanes(long count, Lanes x, Lanes other) {
  return _mm512_mask_mov_ps(other, count < LANES ? (1u << count) - 1 : 0xffff, x);
}

// Returns the sums of 16 vectors, in order.
INLINE Lanes sums_of(const Lanes *each) {
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

INLINE Lanes from_halves(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }
INLINE Lanes from_bytes(const uint8_t *at) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at))); }

// Returns what the lowest `bits` of 16 words, `shift` bits further on, stand for in `book`, which with 2 bits repeats itself.
INLINE Lanes looked_up(const uint8_t *words, int shift, int bits, const float *book) {
  (void)bits;
  return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_loadu_si512(words), shift), load(book));
}

// Adds y to the lanes of x for which a bit is set.
INLINE Lanes plus_where(const uint8_t *bits, Lanes x, Lanes y) { return _mm512_mask_add_ps(x, _load_mask16((__mmask16 *)bits), x, y); }

#else

#define REGISTERS 8
#define READ_AGAIN(x) __asm__("" : "+m"(x))  // from memory: in a register it would push out a sum, which is needed more often
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
typedef struct {
  __m256 low, high;
} Lanes;

INLINE Lanes load(const float *at) { return (Lanes){_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
INLINE void store(float *at, Lanes x) { _mm256_storeu_ps(at, x.low), _mm256_storeu_ps(at + 8, x.high); }
INLINE Lanes all(float x) { return (Lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Lanes plus(Lanes x, Lanes y) { return (Lanes){_mm256_add_ps(x.low, y.low), _mm256_add_ps(x.high, y.high)}; }
INLINE Lanes minus(Lanes x, Lanes y) { return (Lanes){_mm256_sub_ps(x.low, y.low), _mm256_sub_ps(x.high, y.high)}; }
INLINE Lanes times(Lanes x, Lanes y) { return (Lanes){_mm256_mul_ps(x.low, y.low), _mm256_mul_ps(x.high, y.high)}; }
INLINE Lanes divided(Lanes x, Lanes y) { return (Lanes){_mm256_div_ps(x.low, y.low), _mm256_div_ps(x.high, y.high)}; }
INLINE Lanes larger(Lanes x, Lanes y) { return (Lanes){_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high)}; }
INLINE Lanes smaller(Lanes x, Lanes y) { return (Lanes){_mm256_min_ps(x.low, y.low), _mm256_min_ps(x.high, y.high)}; }
INLINE Lanes rounded(Lanes x) { return (Lanes){_mm256_round_ps(x.low, NEAREST), _mm256_round_ps(x.high, NEAREST)}; }

INLINE Lanes times_plus(Lanes x, Lanes y, Lanes z) {
  return (Lanes){_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)};
}

INLINE __m256 half_without_nan(__m256 x) { return _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)); }
INLINE Lanes zero_if_nan(Lanes x) { return (Lanes){half_without_nan(x.low), half_without_nan(x.high)}; }

INLINE float sum_of(Lanes x) {
  __m256 by2 = _mm256_add_ps(x.low, x.high);
  __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by2), _mm256_extractf128_ps(by2, 1));
  by4 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by4, _mm_movehdup_ps(by4)));
}

INLINE float largest_of(Lanes x) {
  __m256 of2 = _mm256_max_ps(x.low, x.high);
  __m128 of4 = _mm_max_ps(_mm256_castps256_ps128(of2), _mm256_extractf128_ps(of2, 1));
  of4 = _mm_max_ps(of4, _mm_movehl_ps(of4, of4));
  return _mm_cvtss_f32(_mm_max_ss(of4, _mm_movehdup_ps(of4)));
}

// Two steps, because the power itself may be beyond what a float can be.
INLINE __m256 half_scaled(__m256 x, __m256 whole) {
  __m256i power = _mm256_cvtps_epi32(_mm256_min_ps(whole, _mm256_set1_ps(254.0f))), first = _mm256_srai_epi32(power, 1), one = _mm256_set1_epi32(127);
  __m256i second = _mm256_sub_epi32(power, first);
  x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, one), 23)));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, one), 23)));
}

INLINE Lanes scaled(Lanes x, Lanes whole) { return (Lanes){half_scaled(x.low, whole.low), half_scaled(x.high, whole.high)}; }

INLINE __m256 half_first(int count, __m256 x, __m256 other) {
  __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), at)));
}

INLINE Lanes first_lanes(long count, Lanes x, Lanes other) {
  return count < LANES ? (Lanes){half_first(count, x.low, other.low), half_first(count - 8, x.high, other.high)} : x;
}

INLINE __m256 pairs(__m256 x, __m256 y) { return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd)); }

// Returns the sums of 8 vectors of 8, in order.
INLINE __m256 half_sums(const __m256 *each) {
  __m256 one = pairs(pairs(each[0], each[1]), pairs(each[2], each[3])), two = pairs(pairs(each[4], each[5]), pairs(each[6], each[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(one, two, 0x20), _mm256_permute2f128_ps(one, two, 0x31));
}

// Returns the products of a vector with eight others, each added up: `halves` half Lanes in turn.
INLINE __m256 half_products_with(const int halves, const float *one, const float *const *others) {
  __m256 sums[8];
  UNROLL for (int h = 0; h < halves; h++) {
    const __m256 own = _mm256_loadu_ps(one + 8 * h);
    UNROLL for (int i = 0; i < 8; i++) {
      const __m256 other = _mm256_loadu_ps(others[i] + 8 * h);
      sums[i] = h ? _mm256_fmadd_ps(own, other, sums[i]) : _mm256_mul_ps(own, other);
    }
  }
  return half_sums(sums);
}

INLINE __m256 half_of_halves(const uint8_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }
INLINE Lanes from_halves(const uint8_t *at) { return (Lanes){half_of_halves(at), half_of_halves(at + 16)}; }

INLINE __m256 half_of_bytes(const uint8_t *at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
INLINE Lanes from_bytes(const uint8_t *at) { return (Lanes){half_of_bytes(at), half_of_bytes(at + 8)}; }

// A register holds half of the book. What is no list of its own but counts from its first number on is not looked up.
INLINE __m256 half_looked_up(const uint8_t *words, int shift, int bits, const float *book) {
  __m256i at = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)words), shift);
  if (bits == 2) return _mm256_permutevar8x32_ps(_mm256_loadu_ps(book), at);
  if (book[15] - book[0] == 15) {
    __m256 found = _mm256_cvtepi32_ps(_mm256_and_si256(at, _mm256_set1_epi32(15)));
    return book[0] == 0 ? found : _mm256_add_ps(found, _mm256_set1_ps(book[0]));
  }
  __m256 first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(book), at), second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(book + 8), at);
  return _mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}

INLINE Lanes looked_up(const uint8_t *words, int shift, int bits, const float *book) {
  return (Lanes){half_looked_up(words, shift, bits, book), half_looked_up(words + 32, shift, bits, book)};
}

INLINE __m256 half_where(__m256i bits, int first, __m256 y) {
  __m256i own = _mm256_slli_epi32(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), first);
  return _mm256_and_ps(y, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bits, own), own)));
}

INLINE Lanes plus_where(const uint8_t *bits, Lanes x, Lanes y) {
  __m256i wide = _mm256_set1_epi32(bits[0] | bits[1] << 8);
  return plus(x, (Lanes){half_where(wide, 0, y.low), half_where(wide, 8, y.high)});
}

#endif
