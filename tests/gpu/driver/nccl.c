/* A stand-in for libnccl.so.2 over the stand-in for libcuda: sums of what several devices hold, as far as the product
 * asks for them.
 *
 * All ranks, of one process or of several, send what they have over TCP to a thread of the process that made the
 * unique id (with NCCL_COMM_ID: that of rank 0), which adds it up and sends the sum to each. What a rank keeps for
 * itself on its device is taken from the stand-in's memory, and is given back with the communicator. */
#include "machine.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

enum { OK, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { UINT64 = 5, FLOAT32 = 7, SUM = 0, OWN_BYTES = 1 << 18, MAX_CALLS = 64 };
typedef struct { char internal[128]; } UniqueId;
typedef struct { int ranks, rank; } Greeting;
typedef struct { uint64_t bytes; int type; } Header;
typedef struct Comm {
  int socket, ranks, rank, gpu, device, error;
  uint64_t own;
} Comm;
typedef struct { Comm *comm; const void *send; void *recv; size_t count; int type; void *stream; } Call;

static char last_error[256];
static int group_depth, group_error, call_count, calls_made;
static Call calls[MAX_CALLS];
static Comm *starting[MAX_CALLS];
static int starting_count;

static int fails(int result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  const char *level = getenv("NCCL_DEBUG"), *path = getenv("NCCL_DEBUG_FILE");
  FILE *out = !level || strcmp(level, "WARN") ? NULL : path ? fopen(path, "w") : stdout;
  if (out) fprintf(out, "[0] NCCL WARN %s\n", last_error), fflush(out);
  if (group_depth && !group_error) group_error = result;
  return result;
}
static void *cuda(const char *name) {
  static void *library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) fails(CUDA_ERROR, "libcuda.so.1 has no %s", name), abort();
  return found;
}
#define CUDA(name, ...) ((int (*)())cuda(#name))(__VA_ARGS__)
/* `nccl_fails NAME NTH`: the nth call of this name in this process fails, on whichever device it is asked for. */
static int told_to_fail(int gpu, const char *name, int nth) {
  char text[64];
  long which = 0;
  return fault(gpu, "nccl_fails", text, &which) && !strcmp(text, name) && which == nth;
}

/* --- the way between ranks ---------------------------------------------------------------------------------------- */
static int all(int socket, void *data, size_t size, int sending) {
  for (size_t done = 0; done < size;) {
    ssize_t part = sending ? send(socket, (char *)data + done, size - done, MSG_NOSIGNAL)
                           : recv(socket, (char *)data + done, size - done, 0);
    if (part <= 0) return 0;
    done += part;
  }
  return 1;
}
static void add_up(void *to, const void *from, size_t bytes, int type) {
  if (type == UINT64)
    for (size_t i = 0; i < bytes / 8; i++) ((uint64_t *)to)[i] += ((const uint64_t *)from)[i];
  else
    for (size_t i = 0; i < bytes / 4; i++) ((float *)to)[i] += ((const float *)from)[i];
}
/* Where all meet: takes them in, tells them when the last is there, and adds up as long as all go on. */
static void *serve(void *argument) {
  int listening = (int)(intptr_t)argument, sockets[MAX_CALLS], ranks = 1, fine = 1;
  for (int there = 0; there < ranks; there++) {
    Greeting greeting;
    int socket = accept(listening, NULL, NULL);
    if (socket < 0 || !all(socket, &greeting, sizeof greeting, 0)) return NULL;
    ranks = greeting.ranks, sockets[greeting.rank] = socket;
  }
  close(listening);
  for (int rank = 0; rank < ranks; rank++) all(sockets[rank], &ranks, sizeof ranks, 1);
  while (fine) {
    Header header, first = {0};
    char *sum = NULL, *part = NULL;
    for (int rank = 0; fine && rank < ranks; rank++) {
      if (!all(sockets[rank], &header, sizeof header, 0)) fine = 0;
      if (!rank) first = header, sum = calloc(1, header.bytes), part = malloc(header.bytes);
      fine = fine && header.bytes == first.bytes && header.type == first.type;
      fine = fine && all(sockets[rank], part, first.bytes, 0);
      if (fine) add_up(sum, part, first.bytes, first.type);
    }
    /* Its own process last: with the sum that may end, and this thread with it. */
    for (int rank = ranks; fine && rank--;) fine = all(sockets[rank], sum, first.bytes, 1);
    free(sum), free(part);
  }
  for (int rank = 0; rank < ranks; rank++) close(sockets[rank]);
  return NULL;
}
static int listen_at(struct sockaddr_in *address) {
  int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  socklen_t size = sizeof *address;
  pthread_t thread;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(socket_, (struct sockaddr *)address, size) || listen(socket_, MAX_CALLS)) return close(socket_), 0;
  getsockname(socket_, (struct sockaddr *)address, &size);
  return !pthread_create(&thread, NULL, serve, (void *)(intptr_t)socket_) && !pthread_detach(thread);
}
/* NCCL_COMM_ID, `address:port`: the same for all, and rank 0 is the one that listens there. */
static int given(struct sockaddr_in *address) {
  char *text = getenv("NCCL_COMM_ID"), host[64];
  int port;
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (!text || sscanf(text, "%63[^:]:%d", host, &port) != 2) return 0;
  address->sin_port = htons(port);
  return inet_pton(AF_INET, host, &address->sin_addr) == 1;
}

