// Products of rows of 16 bits as whole numbers, for weights that were rounded to fewer.
//
// The numbers of a group of a row are rounded to 16 bits, of which its largest one takes 15. Sums over a group are exact. They are added up
// as float32, in the order of the inputs: no bit of a row depends on the rows beside it.

#include <omp.h>

#include "pairs.h"

#define APART (BITS == 8 ? 1 : 4)  // the inputs of a pair: shifts alone bring those together, which do not run where products do
#define MOST_FOUND (REGISTERS * 3 / 4)           // sums of a group in registers
#define MOST_TOGETHER (REGISTERS == 32 ? 9 : 5)  // rows that share the unpacking of a weight
#define MOST_TILES 24                            // that a thread takes at a time: what as many as are multiplied at once divide
#define LARGEST 32767.0f
#define SMALLEST 1e-30f   // a group of smaller numbers counts as zeros

typedef struct {
  int16_t *numbers;  // [inputs / GROUP][count][GROUP]
  float *scales;   // [inputs / GROUP][count]
  float *sums;     // the same, what offsets are multiplied with
  long count, inputs;
} Rounded;

static Rounded rounded_rows(const float *in, long count, long inputs) {
  const long groups = inputs / GROUP;
  const __m128i turns = _mm_set_epi8(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0);
  float *each = malloc(2 * count * groups * sizeof(float));
  Rounded rows = {malloc(count * inputs * sizeof(int16_t)), each, each + count * groups, count, inputs};
  for (long row = 0; row < count; row++)
    for (long group = 0; group < groups; group++, in += GROUP) {
      Lanes most = all(0), sum = all(0);
      UNROLL for (int at = 0; at < GROUP; at += LANES) {
        most = larger(most, larger(load(in + at), minus(all(0), load(in + at))));
        sum = plus(sum, load(in + at));
      }
      const float top = largest_of(most), total = sum_of(sum);
      const Lanes times_of = all(top < SMALLEST ? 0 : LARGEST / top);
      UNROLL for (int at = 0; at < GROUP; at += LANES) {
        int16_t *to = rows.numbers + (group * count + row) * GROUP + at;
        store_whole(to, times(load(in + at), times_of));
        if (APART == 4)
          for (__m128i *eight = (__m128i *)to; eight < (__m128i *)to + 2; eight++) _mm_storeu_si128(eight, _mm_shuffle_epi8(_mm_loadu_si128(eight), turns));
      }
      rows.scales[group * count + row] = total - total == 0 ? top / LARGEST : NAN;  // what is no number, or has no end, is passed on
      rows.sums[group * count + row] = total;
    }
  return rows;
}

// Returns the lowest bits of eight inputs, of 16 outputs: those of the first four stand in the lower half of each word, the others above.
INLINE Pairs lowest_of(const uint8_t *part, int eight) {
  const int at = eight * LOW;
  const Pairs words = pairs_at(part + (BITS - LOW) * PLANE + at / 4 * LANES * 4 + at % 4);
  return LOW == 4 ? words : bytes_apart(words);
}

// Returns the numbers of a pair of inputs, APART from each other: the first one is input 8 eight + s.
INLINE Pairs pair16(const uint8_t *part, Pairs lowest, int eight, const int s) {
  if (BITS == 8) return pairs_of_bytes(part + (8 * eight + s) * LANES);
  Pairs numbers = moved(lowest, LOW * s);
  if (s < APART - 1) numbers = common_bits(numbers, number_in_all(LOWEST - 1));
  UNROLL for (int bit = LOW; bit < BITS; bit++) {
    const uint8_t *plane = part + (bit - LOW) * PLANE + (8 * eight + s) * 2;
    numbers = plus_where_set(plane, plane + 2 * APART, numbers, 1 << bit);
  }
  if (LISTED) return listed(numbers);
  return meaning(0) == 0 ? numbers : plus_numbers(numbers, number_in_all(meaning(0)));
}

INLINE Pairs in_every_lane(const int16_t *pair) {
  int32_t both;
  memcpy(&both, pair, sizeof both);
  return pair_in_all(both);
}

