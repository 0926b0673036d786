// All layers of a decoder, one after the other: what stands in models/passes/fused.py, in the same order and to the bit the same.

// Products of rows with a weight, the parts of several forms one below the other: see blocks.c.
typedef struct {
  void (*multiply)(const uint8_t *weight, const float *in, float *out, long count, long inputs, long outputs, long width, int add);
  const uint8_t *weight;
  long outputs;
} Part;

typedef struct {
  const Part *parts;
  long count, inputs, outputs;
  const float *bias;  // or null
} Product;

typedef struct {
  const float *input_norm, *post_norm, *head_norm;  // the last one may be null
  Product qkv, out, gate_up, down;
  float *keys, *values;
  long kind;  // which of the step's Seen is its own
  float scaling;
} Layer;

// in [count, inputs] -> out [count, outputs]. `add`: on to what is there.
static void multiply(const Product *product, const float *in, float *out, long count, int add) {
  float *to = out;
  for (const Part *part = product->parts; part < product->parts + product->count; to += part++->outputs)
    part->multiply(part->weight, in, to, count, product->inputs, part->outputs, product->outputs, add);
  if (product->bias)
    for (long row = 0; row < count; row++, out += product->outputs)
      for (long at = 0; at < product->outputs; at += LANES) store(out + at, plus(load(out + at), load(product->bias + at)));
}

// hidden [count, embedding], in its place. room: for narrow, wide, closed and scores, below.
void run_layers(const Layer *layer, long layers, float *hidden, const float *cos, const float *sin, const int64_t *slots, float *room, const Seen *seen, long count,
                long queries, long shared, long width, float eps, int bounded) {
  for (const Layer *last = layer + layers; layer < last; layer++) {
    const long embedding = layer->qkv.inputs, heads = queries * width, opened = layer->gate_up.outputs;
    float *narrow = room, *wide = narrow + count * (embedding > heads ? embedding : heads);
    float *closed = wide + count * (layer->qkv.outputs > opened ? layer->qkv.outputs : opened);
    float *scores = closed + count * (layer->down.inputs > heads ? layer->down.inputs : heads);
    rms_norm(hidden, layer->input_norm, narrow, count, embedding, eps);
    multiply(&layer->qkv, narrow, wide, count, 0);
    rotate_and_write(wide, layer->head_norm, eps, cos, sin, slots, closed, layer->keys, layer->values, count, queries, shared, width, bounded);
    attend(closed, layer->keys, layer->values, narrow, seen + layer->kind, scores, count, queries, shared, width, layer->scaling);
    multiply(&layer->out, narrow, hidden, count, 1);
    rms_norm(hidden, layer->post_norm, narrow, count, embedding, eps);
    multiply(&layer->gate_up, narrow, wide, count, 0);
    silu_mul(wide, closed, count, opened / 2);
    multiply(&layer->down, closed, hidden, count, 1);
  }
}
