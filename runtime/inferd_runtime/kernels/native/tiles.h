// Products in a processor's matrix unit (AMX): up to 16 rows times a group of inputs of 16 outputs at a time.
//
// The unit multiplies bfloat16 and adds up in float32. A block's numbers are whole and small, so that bfloat16 holds each; a row's float32
// is the sum of three. So all products are exact, and sums are rounded as float32's are. A group's scale is multiplied with the sum over
// its inputs. The unit adds up each row by itself: no bit of it depends on the rows beside it.

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PARTS 3     // of a row's numbers, the largest first
#define TALLEST 16  // rows of a tile
#define SIDE 4      // output tiles that are multiplied side by side, with the same inputs
#define CHUNK 64    // rows that share the unpacking of a weight
#define ENTRIES 64  // of a book for up to six bits

typedef uint16_t Narrow;  // bfloat16

typedef struct {
  Narrow *parts;  // [count / tall, rounded up][inputs / GROUP][PARTS][tall][GROUP]; what is behind the last row is not read out
  float *sums;    // [inputs / GROUP][count], what offsets are multiplied with
  long count, inputs, tall;
} Rows;

typedef struct {
  uint8_t palette, start, none[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} TileConfig;

typedef float Sums[SIDE][CHUNK * LANES] __attribute__((aligned(64)));

// Asks the system for the registers of the unit. Returns 0 if this process may use them.
long ask_for_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18); }

INLINE __m512i top_half(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff0000)); }

// Writes the three parts of 16 numbers, `apart` from each other.
INLINE void write_parts(Lanes x, Narrow *to, long apart) {
  UNROLL for (int part = 0; part < PARTS; part++, to += apart) {
    __m512i top = top_half((__m512i)x);
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(top, 16)));
    x = minus(x, (Lanes)top);
  }
}

// Returns rows as they are multiplied. Many are divided evenly into tiles.
static Rows rows_of(const float *in, long count, long inputs) {
  const long tiles = (count + TALLEST - 1) / TALLEST, tall = (count + tiles - 1) / tiles, block = tall * GROUP;
  Rows rows = {aligned_alloc(64, (tiles * tall * PARTS * inputs * sizeof(Narrow) + 63) / 64 * 64), NULL, count, inputs, tall};
  if (OFFSETS) rows.sums = malloc(count * (inputs / GROUP) * sizeof(float));
  for (long row = 0; row < count; row++)
    for (long first = 0; first < inputs; first += GROUP, in += GROUP) {
      Narrow *to = rows.parts + PARTS * (row / tall * tall * inputs + first * tall) + row % tall * GROUP;
      Lanes sum = all(0);
      UNROLL for (int at = 0; at < GROUP; at += LANES) {
        write_parts(load(in + at), to + at, block);
        sum = plus(sum, load(in + at));
      }
      if (OFFSETS) rows.sums[first / GROUP * count + row] = sum_of(sum);
    }
  return rows;
}

// Writes what the numbers of BITS bits stand for.
static void fill_book(Narrow *book) {
  static const float low[LANES] = {BOOK};
  for (int at = 0; at < ENTRIES; at++) {
    const float value = low[at % (1 << LOW)] + (at % (1 << BITS) >> LOW << LOW);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    book[at] = bits >> 16;
  }
}

// Returns the numbers of inputs 8 eight + s and the one behind it of a part, which stand in turn, of 16 outputs. As in `number` only the
// lowest bits of an index count.
INLINE __m512i looked_up_pair(const uint8_t *part, int eight, const int s, const Narrow *book) {
  const int at = eight * LOW;
  const uint64_t shifts = LOW * s | LOW * (s + 1) << 16;
  __m512i words = _mm512_loadu_si512(part + (BITS - LOW) * PLANE + at / 4 * LANES * 4 + at % 4);
  __m512i index = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(shifts | (shifts + 0x200020) << 32), words);
  if (BITS > LOW) index = _mm512_and_si512(index, _mm512_set1_epi16((1 << LOW) - 1));
  UNROLL for (int bit = LOW; bit < BITS; bit++) {
    const uint8_t *plane = part + (bit - LOW) * PLANE + (8 * eight + s) * 2;
    const __mmask32 set = _pdep_u32(plane[0] | plane[1] << 8, 0x55555555) | _pdep_u32(plane[2] | plane[3] << 8, 0xaaaaaaaa);
    index = _mm512_mask_add_epi16(index, set, index, _mm512_set1_epi16(1 << bit));
  }
  if (BITS < 6) return _mm512_permutexvar_epi16(index, _mm512_load_si512(book));
  return _mm512_permutex2var_epi16(_mm512_load_si512(book), index, _mm512_load_si512(book + 32));
}

INLINE __m512i pair(const uint8_t *part, int eight, const int s, const Narrow *book) {
  if (BITS < 8) return looked_up_pair(part, eight, s, book);
  const uint8_t *at = part + (8 * eight + s) * LANES;
  return _mm512_or_si512(_mm512_srli_epi32((__m512i)from_bytes(at), 16), (__m512i)from_bytes(at + LANES));
}

