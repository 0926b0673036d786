// Products in a processor's matrix unit (AMX): up to 16 rows times a group of inputs of 16 outputs at a time.
//
// The unit multiplies bfloat16 and adds up in float32. A block's numbers are whole and small, so that bfloat16 holds each; a row's float32
// is the sum of three. So all products are exact, and sums are rounded as float32's are. A group's scale is multiplied with the sum over
// its inputs. The unit adds up each row by itself: no bit of it depends on the rows beside it. One row alone may be multiplied without the
// unit, in its order and to the same bits.

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
  float *wide;    // of one row alone instead: [inputs / GROUP][PARTS][GROUP]
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

INLINE void write_wide_parts(Lanes x, float *to) {
  UNROLL for (int part = 0; part < PARTS; part++, to += GROUP) {
    Lanes top = (Lanes)top_half((__m512i)x);
    store(to, top);
    x = minus(x, top);
  }
}

// Returns rows as they are multiplied, `alone` one without the unit. Many are divided evenly into tiles.
static Rows rows_of(const float *in, long count, long inputs, int alone) {
  const long tiles = (count + TALLEST - 1) / TALLEST, tall = (count + tiles - 1) / tiles;
  void *parts = aligned_alloc(64, (tiles * tall * PARTS * inputs * sizeof(float) + 63) / 64 * 64);
  Rows rows = {alone ? NULL : parts, alone ? parts : NULL, OFFSETS ? malloc(count * (inputs / GROUP) * sizeof(float)) : NULL, count, inputs, tall};
  for (long row = 0; row < count; row++)
    for (long first = 0; first < inputs; first += GROUP, in += GROUP) {
      Lanes sum = all(0);
      UNROLL for (int at = 0; at < GROUP; at += LANES) {
        Lanes x = load(in + at);
        if (alone) write_wide_parts(x, rows.wide + PARTS * first + at);
        else write_parts(x, rows.parts + PARTS * (row / tall * tall * inputs + first * tall) + row % tall * GROUP + at, tall * GROUP);
        sum = plus(sum, x);
      }
      if (OFFSETS) rows.sums[first / GROUP * count + row] = sum_of(sum);
    }
  return rows;
}

// Writes what the numbers of BITS bits stand for.
static void fill_book(Narrow *book) {
  for (int at = 0; at < ENTRIES; at++) {
    const float value = meaning(at);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    book[at] = bits >> 16;
  }
}

// Returns the numbers by a book.
INLINE __m512i found_in(const Narrow *book, __m512i index) {
  if (BITS < 6) return _mm512_permutexvar_epi16(index, _mm512_load_si512(book));
  return _mm512_permutex2var_epi16(_mm512_load_si512(book), index, _mm512_load_si512(book + 32));
}

// Returns which numbers of a book those of inputs 8 eight + s and the one behind it are, of 16 outputs. As in `number` only the lowest
// four bits count where there are four.
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

INLINE __m512i pair(const uint8_t *part, int eight, const int s, const Narrow *book) {
  if (BITS < 8) return found_in(book, index_pair(part, eight, s));
  const uint8_t *at = part + (8 * eight + s) * LANES;
  return _mm512_or_si512(_mm512_srli_epi32((__m512i)from_bytes(at), 16), (__m512i)from_bytes(at + LANES));
}

// Returns what to ask for when the numbers at `part` are read: of tiles side by side, behind whose end those of the next side stand.
INLINE const uint8_t *ahead_of(const uint8_t *weight, const uint8_t *part, long tile) {
  return part + AHEAD(TILES) + (part + AHEAD(TILES) < weight + tile ? 0 : (SIDE - 1) * tile);
}

