// The numbers of two inputs at a time, 16 bits each, which stand in turn: what a processor multiplies and adds up in pairs.

#define ENTRIES 64  // of a book for up to six bits
#define LOWEST (1 << LOW)

// Returns what a number of BITS bits stands for.
INLINE float meaning(int at) {
  static const float low[LANES] = {BOOK};
  return low[at % LOWEST] + (at % (1 << BITS) >> LOW << LOW);
}

// Returns of the numbers of inputs 8 eight + s and the one behind it of a part, of 16 outputs, which ones of a book they are. As in
// `number` only the lowest four bits count where there are four.
INLINE __m512i index_pair(const uint8_t *part, int eight, const int s) {
  const int at = eight * LOW;
  const uint64_t shifts = LOW * s | LOW * (s + 1) << 16;
  __m512i words = _mm512_loadu_si512(part + (BITS - LOW) * PLANE + at / 4 * LANES * 4 + at % 4);
  __m512i index = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(shifts | (shifts + 0x200020) << 32), words);
  if (BITS != 4) index = _mm512_and_si512(index, _mm512_set1_epi16(LOWEST - 1));
  UNROLL for (int bit = LOW; bit < BITS; bit++) {
    const uint8_t *plane = part + (bit - LOW) * PLANE + (8 * eight + s) * 2;
    const __mmask32 set = _pdep_u32(plane[0] | plane[1] << 8, 0x55555555) | _pdep_u32(plane[2] | plane[3] << 8, 0xaaaaaaaa);
    index = _mm512_mask_add_epi16(index, set, index, _mm512_set1_epi16(1 << bit));
  }
  return index;
}

// Returns the numbers by a book of ENTRIES.
INLINE __m512i looked_up_pair(const uint8_t *part, int eight, const int s, const uint16_t *book) {
  const __m512i index = index_pair(part, eight, s);
  if (BITS < 6) return _mm512_permutexvar_epi16(index, _mm512_load_si512(book));
  return _mm512_permutex2var_epi16(_mm512_load_si512(book), index, _mm512_load_si512(book + 32));
}
