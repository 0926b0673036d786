// Products of rows in float32 with weights in blocks of 4, 8 or 16 bits, which are unpacked in registers and multiplied as float32.
//
// The 16 outputs of a tile stand side by side. A tile is a list of blocks, one for each GROUP inputs:
//   4 bits: scale float16[16], offset float16[16], then 32-bit words [GROUP / 8][16]: input 8 g + s is in bits 4 s of word g;
//           a weight is scale * number + offset
//   8 bits: scale float16[16], then int8[GROUP][16]; a weight is scale * number
//   16 bits: float16[GROUP][16]
// All are exact in float32 where the blocks were made from such numbers. A row's sums are added up in the order of the inputs whatever
// the number of rows and threads. So no bit of them depends on what else is multiplied.

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

#define LANES 16
#define GROUP 32
#define SCALES (LANES * 2)
#define BLOCK(bits) ((2 - (bits) / 8) * SCALES + GROUP * LANES * (bits) / 8)
#define MOST_ROWS 24
#define MOST_SUMS 24  // registers, beside those that unpacking takes
#define PANEL_ROWS 8
#define PANEL_TILES 3
#define MANY 32           // rows, from which on unpacking to memory is worth it
#define TILES 8           // that one row is multiplied with at a time
#define SMALL (1 << 17)   // weights, below which waking up threads takes longer than multiplying
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24")

INLINE __m512 halves(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }

// Returns the weights of input 8 eight + s.
INLINE __m512 weight4(const uint8_t *block, int eight, const int s, __m512 scale, __m512 offset) {
  const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i word = _mm512_loadu_si512(block + 2 * SCALES + eight * LANES * 4);
  return _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(word, 4 * s), numbers), scale, offset);
}

INLINE __m512 weight8(const uint8_t *block, int eight, const int s, __m512 scale) {
  __m128i numbers = _mm_loadu_si128((const __m128i *)(block + SCALES + (8 * eight + s) * LANES));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)), scale);
}

INLINE __m512 weight_of(const int bits, const uint8_t *block, int eight, const int s, __m512 scale, __m512 offset) {
  if (bits == 16) return halves(block + (8 * eight + s) * LANES * 2);
  return bits == 4 ? weight4(block, eight, s, scale, offset) : weight8(block, eight, s, scale);
}

// Adds up `rows` rows times `tiles` tiles, which are constants where this is called, so that all sums stay in registers.
INLINE void multiply_tiles(const int bits, const int rows, const int tiles, const uint8_t *weight, const float *in, float *out,
                           long inputs, long outputs, int add) {
  const long tile = inputs / GROUP * BLOCK(bits);
  __m512 sums[MOST_SUMS], scale[TILES], offset[TILES];
  UNROLL for (int each = 0; each < rows * tiles; each++) sums[each] = _mm512_setzero_ps();
  for (long first = 0; first < inputs; first += GROUP, weight += BLOCK(bits)) {
    UNROLL for (int t = 0; t < tiles; t++) {
      scale[t] = bits < 16 ? halves(weight + t * tile) : _mm512_setzero_ps();
      offset[t] = bits == 4 ? halves(weight + t * tile + SCALES) : scale[t];
    }
    for (int eight = 0; eight < GROUP / 8; eight++) {
      const float *at = in + first + 8 * eight;
      UNROLL for (int s = 0; s < 8; s++) {
        UNROLL for (int t = 0; t < tiles; t++) {
          __m512 value = weight_of(bits, weight + t * tile, eight, s, scale[t], offset[t]);
          UNROLL for (int r = 0; r < rows; r++)
            sums[r * tiles + t] = _mm512_fmadd_ps(value, _mm512_set1_ps(at[r * inputs + s]), sums[r * tiles + t]);
        }
      }
    }
  }
  UNROLL for (int each = 0; each < rows * tiles; each++) {
    float *to = out + each / tiles * outputs + each % tiles * LANES;
    _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sums[each]) : sums[each]);
  }
}

// Multiplies `rows` rows with `all` tiles, `tiles` of them at a time, and the rest one by one.
INLINE void multiply_rows(const int bits, const int rows, const int tiles, int all, const uint8_t *weight, const float *in,
                          float *out, long inputs, long outputs, int add) {
  const long tile = inputs / GROUP * BLOCK(bits);
  int t = 0;
  for (; t + tiles <= all; t += tiles)
    multiply_tiles(bits, rows, tiles, weight + t * tile, in, out + t * LANES, inputs, outputs, add);
  if (tiles > 1)
    for (; t < all; t++) multiply_tiles(bits, rows, 1, weight + t * tile, in, out + t * LANES, inputs, outputs, add);
}