// Writes the numbers of a group as a tile, [GROUP / 2][LANES][2].
INLINE void write_group(const uint8_t *weight, long first, Narrow *to, const Narrow *book, long tile) {
  const uint8_t *part = part_of(weight, first), *ahead = ahead_of(weight, part, tile);
  const int eights = first % PART / 8;
  UNROLL for (int line = 0; line < PART_BYTES * GROUP / PART; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
  for (int eight = eights; eight < eights + GROUP / 8; eight++)
    UNROLL for (int s = 0; s < 8; s += 2, to += 2 * LANES) _mm512_store_si512(to, pair(part, eight, s, book));
}

// Tiles 0 and 1 are sums, 2 to 4 the parts of rows, 5 and 6 weights.
static void configure(long tall) {
  TileConfig config = {.palette = 1};
  for (int tile = 0; tile < 7; tile++) {
    config.bytes[tile] = tile < 2 || tile > 4 ? LANES * sizeof(float) : GROUP * sizeof(Narrow);
    config.rows[tile] = tile > 4 ? GROUP / 2 : tall;
  }
  _tile_loadconfig(&config);
}

INLINE void load_rows(const Narrow *at, long tall) {
  _tile_loadd(2, at, GROUP * sizeof(Narrow));
  _tile_loadd(3, at + tall * GROUP, GROUP * sizeof(Narrow));
  _tile_loadd(4, at + 2 * tall * GROUP, GROUP * sizeof(Narrow));
}

// Multiplies loaded rows with a group, smallest parts first.
#define MULTIPLY_GROUP(sum, weight)                    \
  _tile_loadd(weight, numbers, LANES * sizeof(float)); \
  _tile_zero(sum);                                     \
  _tile_dpbf16ps(sum, 4, weight);                      \
  _tile_dpbf16ps(sum, 3, weight);                      \
  _tile_dpbf16ps(sum, 2, weight);

INLINE void multiply_group(const int odd, const Narrow *numbers) {
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

// Adds what was found for a group to a row's sum.
INLINE Lanes added(Lanes sum, Lanes found, Group group, const float *offset) {
  if (OFFSETS) sum = times_plus(all(*offset), group.offset, sum);
  return times_plus(found, group.scale, sum);
}

INLINE void add_up(Group group, const float *found, const float *offsets, float *sums, long count) {
  for (long r = 0; r < count; r++, sums += LANES) store(sums, added(load(sums), load(found + r * LANES), group, offsets + r));
}

#define BOTH(u, t) UNROLL for (int u = (t); u < (t) + 2; u++) if (u >= 0 && u < tiles)

// Multiplies `count` rows from `from` on with `tiles` output tiles from `weight` on. The unit waits long for its own results. So two tiles
// are multiplied at a time; meanwhile the numbers of the next group are written, and what was found for the two before is added up.
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
      load_rows(rows.parts + PARTS * ((from + row) * rows.inputs + first * rows.tall), rows.tall);
      UNROLL for (int t = 0; t < tiles + 2; t += 2) {
        BOTH(u, t) multiply_group(u % 2, numbers[now][u]);
        if (row == 0 && first + GROUP < rows.inputs) {
          BOTH(u, t) write_group(weight + u * tile, first + GROUP, numbers[1 - now][u], book, tile);
        }
        BOTH(u, t) store_found(u % 2, found[u]);
        BOTH(u, t - 2) add_up(group[u], found[u], offsets, sums[u] + row * LANES, left);
      }
    }
  }
}

// Multiplies one row as the unit does: each part's sums over inputs with even and with odd numbers by themselves.
static __attribute__((noinline)) void multiply_alone(const int tiles, const uint8_t *weight, const Rows rows, Sums sums) {
  const long tile = rows.inputs / SPAN * BLOCK;
  Lanes sum[SIDE];
  UNROLL for (int t = 0; t < tiles; t++) sum[t] = all(0);
  for (long first = 0; first < rows.inputs; first += GROUP) {
    const uint8_t *part = part_of(weight, first), *ahead = ahead_of(weight, part, tile);
    const int eights = first % PART / 8;
    Lanes found[SIDE][PARTS][2];
    UNROLL for (int each = 0; each < tiles * PARTS * 2; each++) found[each / PARTS / 2][each / 2 % PARTS][each % 2] = all(0);
    for (int eight = eights; eight < eights + GROUP / 8; eight++) {
      const float *in = rows.wide + PARTS * first + 8 * (eight - eights);
      UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int line = 0; line < PART_BYTES / 4; line += 64)
          _mm_prefetch(ahead + t * tile + (eight - eights) * (PART_BYTES / 4) + line, _MM_HINT_T0);
      UNROLL for (int s = 0; s < 8; s++)
        UNROLL for (int t = 0; t < tiles; t++) {
          Lanes value = number(part + t * tile, eight, s);
          UNROLL for (int p = 0; p < PARTS; p++)
            found[t][p][s % 2] = times_plus(value, all(in[p * GROUP + s]), found[t][p][s % 2]);
        }
    }
    UNROLL for (int t = 0; t < tiles; t++) {
      Lanes whole = all(0);
      UNROLL for (int p = PARTS - 1; p >= 0; p--) whole = plus(whole, plus(found[t][p][0], found[t][p][1]));
      sum[t] = added(sum[t], whole, group_of(weight + t * tile, first), rows.sums + first / GROUP);
    }
  }
  UNROLL for (int t = 0; t < tiles; t++) store(sums[t], sum[t]);
}

