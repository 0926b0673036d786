// Whole numbers of 16 bits in pairs, a pair for each of the 16 outputs of a tile: in one register with AVX-512, in two with AVX2.

#define LOWEST (1 << LOW)

// Returns what a number of BITS bits stands for.
INLINE float meaning(int at) {
  static const float low[LANES] = {BOOK};
  return low[at % LOWEST] + (at % (1 << BITS) >> LOW << LOW);
}

// Without it the compiler keeps products and copies of sums, and runs out of registers.
#define IN_PLACE(sums) __asm__("" : "+v"(sums))
#define APART (BITS == 8 ? 1 : 4)  // the inputs of a pair: shifts alone bring those together, which do not run where products do

#if WIDE

typedef __m512i Words;

INLINE Words in_registers(const Words *at) { return *at; }
INLINE Words no_words(void) { return _mm512_setzero_si512(); }
INLINE Words words_at(const uint8_t *at) { return _mm512_loadu_si512(at); }
INLINE Words word_in_all(int32_t both) { return _mm512_set1_epi32(both); }
INLINE Words number_in_all(int x) { return _mm512_set1_epi16(x); }
INLINE Words plus_numbers(Words x, Words y) { return _mm512_add_epi16(x, y); }
INLINE Words common_bits(Words x, Words y) { return _mm512_and_si512(x, y); }
INLINE Words moved(Words x, int bits) { return _mm512_srli_epi16(x, bits); }
INLINE Lanes from_whole(Words x) { return _mm512_cvtepi32_ps(x); }

// Returns sums[i] + x[i][0] * y[i][0] + x[i][1] * y[i][1].
INLINE Words plus_products(Words sums, Words x, Words y) {
#if __AVX512VNNI__
  sums = _mm512_dpwssd_epi32(sums, x, y);
#else
  sums = _mm512_add_epi32(sums, _mm512_madd_epi16(x, y));
#endif
  IN_PLACE(sums);
  return sums;
}

// Returns the two lowest bytes of each word, one to a number.
INLINE Words bytes_apart(Words x) { return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x800d800c, 0x80098008, 0x80058004, 0x80018000)); }

// Returns 16 bytes, and the 16 behind them, as pairs.
INLINE Words pairs_of_bytes(const uint8_t *at) {
  const __m256i both = _mm256_loadu_si256((const __m256i *)at);
#if __AVX512VBMI__
  const __m256i turns = _mm256_set_epi8(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_cvtepi8_epi16(_mm256_permutexvar_epi8(turns, both));
#else
  const __m256i crossed = _mm256_permute4x64_epi64(both, 0xd8);
  return _mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(crossed, _mm256_srli_si256(crossed, 8)));
#endif
}

// Returns x with `y` added to the numbers for which a bit is set.
INLINE Words plus_where_set(const uint8_t *first, const uint8_t *second, Words x, int y) {
  const __mmask32 set = _pdep_u32(first[0] | first[1] << 8, 0x55555555) | _pdep_u32(second[0] | second[1] << 8, 0xaaaaaaaa);
  return _mm512_mask_add_epi16(x, set, x, _mm512_set1_epi16(y));
}

// Returns what numbers of four bits stand for by a list.
INLINE Words listed(Words x) {
  static const int16_t list[2 * LANES] __attribute__((aligned(64))) = {BOOK, BOOK};
  return _mm512_permutexvar_epi16(x, _mm512_load_si512(list));
}

INLINE void store_whole(int16_t *at, Lanes x) { _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x))); }

#else

typedef struct {
  __m256i low, high;
} Words;

#define BOTH(made) ((Words){made, made})
#define EACH(of, x, y) ((Words){of(x.low, y.low), of(x.high, y.high)})

// Without it the compiler reads them again for each row.
INLINE Words in_registers(const Words *at) {
  Words words = *at;
  IN_PLACE(words.low);
  IN_PLACE(words.high);
  return words;
}

