// Products of rows in float32 with weights in blocks, which are unpacked in registers and multiplied as float32.
//
// Compiled for one form of blocks at a time (BlockForm in block_forms.py): numbers of BITS bits, blocks of SPAN inputs, GROUP of which
// share a scale; OFFSETS: and an offset; BOOK: what the 16 lowest numbers stand for, LISTED: which do not count from the first one on.
//
// The 16 outputs of a tile stand side by side. A tile is a list of blocks:
//   scale float16[16], with OFFSETS offset float16[16], and for each PART inputs
//     numbers: for each bit above the lowest LOW, lowest first, uint16[PART] with a bit for each output; then 32-bit words [LOW][16], in
//     which the LOW bits of input i stand behind those of input i - 1; 8 bits: int8[PART][16]; 16 bits, without scales: float16[PART][16]
//     with SPAN > PART: factors int8[PART / GROUP][16] of the scale, and with OFFSETS as many of the offset
// A weight is scale * number + offset. All is exact in float32 where the blocks were made from such numbers, but for that sum, which
// is rounded once. A row's sums are added up in the order of the inputs whatever the number of rows and threads. So no bit of them depends
// on what else is multiplied.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define PART 32
#define SCALES (LANES * 2)
#define HEADS (BITS == 16 ? 0 : 1 + OFFSETS)
#define FACTORS (SPAN > PART)
#define LOW (BITS < 4 ? 2 : 4)
#define PLANE (PART * LANES / 8)
#define NUMBERS (PART * LANES * BITS / 8)
#define PART_BYTES (NUMBERS + FACTORS * HEADS * (PART / GROUP) * LANES)
#define BLOCK (HEADS * SCALES + SPAN / PART * PART_BYTES)
#define MOST_SUMS (REGISTERS * 3 / 4)  // beside the registers that unpacking takes
#define MOST_ROWS (REGISTERS == 32 ? 24 : 6)
#define PANEL_ROWS (REGISTERS == 32 ? 8 : 6)
#define PANEL_TILES (REGISTERS == 32 ? 3 : 1)
#define MANY (REGISTERS == 32 ? 32 : 24)  // rows, from which on unpacking to memory is worth it
#define TILES 8           // that one row is multiplied with at a time
#define SMALL (1 << 17)   // weights, below which waking up threads takes longer than multiplying
// Bytes of a tile that are asked for before they are needed: tiles side by side are more streams than are guessed, but few are not to fill the cache.
#define AHEAD(tiles) ((tiles) == 1 ? 8192 : (tiles) < TILES ? 4096 : 1024)

typedef struct {
  Lanes scale, offset;
} Group;

// Returns where the part of a tile stands that begins with input `first`.
INLINE const uint8_t *part_of(const uint8_t *tile, long first) {
  return tile + first / SPAN * BLOCK + HEADS * SCALES + first % SPAN / PART * PART_BYTES;
}

// Returns one of the numbers that blocks begin with, of the group of a part that begins with input `first`.
INLINE Lanes head(const uint8_t *tile, long first, const int which) {
  Lanes found = from_halves(tile + first / SPAN * BLOCK + which * SCALES);
  if (!FACTORS) return found;
  return times(found, from_bytes(part_of(tile, first) + NUMBERS + (which * (PART / GROUP) + first % PART / GROUP) * LANES));
}

INLINE Group group_of(const uint8_t *tile, long first) {
  Group found = {all(0), all(0)};
  if (BITS < 16) found.scale = head(tile, first, 0);
  if (OFFSETS) found.offset = head(tile, first, 1);
  return found;
}

// Returns the numbers of input 8 eight + s of a part. Of the index of a lookup only the lowest four bits count: with two bits to a number
// BOOK repeats itself. A word is read from the byte on in which the eight inputs begin; beyond the last are factors.
INLINE Lanes number(const uint8_t *part, int eight, const int s) {
  if (BITS == 8) return from_bytes(part + (8 * eight + s) * LANES);
  const int at = eight * LOW;
  static const float book[LANES] = {BOOK};
  Lanes found = looked_up(part + (BITS - LOW) * PLANE + at / 4 * LANES * 4 + at % 4, LOW * s, LOW, book);
  UNROLL for (int bit = LOW; bit < BITS; bit++)
    found = plus_where(part + (bit - LOW) * PLANE + (8 * eight + s) * 2, found, all(1 << bit));
  return found;
}

