// What numbers stand for, in 16 bits: for processors that multiply and add up pairs of those.

#define ENTRIES 64  // of a book for up to six bits
#define LOWEST (1 << LOW)

// Returns what a number of BITS bits stands for.
INLINE float meaning(int at) {
  static const float low[LANES] = {BOOK};
  return low[at % LOWEST] + (at % (1 << BITS) >> LOW << LOW);
}

// Returns the numbers by a book of ENTRIES.
INLINE __m512i found_in(const uint16_t *book, __m512i index) {
  if (BITS < 6) return _mm512_permutexvar_epi16(index, _mm512_load_si512(book));
  return _mm512_permutex2var_epi16(_mm512_load_si512(book), index, _mm512_load_si512(book + 32));
}
