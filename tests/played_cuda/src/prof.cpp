// Activity records in the format of CUPTI, and the functions of CUPTI that kineto calls.
#include "prof.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>
#define EXPORT extern "C" __attribute__((visibility("default")))
namespace played {
static std::atomic<bool> enabled[CUPTI_ACTIVITY_KIND_COUNT];
static std::atomic<uint64_t (*)()> clock_of{nullptr};
static std::atomic<uint32_t> correlation{1};
static thread_local std::map<int, std::vector<uint64_t>> external;
static std::mutex& lock() {
  static auto* m = new std::mutex;
  return *m;
}
static std::vector<std::vector<char>>& records() {
  static auto* r = new std::vector<std::vector<char>>;
  return *r;
}
static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc complete_buffer;

static uint8_t* pending = nullptr;  // kineto flushes only where a buffer was asked for before
static size_t pending_size = 0;
static std::atomic<bool> asked{false};

template <class T>
static void add(const T& record) {
  if (request_buffer && !asked.exchange(true)) {
    size_t most = 0;
    request_buffer(&pending, &pending_size, &most);
  }
  std::vector<char> bytes((sizeof(T) + 7) & ~(size_t)7);
  memcpy(bytes.data(), &record, sizeof(T));
  std::lock_guard<std::mutex> g(lock());
  records().push_back(std::move(bytes));
}
static size_t size_of(CUpti_ActivityKind kind) {
  size_t n = 0;
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL: n = sizeof(CUpti_ActivityKernel10); break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: n = sizeof(CUpti_ActivityMemcpy6); break;
    case CUPTI_ACTIVITY_KIND_MEMSET: n = sizeof(CUpti_ActivityMemset4); break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: n = sizeof(CUpti_ActivityAPI); break;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      n = sizeof(CUpti_ActivityExternalCorrelation);
      break;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: n = sizeof(CUpti_ActivitySynchronization2); break;
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: n = sizeof(CUpti_ActivityCudaEvent2); break;
    default: break;
  }
  return (n + 7) & ~(size_t)7;
}
bool prof_on(CUpti_ActivityKind kind) { return enabled[kind].load(std::memory_order_relaxed); }
void prof_device(const Item& item, uint64_t t0, uint64_t t1, int device, uint64_t stream,
                 uint32_t corr, uint64_t graph) {
  if (item.work == Work::kernel && prof_on(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) {
    CUpti_ActivityKernel10 r;
    memset(&r, 0, sizeof r);
    r.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    r.start = t0;
    r.end = t1;
    r.deviceId = device;
    r.contextId = device + 1;
    r.streamId = (uint32_t)stream;
    r.gridX = (int)std::max<uint64_t>(1, item.bytes / 4096);
    r.gridY = r.gridZ = 1;
    r.blockX = 256;
    r.blockY = r.blockZ = 1;
    r.registersPerThread = 32;
    r.correlationId = corr;
    r.graphId = (uint32_t)graph;
    r.graphNodeId = graph;
    r.name = item.name;
    add(r);
  } else if (item.work == Work::memcpy && prof_on(CUPTI_ACTIVITY_KIND_MEMCPY)) {
    CUpti_ActivityMemcpy6 r;
    memset(&r, 0, sizeof r);
    r.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    r.copyKind = item.copy_kind;
    r.srcKind = item.src_kind;
    r.dstKind = item.dst_kind;
    r.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
    r.bytes = item.bytes;
    r.start = t0;
    r.end = t1;
    r.deviceId = device;
    r.contextId = device + 1;
    r.streamId = (uint32_t)stream;
    r.correlationId = corr;
    r.graphId = (uint32_t)graph;
    r.graphNodeId = graph;
    add(r);
  } else if (item.work == Work::memset && prof_on(CUPTI_ACTIVITY_KIND_MEMSET)) {
    CUpti_ActivityMemset4 r;
    memset(&r, 0, sizeof r);
    r.kind = CUPTI_ACTIVITY_KIND_MEMSET;
    r.value = item.value;
    r.bytes = item.bytes;
    r.start = t0;
    r.end = t1;
    r.deviceId = device;
    r.contextId = device + 1;
    r.streamId = (uint32_t)stream;
    r.correlationId = corr;
    r.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    r.graphId = (uint32_t)graph;
    r.graphNodeId = graph;
    add(r);
  }
}
void prof_sync(CUpti_ActivitySynchronizationType type, uint64_t t0, uint64_t t1, uint32_t corr,
               uint32_t stream, uint32_t event) {
  if (!prof_on(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)) return;
  CUpti_ActivitySynchronization2 r;
  memset(&r, 0, sizeof r);
  r.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  r.type = type;
  r.start = t0;
  r.end = t1;
  r.correlationId = corr;
  r.contextId = 1;
  r.streamId = stream;
  r.cudaEventId = event;
  add(r);
}
void prof_event(uint32_t event, uint32_t stream, uint32_t corr) {
  if (!prof_on(CUPTI_ACTIVITY_KIND_CUDA_EVENT)) return;
  CUpti_ActivityCudaEvent2 r;
  memset(&r, 0, sizeof r);
  r.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  r.correlationId = corr;
  r.contextId = 1;
  r.streamId = stream;
  r.eventId = event;
  add(r);
}
static thread_local int depth = 0;
ApiCall::ApiCall(CUpti_runtime_api_trace_cbid c) : id(correlation++), cbid(c), start(played_now()) {
  depth++;
}
ApiCall::~ApiCall() {
  if (--depth || !prof_on(CUPTI_ACTIVITY_KIND_RUNTIME)) return;
  if (prof_on(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION))
    for (auto& [kind, ids] : external)
      if (!ids.empty()) {
        CUpti_ActivityExternalCorrelation r;
        memset(&r, 0, sizeof r);
        r.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        r.externalKind = (CUpti_ExternalCorrelationKind)kind;
        r.externalId = ids.back();
        r.correlationId = id;
        add(r);
      }
  CUpti_ActivityAPI r;
  memset(&r, 0, sizeof r);
  r.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  r.cbid = cbid;
  r.start = start;
  r.end = played_now();
  r.processId = getpid();
  r.threadId = (uint32_t)(uintptr_t)pthread_self();
  r.correlationId = id;
  add(r);
}
void wait_all();
}  // namespace played
using namespace played;