INLINE Lanes weight_of(const uint8_t *part, int eight, const int s, Group group) {
  if (BITS == 16) return from_halves(part + (8 * eight + s) * LANES * 2);
  if (OFFSETS) return times_plus(number(part, eight, s), group.scale, group.offset);
  return times(number(part, eight, s), group.scale);
}

// Adds up `rows` rows times `tiles` tiles, which are constants where this is called, so that all sums stay in registers.
INLINE void multiply_tiles(const int rows, const int tiles, const uint8_t *weight, const float *in, float *out,
                           long inputs, long width, int add) {
  const long tile = inputs / SPAN * BLOCK;
  Lanes sums[MOST_SUMS];
  Group group[TILES];
  UNROLL for (int each = 0; each < rows * tiles; each++) sums[each] = all(0);
  for (long first = 0; first < inputs; first += GROUP) {
    const uint8_t *part = part_of(weight, first);
    const uint8_t *ahead = part + AHEAD(tiles) + (part + AHEAD(tiles) < weight + tile ? 0 : (tiles - 1) * tile);
    const int eights = first % PART / 8;
    UNROLL for (int t = 0; t < tiles; t++) group[t] = group_of(weight + t * tile, first);
    for (int eight = eights; eight < eights + GROUP / 8; eight++) {
      const float *at = in + first + 8 * (eight - eights);
      UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int line = 0; line < PART_BYTES / 4; line += 64)
          _mm_prefetch(ahead + t * tile + eight * (PART_BYTES / 4) + line, _MM_HINT_T0);
      UNROLL for (int s = 0; s < 8; s++) {
        UNROLL for (int t = 0; t < tiles; t++) {
          READ_AGAIN(group[t]);
          Lanes value = weight_of(part + t * tile, eight, s, group[t]);
          UNROLL for (int r = 0; r < rows; r++)
            sums[r * tiles + t] = times_plus(value, all(at[r * inputs + s]), sums[r * tiles + t]);
        }
      }
    }
  }
  UNROLL for (int each = 0; each < rows * tiles; each++) {
    float *to = out + each / tiles * width + each % tiles * LANES;
    store(to, add ? plus(load(to), sums[each]) : sums[each]);
  }
}

// Multiplies `rows` rows with `all` tiles, `tiles` of them at a time, and the rest one by one.
INLINE void multiply_rows(const int rows, const int tiles, int all, const uint8_t *weight, const float *in,
                          float *out, long inputs, long width, int add) {
  const long tile = inputs / SPAN * BLOCK;
  int t = 0;
  for (; t + tiles <= all; t += tiles)
    multiply_tiles(rows, tiles, weight + t * tile, in, out + t * LANES, inputs, width, add);
  if (tiles > 1)
    for (; t < all; t++) multiply_tiles(rows, 1, weight + t * tile, in, out + t * LANES, inputs, width, add);
}

// Many rows are divided evenly, so that as many as possible share the unpacking of a weight. Few are multiplied with several tiles
// at a time: as many sums as hide how long one takes.
INLINE void multiply_part(int all, const uint8_t *weight, const float *in, float *out, long count, long inputs,
                          long width, int add) {
  while (count > 0) {
    const long passes = (count + MOST_ROWS - 1) / MOST_ROWS, rows = (count + passes - 1) / passes;
#define ROWS(rows, tiles) \
  case rows: multiply_rows(rows, tiles, all, weight, in, out, inputs, width, add); break;
    switch (rows) {
#if REGISTERS == 8
      ROWS(1, 4) ROWS(2, 1) ROWS(3, 1) ROWS(4, 1) ROWS(5, 1) ROWS(6, 1)
#else
      ROWS(1, 8) ROWS(2, 4) ROWS(3, 4) ROWS(4, 4) ROWS(5, 3) ROWS(6, 3) ROWS(7, 3) ROWS(8, 2) ROWS(9, 1) ROWS(10, 1)
      ROWS(11, 1) ROWS(12, 1) ROWS(13, 1) ROWS(14, 1) ROWS(15, 1) ROWS(16, 1) ROWS(17, 1) ROWS(18, 1) ROWS(19, 1)
      ROWS(20, 1) ROWS(21, 1) ROWS(22, 1) ROWS(23, 1) ROWS(24, 1)
#endif
    }
    count -= rows, in += rows * inputs, out += rows * width;
  }
}