// Multiplies all rows with `tiles` output tiles, `at` which they begin.
INLINE void multiply_all(const int tiles, const uint8_t *weight, const Rows rows, const Narrow *book, float *out, long width, int add) {
  Sums sums;
  const long chunk = CHUNK / rows.tall * rows.tall;
  for (long from = 0; from < rows.count; from += chunk) {
    const long count = rows.count - from < chunk ? rows.count - from : chunk;
    if (rows.wide) multiply_alone(tiles, weight, rows, sums);
    else multiply_side(tiles, weight, rows, from, count, book, sums);
    for (long row = 0; row < count; row++)
      for (int t = 0; t < tiles; t++) {
        float *to = out + (from + row) * width + t * LANES;
        Lanes sum = load(sums[t] + row * LANES);
        store(to, add ? plus(load(to), sum) : sum);
      }
  }
}

// Multiplies rows after each has been divided into parts.
static void multiply_rows_of(const uint8_t *weight, const Rows rows, float *out, long outputs, long width, int add) {
  const long tiles = outputs / LANES, tile = rows.inputs / SPAN * BLOCK;
  Narrow book[ENTRIES] __attribute__((aligned(64)));
  fill_book(book);
  _Pragma("omp parallel if (rows.inputs * outputs >= SMALL)")
  {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // numbers below the smallest normal one are zero, as in the unit
    if (rows.parts) configure(rows.tall);
    _Pragma("omp for schedule(static)")
    for (long first = 0; first < tiles; first += SIDE) {
      if (tiles - first >= SIDE) multiply_all(SIDE, weight + first * tile, rows, book, out + first * LANES, width, add);
      else for (long one = first; one < tiles; one++) multiply_all(1, weight + one * tile, rows, book, out + one * LANES, width, add);
    }
    if (rows.parts) _tile_release();
    _mm_setcsr(before);
  }
}

// What a weight costs one row, in cycles, in the unit and without it. Where another thread has a share of the processor's core, a row takes
// three times as long in the unit and one and a half times without; where none has, the unit is faster. So both go on being measured.
typedef struct {
  float cycles[2];
  unsigned calls;
} Costs;

#define TURN 512  // calls, of which the last TRIED take the dearer way: the first ones of them find the unit asleep
#define TRIED 16

INLINE int way_of_one(Costs *costs) { return (costs->cycles[1] < costs->cycles[0]) ^ (costs->calls++ % TURN >= TURN - TRIED); }

INLINE void learn(Costs *costs, int way, float cycles) {
  const float old = costs->cycles[way];
  costs->cycles[way] = old == 0 ? cycles : old + ((cycles > 2 * old ? 2 * old : cycles) - old) / 8;  // what was interrupted counts little
}

// The same as `product`, after `ask_for_tiles`.
void product_in_tiles(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add) {
  static Costs costs;
  const int alone = count == 1 && way_of_one(&costs);
  const unsigned long long begun = __rdtsc();
  const Rows rows = rows_of(in, count, inputs, alone);
  multiply_rows_of(weight, rows, out, outputs, width, add);
  free(alone ? (void *)rows.wide : rows.parts), free(rows.sums);
  if (count == 1) learn(&costs, alone, (float)(__rdtsc() - begun) / (inputs * outputs));
}