/* --- what all of it is ------------------------------------------------------------------------------------------- */
API int ncclGetVersion(int *version) { return set_up(), *version = 23203, OK; }
API const char *ncclGetErrorString(int result) {
  static const char *names[] = {"no error", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                "unhandled system error (run with NCCL_DEBUG=INFO for details)", "internal error",
                                "invalid argument (run with NCCL_DEBUG=WARN for details)", "invalid usage",
                                "remote process exited or there was a network error", "NCCL operation in progress"};
  return result >= 0 && result < (int)(sizeof names / sizeof *names) ? names[result] : "unknown result code";
}
API const char *ncclGetLastError(void *comm) { return last_error; }
API int ncclGetUniqueId(UniqueId *id) {
  struct sockaddr_in address;
  memset(id, 0, sizeof *id);
  if (!given(&address) && !listen_at(&address))
    return fails(SYSTEM_ERROR, "no port to listen at: %s", strerror(errno));
  memcpy(id->internal + 8, &address, sizeof address);
  *(uint64_t *)id->internal = 0x6e63636c00000000ull | (uint32_t)getpid();
  return OK;
}
static int gpu_of_device(int device) {
  unsigned char raw[16];
  char text[64];
  if (CUDA(cuDeviceGetUuid_v2, raw, device)) return -1;
  int used = snprintf(text, sizeof text, "GPU-");
  for (int i = 0; i < 16; i++)
    used += snprintf(text + used, sizeof text - used, "%s%02x", i >= 4 && i <= 10 && i % 2 == 0 ? "-" : "", raw[i]);
  for (int gpu = 0; gpu < gpu_count; gpu++)
    if (!strcmp(gpus[gpu].uuid, text)) return gpu;
  return -1;
}
/* What this thread had as its device before; to go back to. */
static int enter(int device) {
  int before = -1;
  if (CUDA(cuCtxGetDevice, &before)) before = -1;
  CUDA(cuCtxSetCurrent, (void *)(uintptr_t)(device + 1));
  return before;
}
static void leave(int before) { CUDA(cuCtxSetCurrent, (void *)(uintptr_t)(before + 1)); }

