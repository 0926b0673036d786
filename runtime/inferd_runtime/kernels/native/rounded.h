// Products of rows of 16 or 8 bits as whole numbers, for weights that were rounded to few.
//
// The numbers of a group of a row are rounded to so many bits that its largest one takes all but one of them. Sums over a group are exact.
// They are added up as float32, in the order of the inputs: no bit of a row depends on the rows beside it. A word of 32 bits holds as many
// inputs as fit into it, `each`; where that is four, weights are multiplied as unsigned numbers, and what that is too much is taken off.

#include <omp.h>

#include "pairs.h"
#include "fours.h"

#define MOST_FOUND (REGISTERS * 3 / 4)           // sums of a group in registers
#define MOST_TOGETHER(each) (REGISTERS == 8 ? 5 : (each) == 4 ? 6 : 9)  // rows that share the unpacking of a weight
#define MANY_WHOLE (BITS == 4 && !LISTED ? 16 : 6)  // rows, from which on unpacking to memory is worth it
#define MOST_TILES 24                            // that a thread takes at a time: what as many as are multiplied at once divide
#define LARGEST(each) ((each) == 4 ? 127.0f : 32767.0f)
#define SMALLEST 1e-30f   // a group of smaller numbers counts as zeros

typedef struct {
  uint8_t *numbers;  // of 4 / each bytes: of rows that are multiplied together [inputs / GROUP][rows][GROUP]
  float *scales;     // the same, one for each group
  float *sums;       // the same, of the rounded numbers: what offsets are multiplied with
  int32_t *begins;   // the same, what sums of products begin with
  long count, inputs;
} Rounded;

// Returns how many of the rows from `from` on are multiplied together: as many passes as are needed, divided evenly.
INLINE long rows_together(const int each, long from, long count) {
  const long left = count - from, passes = (left + MOST_TOGETHER(each) - 1) / MOST_TOGETHER(each);
  return (left + passes - 1) / passes;
}

INLINE Rounded rounded_rows(const int each, const float *in, long count, long inputs) {
  const long groups = inputs / GROUP;
  float *all_of = malloc(3 * count * groups * sizeof(float));
  Rounded rows = {malloc(count * inputs * 4 / each), all_of, all_of + count * groups, (int32_t *)all_of + 2 * count * groups, count, inputs};
  for (long row = 0, from = 0, together = rows_together(each, 0, count); row < count; row++) {
    if (row == from + together) from = row, together = rows_together(each, from, count);
    for (long group = 0; group < groups; group++, in += GROUP) {
      const long place = from * groups + group * together + row - from;
      Lanes most = all(0), wholes = all(0);
      UNROLL for (int at = 0; at < GROUP; at += LANES) most = larger(most, larger(load(in + at), minus(all(0), load(in + at))));
      const float top = largest_of(most);
      const Lanes times_of = all(top < SMALLEST ? 0 : LARGEST(each) / top);
      UNROLL for (int at = 0; at < GROUP; at += LANES) {
        const Lanes whole = rounded(times(load(in + at), times_of));
        uint8_t *to = rows.numbers + (place * GROUP + at) * 4 / each;
        if (each == 4) store_in_fours(to, whole);
        else store_in_pairs(to, whole);
        wholes = plus(wholes, whole);
      }
      // NaN and infinity are passed on: the sum is NaN, and so is the scale. No whole number stands for NaN.
      const float sum = sum_of(wholes), scale = sum == sum ? top / LARGEST(each) : NAN;
      rows.scales[place] = scale;
      rows.sums[place] = sum * scale;
      rows.begins[place] = each == 4 && sum == sum ? -MIDDLE * (int)sum : 0;
    }
  }
  return rows;
}

INLINE Words in_every_lane(const uint8_t *word) {
  int32_t both;
  memcpy(&both, word, sizeof both);
  return word_in_all(both);
}

// Writes all numbers of a tile in pairs, [inputs / 2], which many rows then share.
INLINE void unpack_pairs(const uint8_t *weight, long inputs, Words *to) {
  for (long first = 0; first < inputs; first += GROUP)
    for (int eight = first % PART / 8, last = eight + GROUP / 8; eight < last; eight++) {
      const uint8_t *part = part_of(weight, first);
      const Words lowest = BITS < 8 ? lowest_in_pairs(part, eight) : no_words();
      UNROLL for (int j = 0; j < 4; j++) *to++ = pair_of(part, lowest, eight, j);
    }
}