// Writes the weights of tiles side by side, [inputs][tiles][LANES].
INLINE void unpack(const int tiles, const uint8_t *weight, float *out, long inputs) {
  const long tile = inputs / SPAN * BLOCK;
  for (int t = 0; t < tiles; t++) {
    float *to = out + t * LANES;
    for (long first = 0; first < inputs; first += GROUP) {
      const uint8_t *part = part_of(weight + t * tile, first);
      const int eights = first % PART / 8;
      Group group = group_of(weight + t * tile, first);
      for (int eight = eights; eight < eights + GROUP / 8; eight++)
        UNROLL for (int s = 0; s < 8; s++, to += tiles * LANES) store(to, weight_of(part, eight, s, group));
    }
  }
}

// Multiplies `rows` rows with unpacked tiles.
INLINE void multiply_panel(const int rows, const int tiles, const float *panel, const float *in, float *out, long inputs,
                           long width, int add) {
  Lanes sums[PANEL_ROWS * PANEL_TILES], weight[PANEL_TILES];
  UNROLL for (int each = 0; each < rows * tiles; each++) sums[each] = all(0);
  for (long at = 0; at < inputs; at++, panel += tiles * LANES) {
    UNROLL for (int t = 0; t < tiles; t++) weight[t] = load(panel + t * LANES);
    UNROLL for (int r = 0; r < rows; r++) {
      Lanes value = all(in[r * inputs + at]);
      UNROLL for (int t = 0; t < tiles; t++) sums[r * tiles + t] = times_plus(weight[t], value, sums[r * tiles + t]);
    }
  }
  UNROLL for (int each = 0; each < rows * tiles; each++) {
    float *to = out + each / tiles * width + each % tiles * LANES;
    store(to, add ? plus(load(to), sums[each]) : sums[each]);
  }
}

// Multiplies a multiple of PANEL_ROWS rows with `all` tiles, which are unpacked first.
INLINE void multiply_many(int all, const uint8_t *weight, const float *in, float *out, long count, long inputs,
                          long width, int add) {
  const long tile = inputs / SPAN * BLOCK;
  float *panel = aligned_alloc(64, PANEL_TILES * LANES * inputs * sizeof(float));
#define PANEL(tiles)                                                                                              \
  for (; t + tiles <= all; t += tiles) {                                                                          \
    unpack(tiles, weight + t * tile, panel, inputs);                                                        \
    for (long row = 0; row < count; row += PANEL_ROWS)                                                            \
      multiply_panel(PANEL_ROWS, tiles, panel, in + row * inputs, out + row * width + t * LANES, inputs, width, add); \
  }
  int t = 0;
  if (PANEL_TILES == 3) {
    PANEL(3) PANEL(2)
  }
  PANEL(1)
  free(panel);
}

// Multiplies all rows with TILES tiles from `first` on, of `left` that there are.
INLINE void multiply_span(long first, long left, const uint8_t *weight, const float *in, float *out, long count,
                          long inputs, long width, int add) {
  const long all = left < TILES ? left : TILES, many = count < MANY ? 0 : count / PANEL_ROWS * PANEL_ROWS;
  const uint8_t *part = weight + first * (inputs / SPAN * BLOCK);
  float *to = out + first * LANES;
  if (many) multiply_many(all, part, in, to, many, inputs, width, add);
  multiply_part(all, part, in + many * inputs, to + many * width, count - many, inputs, width, add);
}

// in [count, inputs], inputs a multiple of SPAN, outputs of LANES; rows of `out` stand `width` numbers apart. `add`: on to what is there.
void product(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add) {
  _Pragma("omp parallel for schedule(static) if (inputs * outputs >= SMALL)")
  for (long first = 0; first < outputs / LANES; first += TILES)
    multiply_span(first, outputs / LANES - first, weight, in, out, count, inputs, width, add);
}

#if BITS < 16
#include "rounded.h"
#if WIDE && __AVX512VBMI__ && __linux__ && __AMX_BF16__
#include "tiles.h"
#endif
#endif
