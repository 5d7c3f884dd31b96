/* Of cuda.c: what two devices have to do with each other. */

static int reaches[MAX_GPUS][MAX_GPUS]; /* whose memory a device may reach */
static int device_of(void *context) {
  uintptr_t number = (uintptr_t)context;
  return number && number <= (uintptr_t)visible_count && held[number - 1] ? (int)number - 1 : -1;
}
API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  DEVICE(device);
  if (peer < 0 || peer >= visible_count || peer == device) return INVALID_DEVICE;
  char other[64];
  *can = !visible[device].instance && !visible[peer].instance;
  if (fault(visible[device].gpu, "no_peer", other, NULL) && atoi(other) == visible[peer].gpu) *can = 0;
  return OK;
}
API int cuCtxEnablePeerAccess(void *context, unsigned flags) {
  READY;
  int peer = device_of(context);
  if (peer < 0 || peer == current) return INVALID_CONTEXT;
  if (flags) return INVALID;
  if (reaches[current][peer]) return ALREADY_ENABLED;
  return reaches[current][peer] = 1, OK;
}
API int cuMemcpyPeerAsync(u64 to, void *to_context, u64 from, void *from_context, size_t size, void *stream) {
  STREAM(stream);
  int target = device_of(to_context), source = device_of(from_context);
  if (target < 0 || source < 0) return INVALID_CONTEXT;
  const Block *arrival = block_with(to, size), *origin = block_with(from, size);
  if (!arrival || !origin || arrival->device != target || origin->device != source) return INVALID;
  return add((Op){.kind = PEER, .to = to, .from = from, .size = size, .source = source, .target = target}, stream);
}
/* How many streams of the queue copy between devices, all in all and out of this one. */
static int copying(int source) {
  int found = 0;
  for (int i = 0; i < queued; i++) {
    int first = queue[i].kind == PEER && (source < 0 || queue[i].source == source);
    for (int j = 0; j < i && first; j++) first = queue[j].kind != PEER || queue[j].stream != queue[i].stream;
    found += first;
  }
  return found;
}
/* Faults of links: `slow_peers PERMILLE`, and while more than two streams copy at once `slow_crowd PERMILLE`,
 * `slow_to GPU PERMILLE`,
 * `crowd_flip GPU`, a wrong bit in what goes there, `crowd_mixed GPU`, where another device's words arrive, and
 * `crowd_lost GPU`, where only every other copy arrives.
 * Links are shared by all that a device sends. */
static double cross(const Op *op) {
  const Gpu *gpu = gpu_of(op->source);
  char other[64];
  int crowd = copying(-1) > 2;
  u64 from = op->from;
  if (crowd && fault(visible[op->source].gpu, "crowd_mixed", other, NULL) && atoi(other) == visible[op->target].gpu)
    for (int i = 0; i < queued; i++)
      if (queue[i].kind == PEER && queue[i].target == op->target && queue[i].source != op->source) from = queue[i].from;
  static int copies;
  if (!crowd || !fault(visible[op->source].gpu, "crowd_lost", other, NULL) || atoi(other) != visible[op->target].gpu ||
      ++copies % 2)
    memmove((void *)op->to, (void *)from, op->size);
  if (crowd && fault(visible[op->source].gpu, "crowd_flip", other, NULL) && atoi(other) == visible[op->target].gpu)
    ((unsigned char *)op->to)[op->size / 2] ^= 4;
  double gb_s = gpu->model->links ? gpu->model->links * (gpu->model->major >= 10 ? 50 : 25) : 24;
  gb_s = rate("slow_peers", gb_s);
  long permille;
  if (crowd && fault(visible[op->source].gpu, "slow_to", other, &permille) && atoi(other) == visible[op->target].gpu)
    gb_s *= permille / 1000.0;
  return op->size * copying(op->source) / (crowd ? rate("slow_crowd", gb_s) : gb_s) / 1e6;
}
/* A context ends with all that is its own. What its holder had not given back is told in `left`. */
static void ended(int device) {
  int streams_left = 0, blocks_left = 0;
  for (int i = 0; i < MAX_STREAMS; i++) streams_left += streams[i].used && streams[i].device == device;
  for (int i = 0; i < block_count; i++) blocks_left += blocks[i].device == device;
  int kept = fault(visible[device].gpu, "keeps_access", NULL, NULL); /* what one had, its next context has */
  for (int i = 0; i < MAX_GPUS && !kept; i++) reaches[device][i] = reaches[i][device] = 0;
  if (!streams_left && !blocks_left && !events[device]) return;
  FILE *out = fopen(at("left"), "a");
  fprintf(out, "%s: %d streams, %d blocks, %d events\n", uuid_of(device), streams_left, blocks_left, events[device]);
  fclose(out);
}