// Multiplies `count` rows from `from` on with `tiles` tiles, which are constants where this is called. What is found for a group is in
// registers, what is added up over groups in memory: so two tiles share what is read of a row. `unpacked`: the numbers of the only tile
// stand in `panel`, and the next tile is asked for meanwhile.
INLINE void multiply_tiles_whole(const int each, const int count, const int tiles, const int unpacked, const uint8_t *weight, const Words *panel,
                                 const Rounded rows, long from, float *out, long width, int add) {
  const long inputs = rows.inputs, tile = inputs / SPAN * BLOCK;
  const int bytes = 4 / each, once = unpacked ? GROUP : 8;
  float sums[MOST_FOUND * LANES] __attribute__((aligned(64)));
  for (int one = 0; one < count * tiles; one++) store(sums + one * LANES, all(0));
  for (long first = 0; first < inputs; first += GROUP) {
    const long at_row = from * (inputs / GROUP) + first / GROUP * count;
    const uint8_t *part = part_of(weight, first);
    const uint8_t *ahead = part + (unpacked ? tile : AHEAD(tiles) + (part + AHEAD(tiles) < weight + tile ? 0 : (tiles - 1) * tile));
    const uint8_t *at = rows.numbers + at_row * GROUP * bytes;
    const int eights = first % PART / 8;
    Words found[MOST_FOUND], lowest[TILES], words[TILES];
    UNROLL for (int one = 0; one < count * tiles; one++) found[one] = each == 4 ? word_in_all(rows.begins[at_row + one / tiles]) : no_words();
    for (int eight = eights; eight < eights + GROUP / 8; eight += once / 8, at += once * bytes) {
      UNROLL for (int t = 0; t < tiles; t++) {
        UNROLL for (int line = 0; line < PART_BYTES / PART * once; line += 64)
          _mm_prefetch(ahead + t * tile + eight * (PART_BYTES / 4) + line, _MM_HINT_T0);
        if (BITS < 8 && !unpacked) lowest[t] = each == 4 ? lowest_in_fours(part + t * tile, eight) : lowest_in_pairs(part + t * tile, eight);
      }
      UNROLL for (int j = 0; j < once / each; j++) {
        UNROLL for (int t = 0; t < tiles; t++) {
          if (unpacked) words[t] = in_registers(panel++);
          else words[t] = each == 4 ? four_of(part + t * tile, lowest[t], eight, j) : pair_of(part + t * tile, lowest[t], eight, j);
        }
        UNROLL for (int r = 0; r < count; r++) {
          const Words row = in_every_lane(at + r * GROUP * bytes + 4 * j);
          UNROLL for (int t = 0; t < tiles; t++) {
            Words *sum = found + r * tiles + t;
            *sum = each == 4 ? plus_fours(*sum, words[t], row) : plus_products(*sum, words[t], row);
          }
        }
      }
    }
    UNROLL for (int t = 0; t < tiles; t++) {
      const Group group = group_of(weight + t * tile, first);
      UNROLL for (int r = 0; r < count; r++) {
        Lanes sum = load(sums + (r * tiles + t) * LANES);
        if (OFFSETS) sum = times_plus(group.offset, all(rows.sums[at_row + r]), sum);
        Lanes scale = times(group.scale, all(rows.scales[at_row + r]));
        store(sums + (r * tiles + t) * LANES, times_plus(from_whole(found[r * tiles + t]), scale, sum));
      }
    }
  }
  for (int one = 0; one < count * tiles; one++) {
    float *to = out + one / tiles * width + one % tiles * LANES;
    const Lanes sum = load(sums + one * LANES);
    store(to, add ? plus(load(to), sum) : sum);
  }
}

INLINE void multiply_by_tiles(const int each, const int count, const int tiles, int every, const uint8_t *weight, const Rounded rows, long from,
                              float *out, long width, int add) {
  const long tile = rows.inputs / SPAN * BLOCK;
  int t = 0;
  for (; t + tiles <= every; t += tiles)
    multiply_tiles_whole(each, count, tiles, 0, weight + t * tile, NULL, rows, from, out + t * LANES, width, add);
  if (tiles > 1)
    for (; t < every; t++) multiply_tiles_whole(each, count, 1, 0, weight + t * tile, NULL, rows, from, out + t * LANES, width, add);
}