// Multiplies `count` rows from `from` on with `tiles` tiles, which are constants where this is called. What is found for a group is in
// registers, what is added up over groups in memory: so two tiles share what is read of a row.
INLINE void multiply_tiles16(const int count, const int tiles, const uint8_t *weight, const Rounded rows, long from,
                           float *out, long width, int add) {
  const long inputs = rows.inputs, tile = inputs / SPAN * BLOCK;
  float sums[MOST_FOUND * LANES] __attribute__((aligned(64)));
  for (int each = 0; each < count * tiles; each++) store(sums + each * LANES, all(0));
  for (long first = 0; first < inputs; first += GROUP) {
    const uint8_t *part = part_of(weight, first);
    const uint8_t *ahead = part + AHEAD(tiles) + (part + AHEAD(tiles) < weight + tile ? 0 : (tiles - 1) * tile);
    const int16_t *at = rows.numbers + first * rows.count + from * GROUP;
    const int eights = first % PART / 8;
    Pairs found[MOST_FOUND], lowest[TILES], pairs[TILES];
    UNROLL for (int each = 0; each < count * tiles; each++) found[each] = no_pairs();
    for (int eight = eights; eight < eights + GROUP / 8; eight++, at += 8) {
      UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int line = 0; line < PART_BYTES / 4; line += 64)
          _mm_prefetch(ahead + t * tile + eight * (PART_BYTES / 4) + line, _MM_HINT_T0);
      UNROLL for (int t = 0; t < tiles; t++)
        if (BITS < 8) lowest[t] = lowest_of(part + t * tile, eight);
      UNROLL for (int j = 0; j < 4; j++) {
        UNROLL for (int t = 0; t < tiles; t++) pairs[t] = pair16(part + t * tile, lowest[t], eight, APART == 4 ? j : 2 * j);
        UNROLL for (int r = 0; r < count; r++) {
          const Pairs both = in_every_lane(at + r * GROUP + 2 * j);
          UNROLL for (int t = 0; t < tiles; t++) found[r * tiles + t] = plus_products(found[r * tiles + t], pairs[t], both);
        }
      }
    }
    const long at_row = first / GROUP * rows.count + from;
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
  for (int each = 0; each < count * tiles; each++) {
    float *to = out + each / tiles * width + each % tiles * LANES;
    const Lanes sum = load(sums + each * LANES);
    store(to, add ? plus(load(to), sum) : sum);
  }
}

INLINE void multiply_by_tiles16(const int count, const int tiles, int every, const uint8_t *weight, const Rounded rows, long from,
                              float *out, long width, int add) {
  const long tile = rows.inputs / SPAN * BLOCK;
  int t = 0;
  for (; t + tiles <= every; t += tiles)
    multiply_tiles16(count, tiles, weight + t * tile, rows, from, out + t * LANES, width, add);
  if (tiles > 1)
    for (; t < every; t++) multiply_tiles16(count, 1, weight + t * tile, rows, from, out + t * LANES, width, add);
}

// Multiplies all rows with `every` tiles, divided evenly.
INLINE void multiply_all16(int every, const uint8_t *weight, const Rounded rows, float *out, long width, int add) {
  for (long from = 0; from < rows.count;) {
    const long left = rows.count - from, passes = (left + MOST_TOGETHER - 1) / MOST_TOGETHER, count = (left + passes - 1) / passes;
    float *to = out + from * width;
#define ROWS16(rows_, tiles) \
  case rows_: multiply_by_tiles16(rows_, tiles, every, weight, rows, from, to, width, add); break;
    switch (count) {
#if REGISTERS == 32
      ROWS16(1, 1) ROWS16(2, 1) ROWS16(3, 4) ROWS16(4, 4) ROWS16(5, 3) ROWS16(6, 2) ROWS16(7, 2) ROWS16(8, 2) ROWS16(9, 2)
#else
      ROWS16(1, 1) ROWS16(2, 1) ROWS16(3, 1) ROWS16(4, 1) ROWS16(5, 1)
#endif
    }
    from += count;
  }
}

// As `product`, with rows of 16 bits.
void product_of_rows16(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add) {
  const long tiles = outputs / LANES, tile = inputs / SPAN * BLOCK, each = (tiles + omp_get_max_threads() - 1) / omp_get_max_threads();
  const long span = each < MOST_TILES ? each : MOST_TILES;
  const Rounded rows = rounded_rows(in, count, inputs);
  _Pragma("omp parallel for schedule(static) if (inputs * outputs >= SMALL)")
  for (long first = 0; first < tiles; first += span)
    multiply_all16(tiles - first < span ? tiles - first : span, weight + first * tile, rows, out + first * LANES, width, add);
  free(rows.numbers), free(rows.scales);
}
