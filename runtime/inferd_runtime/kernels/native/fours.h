// Whole numbers of 8 bits in fours, one for each of the 16 outputs of a tile, as pairs.h has those of 16 in pairs: weights without a sign,
// rows with one. Inputs of a four stand as far apart as the lowest bits of a byte of packed words and those of the next.

#define STEP (BITS == 8 ? 1 : 8 / LOW)
#define FOURS ((WIDE ? __AVX512VNNI__ : __AVXVNNI__) || BITS < 8 && !LISTED)  // else the sum of two products is beyond 16 bits
#define MIDDLE (BITS == 8 || LISTED ? 128 : (int)-meaning(0))         // which of the numbers is zero

// Returns the first of the `j`th four of eight inputs: with two bits to a number, of the sixteen that those are half of.
INLINE int first_of_four(int eight, const int j) {
  if (BITS == 8) return 8 * eight + 4 * j;
  return LOW == 4 ? 8 * eight + j : 16 * (eight / 2) + 2 * (eight % 2) + j;
}

// Returns a bit of each of four inputs for eight outputs, the first ones or the others, in a byte for each input.
INLINE int32_t bits_of_four(const uint8_t *plane, const int others) {
  const uint8_t *at = plane + others;
  return at[0] | at[2 * STEP] << 8 | at[4 * STEP] << 16 | (uint32_t)at[6 * STEP] << 24;
}

#if WIDE

INLINE Words bytes_in_all(int x) { return _mm512_set1_epi8(x); }

// Returns sums[i] + x[i][0] * y[i][0] + .. + x[i][3] * y[i][3].
INLINE Words plus_fours(Words sums, Words x, Words y) {
#if __AVX512VNNI__
  sums = _mm512_dpbusd_epi32(sums, x, y);
#else
  sums = _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(x, y), _mm512_set1_epi16(1)));
#endif
  IN_PLACE(sums);
  return sums;
}

// Returns 16 bytes and three times the 16 behind them in fours, with the sign turned round.
INLINE Words fours_of_bytes(const uint8_t *at) {
  const __m512i all_of = _mm512_loadu_si512(at), by2 = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  const __m512i crossed = _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), all_of);
  return _mm512_xor_si512(_mm512_shuffle_epi8(crossed, by2), _mm512_set1_epi8(-128));
}

// Returns x with `y` added to the bytes whose bit is set: those of the first eight outputs, and of the others.
INLINE Words plus_where_bits(int32_t first, int32_t others, Words x, int y) {
  const __m512i own = _mm512_maskz_set1_epi8(-1, 1), places = _mm512_set_epi32(7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i bits = _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xff00, others);
  return _mm512_mask_add_epi8(x, _mm512_test_epi8_mask(bits, _mm512_sllv_epi32(own, places)), x, _mm512_set1_epi8(y));
}

INLINE Words bytes_listed(Words x, __m128i list) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(list), x); }

INLINE __m128i bytes_of(Lanes whole) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole)); }

#else

INLINE Words bytes_in_all(int x) { return BOTH(_mm256_set1_epi8(x)); }

INLINE __m256i half_fours(__m256i sums, __m256i x, __m256i y) {
#if __AVXVNNI__
  sums = _mm256_dpbusd_avx_epi32(sums, x, y);
#else
  sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1)));
#endif
  IN_PLACE(sums);
  return sums;
}

INLINE Words plus_fours(Words sums, Words x, Words y) { return (Words){half_fours(sums.low, x.low, y.low), half_fours(sums.high, x.high, y.high)}; }

INLINE Words fours_of_bytes(const uint8_t *at) {
  const __m128i *each = (const __m128i *)at;
  const __m128i one = _mm_loadu_si128(each), two = _mm_loadu_si128(each + 1), three = _mm_loadu_si128(each + 2), four = _mm_loadu_si128(each + 3);
  const __m128i first = _mm_unpacklo_epi8(one, two), second = _mm_unpacklo_epi8(three, four);
  const __m128i third = _mm_unpackhi_epi8(one, two), last = _mm_unpackhi_epi8(three, four);
  const Words fours = {_mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second)),
                       _mm256_set_m128i(_mm_unpackhi_epi16(third, last), _mm_unpacklo_epi16(third, last))};
  return EACH(_mm256_xor_si256, fours, bytes_in_all(-128));
}

INLINE __m256i half_where_bits(int32_t bits, __m256i x, __m256i y) {
  const __m256i own = _mm256_sllv_epi32(_mm256_set1_epi8(1), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(bits), own);
  return _mm256_add_epi8(x, _mm256_and_si256(_mm256_cmpeq_epi8(set, own), y));
}

INLINE Words plus_where_bits(int32_t first, int32_t others, Words x, int y) {
  const __m256i by = _mm256_set1_epi8(y);
  return (Words){half_where_bits(first, x.low, by), half_where_bits(others, x.high, by)};
}

INLINE Words bytes_listed(Words x, __m128i list) {
  const Words both = BOTH(_mm256_broadcastsi128_si256(list));
  return EACH(_mm256_shuffle_epi8, both, x);
}

INLINE __m128i bytes_of(Lanes whole) {
  int16_t numbers[LANES];
  store_whole(numbers, whole);
  return _mm_packs_epi16(_mm_loadu_si128((const __m128i *)numbers), _mm_loadu_si128((const __m128i *)numbers + 1));
}

#endif

// Returns the words that hold the lowest bits of eight inputs.
INLINE Words lowest_in_fours(const uint8_t *part, int eight) {
  const Words words = words_at(part + (BITS - LOW) * PLANE + (LOW == 4 ? eight : eight / 2) * LANES * 4);
  return LOW == 2 && eight % 2 ? moved(words, 2 * LOW) : words;
}

// Returns the `j`th four of eight inputs.
INLINE Words four_of(const uint8_t *part, Words lowest, int eight, const int j) {
  const int first = first_of_four(eight, j);
  if (BITS == 8) return fours_of_bytes(part + first * LANES);
  Words numbers = common_bits(moved(lowest, LOW * j), bytes_in_all(LOWEST - 1));
  UNROLL for (int bit = LOW; bit < BITS; bit++) {
    const uint8_t *plane = part + (bit - LOW) * PLANE + first * 2;
    numbers = plus_where_bits(bits_of_four(plane, 0), bits_of_four(plane, 1), numbers, 1 << bit);
  }
  static const int8_t list[LANES] = {BOOK};
  if (LISTED) return bytes_listed(numbers, _mm_xor_si128(_mm_loadu_si128((const __m128i *)list), _mm_set1_epi8(-128)));
  return numbers;
}

// Writes 16 numbers in the order of fours.
INLINE void store_in_fours(uint8_t *to, Lanes whole) {
  const __m128i by4 = _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m128i by2 = _mm_set_epi8(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0);
  const __m128i numbers = bytes_of(whole);
  _mm_storeu_si128((__m128i *)to, BITS == 8 ? numbers : _mm_shuffle_epi8(numbers, LOW == 4 ? by2 : by4));
}