// Literal numbers, without which the compiler keeps sums in memory.
#define ROWS_BY(each, rows_, tiles) \
  case rows_: multiply_by_tiles(each, rows_, REGISTERS == 32 ? tiles : 1, every, weight, rows, from, out, width, add); break;

INLINE void multiply_by_pairs(long count, int every, const uint8_t *weight, const Rounded rows, long from, float *out, long width, int add) {
  switch (count) {
    ROWS_BY(2, 1, 1) ROWS_BY(2, 2, 1) ROWS_BY(2, 3, 4) ROWS_BY(2, 4, 4) ROWS_BY(2, 5, 3)
#if REGISTERS == 32
    ROWS_BY(2, 6, 2) ROWS_BY(2, 7, 2) ROWS_BY(2, 8, 2) ROWS_BY(2, 9, 2)
#endif
  }
}

INLINE void multiply_by_fours(long count, int every, const uint8_t *weight, const Rounded rows, long from, float *out, long width, int add) {
  switch (count) {
#if BITS == 8
    ROWS_BY(4, 1, 1) ROWS_BY(4, 2, 1) ROWS_BY(4, 3, 1) ROWS_BY(4, 4, 1) ROWS_BY(4, 5, 1) ROWS_BY(4, 6, 1)
#else
    ROWS_BY(4, 1, 1) ROWS_BY(4, 2, 1) ROWS_BY(4, 3, 3) ROWS_BY(4, 4, 3) ROWS_BY(4, 5, 2) ROWS_BY(4, 6, 2)
#endif
  }
}

// Multiplies all rows, of 16 bits, with `every` tiles, each unpacked once.
INLINE void multiply_unpacked(int every, const uint8_t *weight, const Rounded rows, float *out, long width, int add) {
  Words *panel = aligned_alloc(64, rows.inputs / 2 * sizeof(Words));
#define UNPACKED(rows_) \
  case rows_: multiply_tiles_whole(2, rows_, 1, 1, weight, panel, rows, from, out + from * width, width, add); break;
  for (int t = 0; t < every; t++, weight += rows.inputs / SPAN * BLOCK, out += LANES) {
    unpack_pairs(weight, rows.inputs, panel);
    for (long from = 0, count; from < rows.count; from += count) {
      count = rows_together(2, from, rows.count);
      switch (count) { UNPACKED(3) UNPACKED(4) UNPACKED(5) }
    }
  }
  free(panel);
}

// Multiplies all rows with `every` tiles.
INLINE void multiply_all_whole(const int each, int every, const uint8_t *weight, const Rounded rows, float *out, long width, int add) {
  if (REGISTERS == 8 && each == 2 && rows.count >= MANY_WHOLE) {
    multiply_unpacked(every, weight, rows, out, width, add);
    return;
  }
  for (long from = 0, count; from < rows.count; from += count) {
    count = rows_together(each, from, rows.count);
    float *to = out + from * width;
    if (each == 4) multiply_by_fours(count, every, weight, rows, from, to, width, add);
    else multiply_by_pairs(count, every, weight, rows, from, to, width, add);
  }
}

INLINE void product_of_whole_rows(const int each, const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs,
                                  long width, int add) {
  const long tiles = outputs / LANES, tile = inputs / SPAN * BLOCK, every = (tiles + omp_get_max_threads() - 1) / omp_get_max_threads();
  const long span = every < MOST_TILES ? every : MOST_TILES;
  const Rounded rows = rounded_rows(each, in, count, inputs);
  _Pragma("omp parallel for schedule(static) if (inputs * outputs >= SMALL)")
  for (long first = 0; first < tiles; first += span)
    multiply_all_whole(each, tiles - first < span ? tiles - first : span, weight + first * tile, rows, out + first * LANES, width, add);
  free(rows.numbers), free(rows.scales);
}

// As `product`, with rows of 16 bits.
void product_of_rows16(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add) {
  product_of_whole_rows(2, weight, in, out, count, inputs, outputs, width, add);
}

#if FOURS
// As `product`, with rows of 8 bits.
void product_of_rows8(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add) {
  product_of_whole_rows(4, weight, in, out, count, inputs, outputs, width, add);
}
#endif
