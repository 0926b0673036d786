// Products of rows in float32 with weights in blocks of 4 or 8 bits, which are unpacked in registers and multiplied as float32.
//
// The 16 outputs of a tile stand side by side. A tile is a list of blocks, one for each GROUP inputs:
//   4 bits: scale float16[16], offset float16[16], then 32-bit words [GROUP / 8][16]: input 8 g + s is in bits 4 s of word g;
//           a weight is scale * number + offset
//   8 bits: scale float16[16], then int8[GROUP][16]; a weight is scale * number
// Both are exact in float32 where the blocks were made from such numbers. A row's sums are added up in the same order whatever the
// number of rows and threads: inputs of even and of odd place apart. So no bit of them depends on what else is multiplied.

#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define GROUP 32
#define SCALES (LANES * 2)
#define BLOCK(bits) ((bits) == 4 ? 2 * SCALES + GROUP * LANES / 2 : SCALES + GROUP * LANES)
#define MOST_ROWS 8
#define TILES 4           // that one row is multiplied with at a time: as many sums as hide how long one takes
#define PAIR 2            // the same for two to four rows
#define SMALL (1 << 17)   // weights, below which waking up threads takes longer than multiplying
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

INLINE __m512 halves(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }

INLINE __m512 weight4(const uint8_t *block, int input, __m512 scale, __m512 offset) {
  const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i word = _mm512_loadu_si512(block + 2 * SCALES + input / 8 * LANES * 4);
  return _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(word, input % 8 * 4), numbers), scale, offset);
}

INLINE __m512 weight8(const uint8_t *block, int input, __m512 scale) {
  __m128i numbers = _mm_loadu_si128((const __m128i *)(block + SCALES + input * LANES));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)), scale);
}

// `rows` and `tiles` are constants where this is called, so that all sums stay in registers.
INLINE void multiply_tiles(const int bits, const int rows, const int tiles, const uint8_t *weight, const float *in, float *out,
                           long inputs, long outputs, int add) {
  const long tile = inputs / GROUP * BLOCK(bits);
  __m512 even[MOST_ROWS], odd[MOST_ROWS], scale[TILES], offset[TILES];
  UNROLL for (int each = 0; each < rows * tiles; each++) even[each] = odd[each] = _mm512_setzero_ps();
  for (long first = 0; first < inputs; first += GROUP, weight += BLOCK(bits)) {
    UNROLL for (int t = 0; t < tiles; t++) {
      scale[t] = halves(weight + t * tile);
      offset[t] = bits == 4 ? halves(weight + t * tile + SCALES) : scale[t];
    }
    for (int eight = 0; eight < GROUP; eight += 8) {
      UNROLL for (int s = 0; s < 8; s++) {
        UNROLL for (int t = 0; t < tiles; t++) {
          const uint8_t *block = weight + t * tile;
          __m512 value = bits == 4 ? weight4(block, eight + s, scale[t], offset[t]) : weight8(block, eight + s, scale[t]);
          UNROLL for (int r = 0; r < rows; r++) {
            __m512 *sum = (s % 2 ? odd : even) + r * tiles + t;
            *sum = _mm512_fmadd_ps(value, _mm512_set1_ps(in[r * inputs + first + eight + s]), *sum);
          }
        }
      }
    }
  }
  UNROLL for (int each = 0; each < rows * tiles; each++) {
    float *to = out + each / tiles * outputs + each % tiles * LANES;
    __m512 sum = _mm512_add_ps(even[each], odd[each]);
    _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum) : sum);
  }
}

// Multiplies `rows` rows with `all` tiles, `tiles` of them at a time.
INLINE void multiply_some(const int bits, const int rows, const int tiles, int all, const uint8_t *weight, const float *in,
                          float *out, long inputs, long outputs, int add) {
  for (int t = 0; t < all; t += tiles)
    multiply_tiles(bits, rows, tiles, weight + t * (inputs / GROUP * BLOCK(bits)), in, out + t * LANES, inputs, outputs, add);
}

INLINE void multiply_rows(const int bits, const int whole, const uint8_t *weight, const float *in, float *out, long count,
                          long inputs, long outputs, int add) {
  const int all = whole ? TILES : 1, pair = whole ? PAIR : 1;
  for (; count >= MOST_ROWS; count -= MOST_ROWS, in += MOST_ROWS * inputs, out += MOST_ROWS * outputs)
    multiply_some(bits, MOST_ROWS, 1, all, weight, in, out, inputs, outputs, add);
  switch (count) {
    case 7: multiply_some(bits, 7, 1, all, weight, in, out, inputs, outputs, add); break;
    case 6: multiply_some(bits, 6, 1, all, weight, in, out, inputs, outputs, add); break;
    case 5: multiply_some(bits, 5, 1, all, weight, in, out, inputs, outputs, add); break;
    case 4: multiply_some(bits, 4, pair, all, weight, in, out, inputs, outputs, add); break;
    case 3: multiply_some(bits, 3, pair, all, weight, in, out, inputs, outputs, add); break;
    case 2: multiply_some(bits, 2, pair, all, weight, in, out, inputs, outputs, add); break;
    case 1: multiply_some(bits, 1, all, all, weight, in, out, inputs, outputs, add); break;
  }
}

INLINE void multiply(const int bits, const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs,
                     int add) {
  const long tile = inputs / GROUP * BLOCK(bits), whole = outputs / (TILES * LANES);
#pragma omp parallel for schedule(static) if (inputs * outputs >= SMALL)
  for (long each = 0; each < whole; each++)
    multiply_rows(bits, 1, weight + each * TILES * tile, in, out + each * TILES * LANES, count, inputs, outputs, add);
  for (long t = whole * TILES; t < outputs / LANES; t++)
    multiply_rows(bits, 0, weight + t * tile, in, out + t * LANES, count, inputs, outputs, add);
}

// in [count, inputs], out [count, outputs]; inputs a multiple of GROUP, outputs of LANES. `add`: on to what is in `out`.
void product4(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, int add) {
  multiply(4, weight, in, out, count, inputs, outputs, add);
}

void product8(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, int add) {
  multiply(8, weight, in, out, count, inputs, outputs, add);
}