INLINE Words no_words(void) { return BOTH(_mm256_setzero_si256()); }
INLINE Words words_at(const uint8_t *at) { return (Words){_mm256_loadu_si256((const __m256i *)at), _mm256_loadu_si256((const __m256i *)at + 1)}; }
INLINE Words word_in_all(int32_t both) { return BOTH(_mm256_set1_epi32(both)); }
INLINE Words number_in_all(int x) { return BOTH(_mm256_set1_epi16(x)); }
INLINE Words plus_numbers(Words x, Words y) { return EACH(_mm256_add_epi16, x, y); }
INLINE Words common_bits(Words x, Words y) { return EACH(_mm256_and_si256, x, y); }
INLINE Words moved(Words x, int bits) { return (Words){_mm256_srli_epi16(x.low, bits), _mm256_srli_epi16(x.high, bits)}; }
INLINE Lanes from_whole(Words x) { return (Lanes){_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }

INLINE __m256i half_products(__m256i sums, __m256i x, __m256i y) {
#if __AVXVNNI__
  sums = _mm256_dpwssd_avx_epi32(sums, x, y);
#else
  sums = _mm256_add_epi32(sums, _mm256_madd_epi16(x, y));
#endif
  IN_PLACE(sums);
  return sums;
}

INLINE Words plus_products(Words sums, Words x, Words y) { return (Words){half_products(sums.low, x.low, y.low), half_products(sums.high, x.high, y.high)}; }

INLINE Words bytes_apart(Words x) {
  const Words apart = BOTH(_mm256_broadcastsi128_si256(_mm_set_epi32(0x800d800c, 0x80098008, 0x80058004, 0x80018000)));
  return EACH(_mm256_shuffle_epi8, x, apart);
}

INLINE Words pairs_of_bytes(const uint8_t *at) {
  const __m128i one = _mm_loadu_si128((const __m128i *)at), other = _mm_loadu_si128((const __m128i *)at + 1);
  return (Words){_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(one, other)), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(one, other))};
}

INLINE Words plus_where_set(const uint8_t *first, const uint8_t *second, Words x, int y) {
  const __m256i own = _mm256_setr_epi32(0x10001, 0x20002, 0x40004, 0x80008, 0x100010, 0x200020, 0x400040, 0x800080);
  const Words bits = word_in_all(first[0] | first[1] << 8 | second[0] << 16 | second[1] << 24), each = {own, _mm256_slli_epi16(own, 8)};
  const Words set = common_bits(bits, each);
  return plus_numbers(x, common_bits(EACH(_mm256_cmpeq_epi16, set, each), number_in_all(y)));
}

INLINE __m256i half_listed(__m256i list, __m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_shuffle_epi8(list, x), 8), 8); }

INLINE Words listed(Words x) {
  static const int8_t list[LANES] = {BOOK};
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)list));
  return (Words){half_listed(both, x.low), half_listed(both, x.high)};
}

INLINE void store_whole(int16_t *at, Lanes x) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
  _mm256_storeu_si256((__m256i *)at, _mm256_permute4x64_epi64(packed, 0xd8));
}

#endif

// Returns the lowest bits of eight inputs, of 16 outputs: those of the first four stand in the lower half of each word, the others above.
INLINE Words lowest_in_pairs(const uint8_t *part, int eight) {
  const int at = eight * LOW;
  const Words words = words_at(part + (BITS - LOW) * PLANE + at / 4 * LANES * 4 + at % 4);
  return LOW == 4 ? words : bytes_apart(words);
}

// Returns the numbers of the `j`th pair of eight inputs, APART from each other.
INLINE Words pair_of(const uint8_t *part, Words lowest, int eight, const int j) {
  if (BITS == 8) return pairs_of_bytes(part + (8 * eight + 2 * j) * LANES);
  Words numbers = moved(lowest, LOW * j);
  if (j < APART - 1) numbers = common_bits(numbers, number_in_all(LOWEST - 1));
  UNROLL for (int bit = LOW; bit < BITS; bit++) {
    const uint8_t *plane = part + (bit - LOW) * PLANE + (8 * eight + j) * 2;
    numbers = plus_where_set(plane, plane + 2 * APART, numbers, 1 << bit);
  }
  if (LISTED) return listed(numbers);
  return meaning(0) == 0 ? numbers : plus_numbers(numbers, number_in_all(meaning(0)));
}

INLINE void store_in_pairs(uint8_t *to, Lanes whole) {
  const __m128i turns = _mm_set_epi8(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0);
  store_whole((int16_t *)to, whole);
  if (APART == 4)
    for (__m128i *eight = (__m128i *)to; eight < (__m128i *)to + 2; eight++) _mm_storeu_si128(eight, _mm_shuffle_epi8(_mm_loadu_si128(eight), turns));
}