EXPORT uint64_t played_now() {
  if (auto f = clock_of.load(std::memory_order_relaxed)) return f();
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
EXPORT CUptiResult played_cupti_enable(CUpti_ActivityKind k, int on) {
  if ((int)k <= 0 || k >= CUPTI_ACTIVITY_KIND_COUNT) return CUPTI_ERROR_INVALID_KIND;
  if (k == CUPTI_ACTIVITY_KIND_KERNEL) k = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  enabled[k] = on;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult played_cupti_buffers(CUpti_BuffersCallbackRequestFunc r,
                                        CUpti_BuffersCallbackCompleteFunc c) {
  request_buffer = r;
  complete_buffer = c;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult played_cupti_clock(uint64_t (*f)()) {
  clock_of = f;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult played_cupti_flush() {
  played::wait_all();
  std::vector<std::vector<char>> all;
  {
    std::lock_guard<std::mutex> g(lock());
    all.swap(records());
  }
  size_t i = 0;
  while (i < all.size() && request_buffer) {
    uint8_t* buffer = pending;
    size_t size = pending_size, most = 0, filled = 0;
    pending = nullptr;
    if (!buffer) request_buffer(&buffer, &size, &most);
    if (!buffer) break;
    while (i < all.size() && filled + all[i].size() <= size) {
      memcpy(buffer + filled, all[i].data(), all[i].size());
      filled += all[i].size();
      i++;
    }
    complete_buffer(nullptr, 0, buffer, size, filled);
    if (!filled) break;
  }
  if (!pending) asked = false;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult played_cupti_next(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  uint8_t* next = *record ? (uint8_t*)*record + size_of((*record)->kind) : buffer;
  if (!buffer || next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity*)next;
  return size_of((*record)->kind) ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_KIND;
}
EXPORT CUptiResult played_cupti_push(int kind, uint64_t id) {
  external[kind].push_back(id);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult played_cupti_pop(int kind, uint64_t* id) {
  auto& ids = external[kind];
  if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (id) *id = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}
