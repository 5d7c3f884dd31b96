/* The machine that both stand-ins tell of: its driver, its GPUs, who uses them, and what is wrong with them.
 *
 * It lies in files beside the library, which is the only place that a process of the check can find (its
 * environment is cleaned). RELEASE is the driver's branch, given to the compiler: what a branch does not export is
 * not in the library at all. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define CUDA_OF_RELEASE (RELEASE >= 580 ? 13000 : RELEASE >= 570 ? 12080 : RELEASE >= 550 ? 12040 : 12020)
#define MAX_GPUS 8
#define MAX_INSTANCES 7
#define MIB (1ull << 20)

typedef struct {
  const char *word, *name;
  int major, minor, sms, memory_mib, pcie_gen, links, mig, since;
  double copy_gb_s, tflops;
  int power_mw, sm_mhz, memory_mhz;
} Model;
/* `since`: the first branch that knows the model. */
static const Model models[] = {
    {"T4", "Tesla T4", 7, 5, 40, 15360, 3, 0, 0, 410, 260, 30, 70000, 1590, 5001},
    {"A100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 81920, 4, 12, 1, 450, 1800, 250, 400000, 1410, 1593},
    {"H100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 81559, 5, 18, 1, 525, 3000, 700, 700000, 1980, 2619},
    {"H200", "NVIDIA H200", 9, 0, 132, 143771, 5, 18, 1, 535, 4300, 780, 700000, 1980, 3201},
    {"B200", "NVIDIA B200", 10, 0, 148, 183359, 5, 18, 1, 570, 7000, 1700, 1000000, 1965, 3996},
};
static Model own_models[MAX_GPUS];
static int own_count;
/* A profile by its number in NVML's list, as H100 80GB has it; A100 has other sizes and is told apart by them. */
typedef struct {
  const char *name;
  int number, id, slices, most, places, size, step;
} Profile;
static const Profile profiles[] = {
    {"1g", 0, 19, 1, 7, 7, 1, 1}, {"2g", 1, 14, 2, 3, 3, 2, 2}, {"3g", 2, 9, 3, 2, 2, 4, 4},
    {"4g", 3, 5, 4, 1, 1, 4, 1},  {"7g", 4, 0, 7, 1, 1, 8, 1},
};
#define PROFILES (int)(sizeof profiles / sizeof *profiles)

typedef struct {
  char uuid[64];
  const Profile *profile;
  int start, id;
} Instance;
typedef struct {
  const Model *model;
  char uuid[64];
  int bus, mig, virtual, instance_count;
  Instance instances[MAX_INSTANCES];
} Gpu;
static Gpu gpus[MAX_GPUS];
static int gpu_count, privileged = 1, compute_mode, fabric = 3, arena_mib = 16, dirty_words;
static int nvml_refuses, cuda_refuses, power_limit_mw;
static char driver_text[32], folder[400];

static const char *at(const char *format, ...) {
  static __thread char path[512];
  va_list args;
  va_start(args, format);
  int used = snprintf(path, sizeof path, "%s/", folder);
  vsnprintf(path + used, sizeof path - used, format, args);
  va_end(args);
  return path;
}

static const Profile *profile_of(const char *name) {
  for (int i = 0; i < PROFILES; i++)
    if (!strncmp(profiles[i].name, name, 2)) return &profiles[i];
  return NULL;
}
static int sms_of(const Gpu *gpu, const Profile *p) {
  return p->slices == 7 ? gpu->model->sms : p->slices * (gpu->model->major == 8 ? 14 : gpu->model->major == 9 ? 16 : 18) +
                                                 (gpu->model->major == 9 && p->slices == 3 ? 12 : 0);
}
static long memory_of(const Gpu *gpu, const Profile *p) { /* in MiB; a little less than its eighths */
  return (long)gpu->model->memory_mib * p->size / 8 - (p->size < 8 ? 400 : 0);
}
static const char *profile_name(const Gpu *gpu, const Profile *p) {
  static __thread char name[32];
  long whole = (gpu->model->memory_mib + 1023) / 1024;
  snprintf(name, sizeof name, "%dg.%ldgb", p->slices, p->size == 8 ? whole : whole * p->size / 8);
  return name;
}

static const Model *model_of(const char *word) {
  for (int i = 0; i < own_count; i++)
    if (!strcmp(own_models[i].word, word)) return &own_models[i];
  for (unsigned i = 0; i < sizeof models / sizeof *models; i++)
    if (!strcmp(models[i].word, word) && models[i].since <= RELEASE) return &models[i];
  return NULL;
}
/* `model WORD MAJOR MINOR SMS MEMORY_MIB PCIE_GEN COPY_GB_S POWER_MW NAME`: one without links and MIG. */
static void add_model(const char *line) {
  Model m = {.tflops = 100, .sm_mhz = 1980, .memory_mhz = 2619};
  char word[32];
  int name = 0;
  if (own_count == MAX_GPUS || sscanf(line, "model %31s %d %d %d %d %d %lf %d %n", word, &m.major, &m.minor, &m.sms,
                                      &m.memory_mib, &m.pcie_gen, &m.copy_gb_s, &m.power_mw, &name) < 8)
    abort();
  m.word = strdup(word), m.name = strndup(line + name, strcspn(line + name, "\n"));
  own_models[own_count++] = m;
}

/* Reads `machine`: `gpu MODEL UUID [mig] [virtual]`, `instance UUID PROFILE START` (of the GPU before it), models
 * that are not in the table above, and settings by name. A GPU that this branch does not know is not shown, as in reality. */
static void set_up(void) {
  if (folder[0]) return;
  Dl_info self;
  dladdr((void *)set_up, &self);
  snprintf(folder, sizeof folder, "%s", self.dli_fname);
  *strrchr(folder, '/') = 0;
  FILE *in = fopen(at("machine"), "r");
  char line[256], word[32], name[64], more[64], last[32];
  int bus = 0, shown = 0;
  while (in && fgets(line, sizeof line, in)) {
    more[0] = last[0] = 0;
    int found = sscanf(line, "%31s %63s %63s %31s", word, name, more, last);
    if (found < 2) continue;
    if (!strcmp(word, "gpu")) {
      const Model *model = gpu_count < MAX_GPUS ? model_of(name) : NULL;
      if ((shown = model != NULL)) {
        Gpu *gpu = &gpus[gpu_count++];
        *gpu = (Gpu){.model = model, .bus = 0x1b + 16 * bus, .mig = !strcmp(last, "mig")};
        gpu->virtual = !strcmp(last, "virtual");
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", more);
      }
      bus++;
    } else if (!strcmp(word, "model")) add_model(line);
    else if (!strcmp(word, "instance") && shown) {
      Gpu *gpu = &gpus[gpu_count - 1];
      Instance *made = &gpu->instances[gpu->instance_count++];
      *made = (Instance){.profile = profile_of(more), .start = atoi(last), .id = gpu->instance_count};
      snprintf(made->uuid, sizeof made->uuid, "%s", name);
    } else if (!strcmp(word, "driver")) snprintf(driver_text, sizeof driver_text, "%.31s", name);
    else if (!strcmp(word, "privileged")) privileged = atoi(name);
    else if (!strcmp(word, "compute_mode")) compute_mode = atoi(name);
    else if (!strcmp(word, "fabric")) fabric = atoi(name);
    else if (!strcmp(word, "memory_mib")) arena_mib = atoi(name);
    else if (!strcmp(word, "dirty_words")) dirty_words = atoi(name);
    else if (!strcmp(word, "power_limit_mw")) power_limit_mw = atoi(name);
    else if (!strcmp(word, "nvml_refuses")) nvml_refuses = atoi(name);
    else if (!strcmp(word, "cuda_refuses")) cuda_refuses = atoi(name);
  }
  if (in) fclose(in);
}

/* What `faults` asks for now: lines `GPU KIND [ARG [ARG]]`. Read anew each time, so that it may come at any moment. */
static int fault(int gpu, const char *kind, char *first, long *second) {
  FILE *in = fopen(at("faults"), "r");
  char line[128], name[32], text[64];
  int number, found = 0;
  while (in && !found && fgets(line, sizeof line, in)) {
    long value = 0;
    text[0] = 0;
    if (sscanf(line, "%d %31s %63s %ld", &number, name, text, &value) < 2) continue;
    if (number != gpu || strcmp(name, kind)) continue;
    found = 1;
    if (first) strcpy(first, text);
    if (second) *second = value;
  }
  if (in) fclose(in);
  return found;
}
static long fault_number(int gpu, const char *kind) {
  char text[64];
  return fault(gpu, kind, text, NULL) ? atol(text) : 0;
}
/* Both libraries have seen it: `events` is what NVML tells XIDs from, a file `lost.N` a GPU that is gone. */
static void happens(int gpu, int xid) {
  FILE *out = fopen(at("events"), "a");
  fprintf(out, "%d %d\n", gpu, xid);
  fclose(out);
}
static int is_lost(int gpu) { return !access(at("lost.%d", gpu), F_OK) || fault(gpu, "lost", NULL, NULL); }