static int end(Comm *comm) {
  int before = enter(comm->device);
  if (comm->own) CUDA(cuMemFree_v2, comm->own);
  leave(before);
  close(comm->socket);
  free(comm);
  return OK;
}
static int start(Comm **made, int ranks, UniqueId *id, int rank, int device) {
  struct sockaddr_in address, elsewhere;
  Greeting greeting = {ranks, rank};
  set_up();
  if (ranks < 1 || ranks > MAX_CALLS || rank < 0 || rank >= ranks)
    return fails(INVALID_ARGUMENT, "Invalid rank requested : %d/%d", rank, ranks);
  int gpu = gpu_of_device(device), before;
  if (gpu < 0) return fails(CUDA_ERROR, "Cuda failure 'invalid device ordinal'");
  if (told_to_fail(gpu, "ncclCommInitRank", 0)) return fails(SYSTEM_ERROR, "rank %d could not be set up", rank);
  memcpy(&address, id->internal + 8, sizeof address);
  if (!rank && given(&elsewhere) && !listen_at(&elsewhere))
    return fails(SYSTEM_ERROR, "cannot listen at NCCL_COMM_ID: %s", strerror(errno));
  Comm *comm = calloc(1, sizeof *comm);
  *comm = (Comm){.ranks = ranks, .rank = rank, .gpu = gpu, .device = device};
  before = enter(device);
  int status = CUDA(cuMemAlloc_v2, &comm->own, (size_t)OWN_BYTES);
  leave(before);
  if (status) return free(comm), fails(CUDA_ERROR, "Cuda failure %d 'out of memory'", status);
  comm->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (int tries = 0; connect(comm->socket, (struct sockaddr *)&address, sizeof address); tries++) {
    if (tries == 3000) return end(comm), fails(SYSTEM_ERROR, "nobody listens at the unique id's address");
    close(comm->socket); /* rank 0 may not be there yet */
    usleep(10000);
    comm->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  if (!all(comm->socket, &greeting, sizeof greeting, 1)) return end(comm), fails(SYSTEM_ERROR, "rank 0 is gone");
  starting[starting_count++] = comm;
  return *made = comm, OK;
}
/* Waits until all ranks of all groups that were begun are there. */
static int meet(void) {
  int result = OK;
  for (int i = 0; i < starting_count; i++) {
    int ranks = 0;
    if (!all(starting[i]->socket, &ranks, sizeof ranks, 0)) result = fails(SYSTEM_ERROR, "rank 0 is gone");
  }
  return starting_count = 0, result;
}
API int ncclCommInitRank(Comm **comm, int ranks, UniqueId id, int rank) {
  int device, status;
  if (CUDA(cuCtxGetDevice, &device)) return fails(CUDA_ERROR, "Cuda failure 'no context is current'");
  if ((status = start(comm, ranks, &id, rank, device))) return status;
  return group_depth ? OK : meet();
}
API int ncclCommInitAll(Comm **comms, int count, const int *devices) {
  UniqueId id;
  int status = ncclGetUniqueId(&id), made = 0;
  for (; !status && made < count; made++) {
    void *context;
    for (int other = 0; other < made; other++)
      if (devices[other] == devices[made]) status = fails(INVALID_USAGE, "Duplicate GPU detected");
    if (status) break;
    /* As the runtime does it: the primary context is there from now on, whoever else lets go of it. */
    if (CUDA(cuDevicePrimaryCtxRetain, &context, devices[made])) status = fails(CUDA_ERROR, "no context");
    else if ((status = start(&comms[made], count, &id, made, devices[made]))) break;
  }
  if (!status) return meet();
  while (made--) end(comms[made]);
  return starting_count = 0, status;
}

/* --- sums --------------------------------------------------------------------------------------------------------- */
typedef struct { int count; Call calls[MAX_CALLS]; } Together;
/* On the device, in order with what was queued before: of each rank of this process. */
static void run(void *data) {
  Together *work = data;
  char text[64];
  long flip;
  for (int i = 0; i < work->count; i++)
    if (fault(work->calls[i].comm->gpu, "sum_hangs", NULL, NULL)) {
      signal(SIGTERM, SIG_IGN);
      for (;;) usleep(1000);
    }
  for (int receiving = 0; receiving < 2; receiving++)
    for (int i = 0; i < work->count; i++) {
      Call *call = &work->calls[i];
      Comm *comm = call->comm;
      size_t bytes = call->count * (call->type == UINT64 ? 8 : 4);
      Header header = {bytes, call->type};
      if (comm->error) continue;
      int sent = receiving || (all(comm->socket, &header, sizeof header, 1) &&
                               all(comm->socket, (void *)call->send, bytes, 1));
      if (!sent) comm->error = REMOTE_ERROR;
      if (receiving && !all(comm->socket, call->recv, bytes, 0)) comm->error = REMOTE_ERROR;
      if (receiving && fault(comm->gpu, "sum", text, &flip))
        ((uint32_t *)call->recv)[atol(text)] ^= (uint32_t)flip;
      if (comm->error) fails(comm->error, "rank %d lost its connection", comm->rank);
    }
  free(work);
}
static int by_rank(const void *a, const void *b) {
  return ((const Call *)a)->comm->rank - ((const Call *)b)->comm->rank;
}
/* Calls of one group that are on one round: each communicator once, in the order of ranks. */
static int hand_over(void) {
  char taken[MAX_CALLS] = {0};
  for (int left = call_count; left;) {
    Together *work = calloc(1, sizeof *work);
    double slowest = 0;
    for (int i = 0; i < call_count; i++) {
      int again = taken[i];
      for (int k = 0; k < work->count; k++) again |= work->calls[k].comm == calls[i].comm;
      if (again) continue;
      work->calls[work->count++] = calls[i], taken[i] = 1, left--;
      Comm *comm = calls[i].comm;
      long permille = fault_number(comm->gpu, "slow_sum");
      const Model *model = gpus[comm->gpu].model;
      double links = model->links * (model->major >= 10 ? 50 : 25), rate = links ? 0.8 * links : 10;
      double bytes = calls[i].count * (calls[i].type == UINT64 ? 8.0 : 4.0) * 2 * (comm->ranks - 1) / comm->ranks;
      double ms = bytes / (rate * (permille ? permille / 1000.0 : 1)) / 1e6;
      slowest = ms > slowest ? ms : slowest;
    }
    qsort(work->calls, work->count, sizeof *work->calls, by_rank);
    int before = enter(work->calls[0].comm->device), status = CUDA(berth_queue, run, work, slowest, work->calls[0].stream);
    leave(before);
    if (status) return call_count = 0, fails(CUDA_ERROR, "Cuda failure %d", status);
  }
  return call_count = 0, OK;
}
API int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, Comm *comm, void *stream) {
  if (!comm || op != SUM || (type != UINT64 && type != FLOAT32)) return fails(INVALID_ARGUMENT, "AllReduce : invalid");
  if (told_to_fail(comm->gpu, "ncclAllReduce", calls_made++))
    return fails(SYSTEM_ERROR, "rank %d cannot go on", comm->rank);
  if (call_count == MAX_CALLS) return fails(INVALID_USAGE, "too many calls in a group");
  calls[call_count++] = (Call){comm, send, recv, count, type, stream};
  return group_depth ? OK : hand_over();
}
API int ncclGroupStart(void) { return group_depth++, OK; }
API int ncclGroupEnd(void) {
  if (!group_depth) return fails(INVALID_USAGE, "ncclGroupEnd: not in a group call.");
  if (--group_depth) return OK;
  if (group_error) { /* nothing of it is handed over */
    int error = group_error;
    return group_error = call_count = starting_count = 0, error;
  }
  int status = starting_count ? meet() : OK;
  return status ? status : hand_over();
}

/* --- the end ------------------------------------------------------------------------------------------------------ */
API int ncclCommGetAsyncError(Comm *comm, int *error) { return *error = comm->error, OK; }
API int ncclCommDestroy(Comm *comm) { return comm ? end(comm) : INVALID_ARGUMENT; }
API int ncclCommAbort(Comm *comm) { return comm ? end(comm) : INVALID_ARGUMENT; }
