// NVML, as far as torch and nvidia-ml-py ask for it. Layouts written from NVML's public
// documentation.
#include <cuda_runtime_api.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "played.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
namespace played {
size_t used_bytes(int d);
uint64_t busy_ns(int d);  // of device work
}
// A made-up board: what it draws at rest, and what work adds, up to its limit.
static const unsigned rest_watts = 100, limit_watts = 400;
typedef void* Dev;
struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gi, ci;
};
static int all() {
  const char* t = getenv("PLAYED_CUDA_DEVICES");
  return t && *t ? atoi(t) : 1;
}
static int index_of(Dev d) { return (int)(intptr_t)d - 1; }
#define OK return 0
EXPORT int nvmlInit_v2() { OK; }
EXPORT int nvmlInit() { OK; }
EXPORT int nvmlInitWithFlags(unsigned) { OK; }
EXPORT int nvmlShutdown() { OK; }
EXPORT const char* nvmlErrorString(int) { return "played_cuda"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = all();
  OK;
}
EXPORT int nvmlDeviceGetCount(unsigned* n) {
  *n = all();
  OK;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, Dev* d) {
  if ((int)i >= all()) return 2;
  *d = (Dev)(intptr_t)(i + 1);
  OK;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned i, Dev* d) {
  return nvmlDeviceGetHandleByIndex_v2(i, d);
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Dev* d) {
  *d = (Dev)(intptr_t)strtol(id + 5, nullptr, 16);
  OK;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char* u, Dev* d) {
  *d = (Dev)1;
  OK;
}
EXPORT int nvmlDeviceGetName(Dev, char* out, unsigned n) {
  snprintf(out, n, PLAYED_NAME);
  OK;
}
EXPORT int nvmlDeviceGetUUID(Dev d, char* out, unsigned n) {
  unsigned char b[16];
  for (int i = 0; i < 16; i++) b[i] = (unsigned char)(0xf0 + i + index_of(d));
  snprintf(out, n, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
           b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
           b[15]);
  OK;
}
static Memory memory_of(Dev d) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, index_of(d));
  unsigned long long used = played::used_bytes(index_of(d));
  return {p.totalGlobalMem, p.totalGlobalMem - used, used};
}
EXPORT int nvmlDeviceGetMemoryInfo(Dev d, Memory* m) {
  *m = memory_of(d);
  OK;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(Dev d, Memory2* m) {
  auto x = memory_of(d);
  m->total = x.total;
  m->reserved = 0;
  m->free = x.free;
  m->used = x.used;
  OK;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Dev, int* a, int* b) {
  *a = 8;
  *b = 0;
  OK;
}
EXPORT int nvmlSystemGetDriverVersion(char* out, unsigned n) {
  snprintf(out, n, "580.00.played");
  OK;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int* v) {
  *v = CUDART_VERSION;
  OK;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* v) {
  *v = CUDART_VERSION;
  OK;
}
EXPORT int nvmlDeviceGetUtilizationRates(Dev, Utilization* u) {
  u->gpu = 50;
  u->memory = 10;
  OK;
}
EXPORT int nvmlDeviceGetTemperature(Dev, int, unsigned* t) {
  *t = 40;
  OK;
}
EXPORT int nvmlDeviceGetPowerUsage(Dev, unsigned* t) {
  *t = rest_watts * 1000;
  OK;
}
// mJ since the first question
EXPORT int nvmlDeviceGetTotalEnergyConsumption(Dev d, unsigned long long* mj) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t ns = now.tv_sec * 1000000000ull + now.tv_nsec;
  static const uint64_t began_ns = ns;
  uint64_t nj = rest_watts * (ns - began_ns);
  nj += (limit_watts - rest_watts) * played::busy_ns(index_of(d));
  *mj = nj / 1000000;
  OK;
}
EXPORT int nvmlDeviceGetClockInfo(Dev, int, unsigned* t) {
  *t = 1410;
  OK;
}
EXPORT int nvmlDeviceGetMaxClockInfo(Dev, int, unsigned* t) {
  *t = 1410;
  OK;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(Dev, unsigned* t) {
  *t = limit_watts * 1000;
  OK;
}
EXPORT int nvmlDeviceGetPerformanceState(Dev, int* s) {
  *s = 0;
  OK;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Dev, unsigned long long* r) {
  *r = 0;
  OK;
}
// PLAYED_CUDA_PCIE_WIDTH=4 plays a GPU in the wrong slot
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Dev, unsigned* w) {
  const char* t = getenv("PLAYED_CUDA_PCIE_WIDTH");
  *w = t && *t ? atoi(t) : 16;
  OK;
}
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(Dev, unsigned* w) {
  *w = 16;
  OK;
}
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Dev, unsigned* g) {
  *g = 4;
  OK;
}
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(Dev, unsigned* g) {
  *g = 4;
  OK;
}
struct Violation {
  unsigned long long reference_us, held_ns;
};
// PLAYED_CUDA_POWER_CAPPED=1 plays a GPU whose power limit holds its clocks down all the time
EXPORT int nvmlDeviceGetViolationStatus(Dev, int policy, Violation* v) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const char* t = getenv("PLAYED_CUDA_POWER_CAPPED");
  v->reference_us = now.tv_sec * 1000000ull + now.tv_nsec / 1000;
  v->held_ns = t && *t == '1' && policy == 0 ? v->reference_us * 1000 : 0;
  OK;
}
EXPORT int nvmlDeviceGetIndex(Dev d, unsigned* i) {
  *i = index_of(d);
  OK;
}
EXPORT int nvmlDeviceGetMigMode(Dev, unsigned*, unsigned*) { return 3; }
static int processes(unsigned* n, Process* p) {
  if (*n >= 1 && p) {
    p[0] = {(unsigned)getpid(), played::used_bytes(0), 0xffffffffu, 0xffffffffu};
  }
  *n = 1;
  return p ? 0 : 7;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(Dev, unsigned* n, Process* p) {
  return processes(n, p);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Dev, unsigned* n, Process* p) {
  return processes(n, p);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Dev, unsigned* n, Process* p) {
  return processes(n, p);
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Dev, unsigned, int*) { return 3; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Dev, unsigned, void*) { return 3; }
EXPORT int nvmlDeviceGetGpuFabricInfoV(Dev, void*) { return 3; }
EXPORT int nvmlDeviceGetP2PStatus(Dev, Dev, int, int* s) {
  *s = 0;
  OK;
}