// Writes the numbers of a group as a tile, [GROUP / 2][LANES][2].
INLINE void write_group(const uint8_t *weight, long first, Narrow *to, const Narrow *book, long tile) {
  const uint8_t *part = part_of(weight, first), *ahead = part + AHEAD;
  const int eights = first % PART / 8;
  if (ahead >= weight + tile) ahead += (SIDE - 1) * tile;
  UNROLL for (int line = 0; line < PART_BYTES * GROUP / PART; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
  for (int eight = eights; eight < eights + GROUP / 8; eight++)
    UNROLL for (int s = 0; s < 8; s += 2, to += 2 * LANES) _mm512_store_si512(to, pair(part, eight, s, book));
}

// Tiles 0 and 1 are sums, 2 to 4 rows, 5 and 6 weights.
static void configure(long tall) {
  TileConfig config = {.palette = 1};
  for (int tile = 0; tile < 7; tile++) {
    config.bytes[tile] = tile < 2 || tile > 4 ? LANES * sizeof(float) : GROUP * sizeof(Narrow);
    config.rows[tile] = tile > 4 ? GROUP / 2 : tall;
  }
  _tile_loadconfig(&config);
}

// Multiplies a tile of rows with a group, smallest parts first.
#define MULTIPLY_GROUP(sum, weight)                                 \
  _tile_loadd(weight, numbers, LANES * sizeof(float));              \
  _tile_zero(sum);                                                  \
  _tile_loadd(2, at + 2 * tall * GROUP, GROUP * sizeof(Narrow));    \
  _tile_dpbf16ps(sum, 2, weight);                                   \
  _tile_loadd(3, at + tall * GROUP, GROUP * sizeof(Narrow));        \
  _tile_dpbf16ps(sum, 3, weight);                                   \
  _tile_loadd(4, at, GROUP * sizeof(Narrow));                       \
  _tile_dpbf16ps(sum, 4, weight);

INLINE void multiply_group(const int odd, const Narrow *numbers, const Narrow *at, long tall) {
  if (odd) {
    MULTIPLY_GROUP(1, 6)
  } else {
    MULTIPLY_GROUP(0, 5)
  }
}

INLINE void store_found(const int odd, float *found) {
  if (odd) _tile_stored(1, found, LANES * sizeof(float));
  else _tile_stored(0, found, LANES * sizeof(float));
}

// Adds what was found for a group to the sums of `count` rows.
INLINE void add_up(Group group, const float *found, const float *offsets, float *sums, long count) {
  for (long r = 0; r < count; r++, found += LANES, sums += LANES) {
    Lanes sum = load(sums);
    if (OFFSETS) sum = times_plus(all(offsets[r]), group.offset, sum);
    store(sums, times_plus(load(found), group.scale, sum));
  }
}

// Multiplies `count` rows from `from` on with `tiles` output tiles from `weight` on. While the unit multiplies with one group, the numbers
// of the next are written, and what was found before is added up: the unit alone waits too long for its own results.
INLINE void multiply_side(const int tiles, const uint8_t *weight, const Rows rows, long from, long count, const Narrow *book, Sums sums) {
  const long tile = rows.inputs / SPAN * BLOCK;
  float found[SIDE][TALLEST * LANES] __attribute__((aligned(64)));
  Narrow numbers[2][SIDE][GROUP * LANES] __attribute__((aligned(64)));
  Group group[SIDE];
  UNROLL for (int t = 0; t < tiles; t++) {
    memset(sums[t], 0, count * LANES * sizeof(float));
    write_group(weight + t * tile, 0, numbers[0][t], book, tile);
  }
  for (long first = 0; first < rows.inputs; first += GROUP) {
    const int now = first / GROUP % 2;
    UNROLL for (int t = 0; t < tiles; t++) group[t] = group_of(weight + t * tile, first);
    for (long row = 0; row < count; row += rows.tall) {
      const long left = count - row < rows.tall ? count - row : rows.tall;
      const float *offsets = rows.sums + first / GROUP * rows.count + from + row;
      const Narrow *at = rows.parts + PARTS * ((from + row) * rows.inputs + first * rows.tall);
      UNROLL for (int t = 0; t < tiles; t++) {
        multiply_group(t % 2, numbers[now][t], at, rows.tall);
        if (row == 0 && first + GROUP < rows.inputs) write_group(weight + t * tile, first + GROUP, numbers[1 - now][t], book, tile);
        store_found(t % 2, found[t]);
        if (t) add_up(group[t - 1], found[t - 1], offsets, sums[t - 1] + row * LANES, left);
      }
      add_up(group[tiles - 1], found[tiles - 1], offsets, sums[tiles - 1] + row * LANES, left);
    }
  }
}

INLINE void write_sums(int tiles, Sums sums, float *out, long count, long width, int add) {
  for (long row = 0; row < count; row++, out += width)
    for (int t = 0; t < tiles; t++) {
      Lanes sum = load(sums[t] + row * LANES);
      store(out + t * LANES, add ? plus(load(out + t * LANES), sum) : sum);
    }
}

// The same as `product`, after `ask_for_tiles`.
void product_in_tiles(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add) {
  const Rows rows = rows_of(in, count, inputs);
  const long tiles = outputs / LANES, tile = inputs / SPAN * BLOCK, chunk = CHUNK / rows.tall * rows.tall;
  Narrow book[ENTRIES] __attribute__((aligned(64)));
  fill_book(book);
  _Pragma("omp parallel if (inputs * outputs >= SMALL)")
  {
    Sums sums;
    configure(rows.tall);
    _Pragma("omp for schedule(static)")
    for (long first = 0; first < tiles; first += SIDE)
      for (long from = 0; from < count; from += chunk) {
        const long some = count - from < chunk ? count - from : chunk;
        if (tiles - first >= SIDE) {
          multiply_side(SIDE, weight + first * tile, rows, from, some, book, sums);
          write_sums(SIDE, sums, out + from * width + first * LANES, some, width, add);
          continue;
        }
        for (long one = first; one < tiles; one++) {
          multiply_side(1, weight + one * tile, rows, from, some, book, sums);
          write_sums(1, sums, out + from * width + one * LANES, some, width, add);
        }
      }
    _tile_release();
  }
  free(rows.parts), free(rows.sums);
}
