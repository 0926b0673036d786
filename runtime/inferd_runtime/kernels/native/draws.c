// Which tokens of a row of logits can win a draw: one look at each, where NumPy takes a dozen passes over the vocabulary.
//
// What is left, a few hundred tokens, is decided by the plain way with its own logarithms, so that both bring the same token.

#include <math.h>
#include <stdint.h>

#define BLOCK 32  // tokens of one word of a mask
#define GOLDEN 0x9E3779B97F4A7C15u

// The finaliser of SplitMix64, as in engine/sampling/noise.py.
static inline uint64_t mixed(uint64_t value) {
  value += GOLDEN;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Returns the tokens of a block that are allowed, a bit each; mask NULL: all of them.
static inline uint32_t allowed_of(const uint32_t *mask, long at, long count) {
  uint32_t some = count - at < BLOCK ? (1u << (count - at)) - 1 : ~0u;
  return mask ? mask[at / BLOCK] & some : some;
}

// logits [count], mask [ceil(count / 32)] or NULL -> the first of the largest allowed ones; -1 where none is allowed, or one is no number.
long largest(const float *logits, const uint32_t *mask, long count) {
  float lanes[BLOCK], best = -INFINITY;
  int unordered[BLOCK] = {0};
  for (int i = 0; i < BLOCK; i++) lanes[i] = -INFINITY;
  for (long at = 0; at < count; at += BLOCK) {
    uint32_t allowed = allowed_of(mask, at, count);
    if (allowed == ~0u)
      for (int i = 0; i < BLOCK; i++) {
        float one = logits[at + i];
        lanes[i] = one > lanes[i] ? one : lanes[i];
        unordered[i] |= one != one;
      }
    else
      for (; allowed; allowed &= allowed - 1) {
        float one = logits[at + __builtin_ctz(allowed)];
        best = one > best ? one : best;
        unordered[0] |= one != one;
      }
  }
  for (int i = 0; i < BLOCK; i++) {
    best = lanes[i] > best ? lanes[i] : best;
    if (unordered[i]) return -1;
  }
  for (long at = 0; at < count; at += BLOCK) {
    uint32_t allowed = allowed_of(mask, at, count), equal = 0;
    if (allowed == ~0u)
      for (int i = 0; i < BLOCK; i++) equal |= logits[at + i] == best;
    for (; (equal || allowed != ~0u) && allowed; allowed &= allowed - 1)
      if (logits[at + __builtin_ctz(allowed)] == best) return at + __builtin_ctz(allowed);
  }
  return -1;
}

// Writes the allowed tokens whose logit is at least `near`, or whose noise is at least `rare`, in order; returns how many there are.
long contenders(const float *logits, const uint32_t *mask, long count, float near, uint64_t base, uint64_t rare, int64_t *out) {
  long found = 0;
  for (long at = 0; at < count; at += BLOCK) {
    uint32_t allowed = allowed_of(mask, at, count);
    uint64_t hits[BLOCK], any = 0;
    if (!allowed) continue;
    for (int i = 0; i < BLOCK; i++) hits[i] = mixed(base + (uint64_t)(at + i) * GOLDEN) >> 12 >= rare;
    for (int i = 0; i < BLOCK; i++) any |= hits[i] |= logits[at + i < count ? at + i : at] >= near;
    for (int i = 0; any && i < BLOCK; i++)
      if (hits[i] && allowed >> i & 1) out[found++] = at + i;
  }
  return found;
}