// Many rows are divided evenly, so that as many as possible share the unpacking of a weight. Few are multiplied with several tiles
// at a time: as many sums as hide how long one takes.
INLINE void multiply_part(const int bits, int all, const uint8_t *weight, const float *in, float *out, long count, long inputs,
                          long outputs, int add) {
  while (count > 0) {
    const long passes = (count + MOST_ROWS - 1) / MOST_ROWS, rows = (count + passes - 1) / passes;
#define ROWS(rows, tiles) \
  case rows: multiply_rows(bits, rows, tiles, all, weight, in, out, inputs, outputs, add); break;
    switch (rows) {
      ROWS(1, 8) ROWS(2, 4) ROWS(3, 4) ROWS(4, 4) ROWS(5, 3) ROWS(6, 3) ROWS(7, 3) ROWS(8, 2) ROWS(9, 1) ROWS(10, 1)
      ROWS(11, 1) ROWS(12, 1) ROWS(13, 1) ROWS(14, 1) ROWS(15, 1) ROWS(16, 1) ROWS(17, 1) ROWS(18, 1) ROWS(19, 1)
      ROWS(20, 1) ROWS(21, 1) ROWS(22, 1) ROWS(23, 1) ROWS(24, 1)
    }
    count -= rows, in += rows * inputs, out += rows * outputs;
  }
}

// Writes the weights of tiles side by side, [inputs][tiles][LANES].
INLINE void unpack(const int bits, const int tiles, const uint8_t *weight, float *out, long inputs) {
  const long tile = inputs / GROUP * BLOCK(bits);
  for (int t = 0; t < tiles; t++) {
    const uint8_t *block = weight + t * tile;
    float *to = out + t * LANES;
    for (long first = 0; first < inputs; first += GROUP, block += BLOCK(bits)) {
      __m512 scale = bits < 16 ? halves(block) : _mm512_setzero_ps(), offset = bits == 4 ? halves(block + SCALES) : scale;
      for (int eight = 0; eight < GROUP / 8; eight++)
        UNROLL for (int s = 0; s < 8; s++, to += tiles * LANES)
          _mm512_store_ps(to, weight_of(bits, block, eight, s, scale, offset));
    }
  }
}

// Multiplies `rows` rows with unpacked tiles.
INLINE void multiply_panel(const int rows, const int tiles, const float *panel, const float *in, float *out, long inputs,
                           long outputs, int add) {
  __m512 sums[PANEL_ROWS * PANEL_TILES], weight[PANEL_TILES];
  UNROLL for (int each = 0; each < rows * tiles; each++) sums[each] = _mm512_setzero_ps();
  for (long at = 0; at < inputs; at++, panel += tiles * LANES) {
    UNROLL for (int t = 0; t < tiles; t++) weight[t] = _mm512_load_ps(panel + t * LANES);
    UNROLL for (int r = 0; r < rows; r++) {
      __m512 value = _mm512_set1_ps(in[r * inputs + at]);
      UNROLL for (int t = 0; t < tiles; t++) sums[r * tiles + t] = _mm512_fmadd_ps(weight[t], value, sums[r * tiles + t]);
    }
  }
  UNROLL for (int each = 0; each < rows * tiles; each++) {
    float *to = out + each / tiles * outputs + each % tiles * LANES;
    _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sums[each]) : sums[each]);
  }
}

// Multiplies a multiple of PANEL_ROWS rows with `all` tiles, which are unpacked first.
INLINE void multiply_many(const int bits, int all, const uint8_t *weight, const float *in, float *out, long count, long inputs,
                          long outputs, int add) {
  const long tile = inputs / GROUP * BLOCK(bits);
  float *panel = aligned_alloc(64, PANEL_TILES * LANES * inputs * sizeof(float));
#define PANEL(tiles)                                                                                              \
  for (; t + tiles <= all; t += tiles) {                                                                          \
    unpack(bits, tiles, weight + t * tile, panel, inputs);                                                        \
    for (long row = 0; row < count; row += PANEL_ROWS)                                                            \
      multiply_panel(PANEL_ROWS, tiles, panel, in + row * inputs, out + row * outputs + t * LANES, inputs, outputs, add); \
  }
  int t = 0;
  PANEL(3) PANEL(2) PANEL(1)
  free(panel);
}

// Multiplies all rows with TILES tiles from `first` on.
INLINE void multiply_span(const int bits, long first, const uint8_t *weight, const float *in, float *out, long count, long inputs,
                          long outputs, int add) {
  const long left = outputs / LANES - first, all = left < TILES ? left : TILES, many = count < MANY ? 0 : count / PANEL_ROWS * PANEL_ROWS;
  const uint8_t *part = weight + first * (inputs / GROUP * BLOCK(bits));
  float *to = out + first * LANES;
  if (many) multiply_many(bits, all, part, in, to, many, inputs, outputs, add);
  multiply_part(bits, all, part, in + many * inputs, to + many * outputs, count - many, inputs, outputs, add);
}

// in [count, inputs], out [count, outputs]; inputs a multiple of GROUP, outputs of LANES. `add`: on to what is in `out`.
// The loop stands in each function because the compiler makes a function of it, to which a number of bits is no constant.
#define PRODUCT(name, bits)                                                                                       \
  void name(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, int add) { \
    _Pragma("omp parallel for schedule(static) if (inputs * outputs >= SMALL)")                                   \
    for (long first = 0; first < outputs / LANES; first += TILES)                                                 \
      multiply_span(bits, first, weight, in, out, count, inputs, outputs, add);                                   \
  }
PRODUCT(product4, 4)
PRODUCT(product8, 8)
PRODUCT(product16, 16)
