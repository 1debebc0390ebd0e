// A CUDA runtime whose device is this process: device memory is host memory. Device work runs on two
// threads, one for copies between host and device and one for everything else. Written from the
// public headers; no NVIDIA code.
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "played.h"
#include "prof.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
using Guard = std::lock_guard<std::mutex>;

namespace played {

static double env(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text && *text ? atof(text) : otherwise;
}
const int n_devices = (int)env("PLAYED_CUDA_DEVICES", 1);
const size_t total_bytes = (size_t)(env("PLAYED_CUDA_MEM_GB", 16) * (1ull << 30));
const size_t context_bytes = 300ull << 20;
const uint64_t kernel_ns = (uint64_t)(1000 * env("PLAYED_CUDA_KERNEL_US", 5));
const double pcie_bytes_per_ns = env("PLAYED_CUDA_PCIE_GBS", 12);
const bool verbose = env("PLAYED_CUDA_LOG", 0) > 0;

static uint64_t mono() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static std::atomic<uint64_t> busy[64];  // ns of device work, kernels and copies

// --- errors, per thread -------------------------------------------------------------------
static thread_local cudaError_t last_error = cudaSuccess;
static std::atomic<int> sticky{0};
static thread_local int device = 0;
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
static cudaError_t fail(cudaError_t e) {
  if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
  if (e == cudaErrorNotReady) last_error = e;
  if (verbose && e != cudaSuccess && e != cudaErrorNotReady)
    fprintf(stderr, "played_cuda: error %d\n", e);
  return e;
}

// --- names --------------------------------------------------------------------------------
static std::mutex& names_lock() {
  static std::mutex* m = new std::mutex;
  return *m;
}
static std::unordered_map<const void*, const char*>& kernels() {
  static auto* m = new std::unordered_map<const void*, const char*>;
  return *m;
}
static const char* kernel_name(const void* f) {
  Guard g(names_lock());
  auto it = kernels().find(f);
  return it == kernels().end() ? "unknown_kernel" : it->second;
}

// --- graphs, streams, events --------------------------------------------------------------
struct Graph {
  std::vector<Item> items;
  unsigned long long id = 0;
  bool broken = false;
  std::vector<cudaGraphNode_t> last;
};
struct Stream {
  uint64_t id, last = 0;        // seq of its last item
  std::vector<uint64_t> waits;  // seqs of events for which its next item waits
  int lane = 0;                 // of its last item
  unsigned flags = 0;
  int priority = 0, device = 0;
  Graph* capturing = nullptr;
  bool origin = false;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};
struct Mark {  // one recording of an event
  uint64_t seq = 0, stream_id = 0;
  std::atomic<uint64_t> at{0};
  Graph* capturing = nullptr;
  uint32_t correlation = 0;
};
struct Event {
  unsigned flags = 0;
  int device = 0;
  uint32_t id = 0;
  std::shared_ptr<Mark> mark;
};

static std::mutex& big() {
  static std::mutex* m = new std::mutex;
  return *m;
}
static std::set<Stream*>& streams() {
  static auto* s = new std::set<Stream*>;
  return *s;
}
static std::atomic<uint64_t> stream_ids{7}, capture_ids{1};
static std::atomic<uint32_t> event_ids{1};
static Stream* legacy(int dev) {
  static Stream** all = [] {
    auto** a = new Stream*[64];
    for (int i = 0; i < 64; i++) {
      a[i] = new Stream{7, 0};
      a[i]->device = i;
    }
    return a;
  }();
  return all[dev];
}
static Stream* stream_of(void* s) {
  if ((uintptr_t)s <= 2) return legacy(device);
  return (Stream*)s;
}

// --- the engine ---------------------------------------------------------------------------
constexpr int kernels_lane = 0, copies_lane = 1, n_lanes = 2;
struct Queued {
  Item item;
  uint64_t seq, stream_id;
  int device;
  uint32_t correlation;
  std::shared_ptr<Mark> mark;
  uint64_t graph = 0;
  std::vector<uint64_t> after;  // seqs that must be done before it begins
};
// Each lane takes its work in the order of submission. What an item waits for was submitted before
// it, so the oldest open item never waits for another: there is no deadlock.
struct Engine {
  std::mutex lock;
  std::condition_variable some, done;
  std::deque<Queued> queues[n_lanes];
  std::set<uint64_t> open;  // seqs that are not done
  uint64_t next = 1;
  bool started = false;
  pid_t owner = 0;

  uint64_t put(int lane, Queued&& q) {
    std::unique_lock<std::mutex> g(lock);
    if (!started) {
      started = true;
      owner = getpid();
      for (int i = 0; i < n_lanes; i++) std::thread([this, i] { loop(i); }).detach();
    }
    // as a GPU does, accept about a thousand pieces of work, then let the host wait
    done.wait(g, [&] { return open.size() < 1024; });
    uint64_t seq = q.seq = next++;
    open.insert(seq);
    queues[lane].push_back(std::move(q));
    some.notify_all();
    return seq;
  }
  bool are_done(const std::vector<uint64_t>& seqs) {  // under lock
    return std::none_of(seqs.begin(), seqs.end(), [&](uint64_t seq) { return open.count(seq); });
  }
  bool is_done(const std::vector<uint64_t>& seqs) {
    Guard g(lock);
    return are_done(seqs);
  }
  void wait(const std::vector<uint64_t>& seqs) {
    if (owner != getpid()) return;
    std::unique_lock<std::mutex> g(lock);
    done.wait(g, [&] { return are_done(seqs); });
  }
  void wait_all() {
    if (owner != getpid()) return;
    std::unique_lock<std::mutex> g(lock);
    uint64_t end = next;
    done.wait(g, [&] { return open.empty() || *open.begin() >= end; });
  }
  void loop(int lane) {
    pthread_setname_np(pthread_self(), lane == copies_lane ? "played_copies" : "played_cuda");
    auto& queue = queues[lane];
    for (;;) {
      Queued q;
      {
        std::unique_lock<std::mutex> g(lock);
        some.wait(g, [&] { return !queue.empty(); });
        q = std::move(queue.front());
        queue.pop_front();
        done.wait(g, [&] { return are_done(q.after); });
      }
      uint64_t t0 = played_now(), m0 = mono();
      if (q.item.run) {
        try {
          q.item.run();
        } catch (const std::exception& e) {
          fprintf(stderr, "played_cuda: in %s: %s\n", q.item.name, e.what());
          sticky = cudaErrorLaunchFailure;
        }
      }
      q.item.run = nullptr;
      if (q.item.min_ns) {
        while (mono() - m0 < q.item.min_ns) {
          uint64_t left = q.item.min_ns - std::min<uint64_t>(q.item.min_ns, mono() - m0);
          if (left > 200000) usleep((left - 100000) / 1000);
        }
      }
      uint64_t t1 = played_now();
      if (q.mark) q.mark->at.store(mono());
      bool works = q.item.work != Work::marker && q.item.work != Work::host;
      if (works) busy[q.device] += mono() - m0;
      if (works)
        prof_device(q.item, t0, t1, q.device, q.stream_id, q.correlation, q.graph);
      {
        Guard g(lock);
        open.erase(q.seq);
      }
      done.notify_all();
    }
  }
};
static Engine& engine() {
  static Engine* e = new Engine;
  return *e;
}
static std::vector<uint64_t> ends_of(const Stream* s) {  // what is done when the stream is idle
  auto ends = s->waits;
  ends.push_back(s->last);
  return ends;
}

static uint64_t submit(Stream* s, Item&& item, uint32_t correlation,
                       std::shared_ptr<Mark> mark = nullptr, uint64_t graph = 0) {
  // an event belongs to what was before it
  bool crosses = item.work == Work::memcpy && item.copy_kind != CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
  bool computes = item.work != Work::marker && item.work != Work::host;
  if (computes) s->lane = crosses ? copies_lane : kernels_lane;
  Queued q{std::move(item), 0, s->id, s->device, correlation, mark, graph, ends_of(s)};
  s->waits.clear();
  return s->last = engine().put(s->lane, std::move(q));
}
static cudaError_t give(Stream* s, Item&& item, uint32_t correlation) {
  if (s->capturing) {
    s->capturing->items.push_back(std::move(item));
    return cudaSuccess;
  }
  submit(s, std::move(item), correlation);
  return (cudaError_t)sticky.load();
}
static bool any_global_capture() {
  Guard g(big());
  for (auto* s : streams())
    if (s->capturing && s->origin && s->mode == cudaStreamCaptureModeGlobal) return true;
  return false;
}
static thread_local int my_captures = 0;  // captures that this thread has begun, not relaxed
static cudaError_t unsafe_call() {  // what no thread in a strict mode may call during a capture
  if (capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool forbidden =
      my_captures > 0 || (capture_mode == cudaStreamCaptureModeGlobal && any_global_capture());
  if (!forbidden) return cudaSuccess;
  Guard g(big());
  for (auto* s : streams())
    if (s->capturing) s->capturing->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

// --- memory -------------------------------------------------------------------------------
struct Block {
  size_t size;
  int kind, device;
};  // kind: 1 host, 2 device
static std::map<uintptr_t, Block>& blocks() {
  static auto* b = new std::map<uintptr_t, Block>;
  return *b;
}
static std::atomic<size_t> used[64];
static std::atomic<bool> active[64];
static const Block* find_block(const void* p) {  // under big()
  auto it = blocks().upper_bound((uintptr_t)p);
  if (it == blocks().begin()) return nullptr;
  --it;
  return (uintptr_t)p < it->first + it->second.size ? &it->second : nullptr;
}
static void touch() { active[device] = true; }
static size_t limit() { return total_bytes - context_bytes; }
bool take(int dev, size_t n) {
  size_t now = used[dev].load();
  do {
    if (now + n > limit()) return false;
  } while (!used[dev].compare_exchange_weak(now, now + n));
  return true;
}
void give_back(int dev, size_t n) { used[dev] -= n; }
static cudaError_t allocate(void** out, size_t n, int kind) {
  *out = nullptr;
  if (!n) return cudaSuccess;
  size_t whole = (n + 0xfff) & ~(size_t)0xfff;
  if (kind == 2) {
    if (!take(device, whole)) return cudaErrorMemoryAllocation;
  }
  void* p = mmap(nullptr, whole + (2 << 20), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    if (kind == 2) give_back(device, whole);
    return cudaErrorMemoryAllocation;
  }
  Guard g(big());
  blocks()[(uintptr_t)p] = {whole, kind, device};
  *out = p;
  return cudaSuccess;
}
static cudaError_t release(void* p) {
  if (!p) return cudaSuccess;
  engine().wait_all();
  Guard g(big());
  auto it = blocks().find((uintptr_t)p);
  if (it == blocks().end()) return cudaErrorInvalidValue;
  if (it->second.kind == 2) give_back(it->second.device, it->second.size);
  munmap(p, it->second.size + (2 << 20));
  blocks().erase(it);
  return cudaSuccess;
}
void note_block(void* p, size_t n, int kind, int dev) {
  Guard g(big());
  blocks()[(uintptr_t)p] = {n, kind, dev};
}
void forget_block(void* p) {
  Guard g(big());
  blocks().erase((uintptr_t)p);
}
int current_device() { return device; }
void set_device(int d) { device = d; }
bool is_active(int d) { return active[d]; }
void activate() { touch(); }
uint64_t busy_ns(int d) { return busy[d]; }
size_t used_bytes(int d) { return used[d].load() + (active[d] ? context_bytes : 0); }
int block_of(const void* p, uintptr_t* base, size_t* n, int* dev) {
  Guard g(big());
  auto it = blocks().upper_bound((uintptr_t)p);
  if (it == blocks().begin()) return 0;
  --it;
  if ((uintptr_t)p >= it->first + it->second.size) return 0;
  if (base) *base = it->first;
  if (n) *n = it->second.size;
  if (dev) *dev = it->second.device;
  return it->second.kind;
}
void wait_all() { engine().wait_all(); }
}  // namespace played

using namespace played;

EXPORT int played_launch(void* s, Item* item) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000);
  touch();
  if (!item->min_ns && item->work == Work::kernel && !item->run) item->min_ns = kernel_ns;
  return fail(give(stream_of(s), std::move(*item), call.id));
}
EXPORT void played_drain(void* s) { engine().wait(ends_of(stream_of(s))); }
EXPORT int played_is_capturing(void* s) { return stream_of(s)->capturing != nullptr; }
EXPORT const char* played_intern(const char* name) {
  static auto* all = new std::unordered_set<std::string>;
  Guard g(names_lock());
  return all->insert(name).first->c_str();
}

// --- devices ------------------------------------------------------------------------------
EXPORT cudaError_t cudaGetDeviceCount(int* n) {
  const char* v = getenv("CUDA_VISIBLE_DEVICES");
  int visible = n_devices;
  if (v) {
    visible = 0;
    for (const char* p = v; *p && visible < n_devices;) {
      char* end;
      long d = strtol(p, &end, 10);
      if (end == p || d < 0 || d >= n_devices) break;
      visible++;
      p = *end == ',' ? end + 1 : end;
    }
  }
  *n = visible;
  return visible ? cudaSuccess : fail(cudaErrorNoDevice);
}
EXPORT cudaError_t cudaGetDevice(int* d) {
  *d = device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= n_devices) return fail(cudaErrorInvalidDevice);
  device = d;
  touch();
  return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  if (d < 0 || d >= n_devices) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, PLAYED_NAME);
  for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)(0xf0 + i + d);
  p->totalGlobalMem = total_bytes;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 8;
  p->minor = 0;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = 108;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->pciBusID = d + 1;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 40 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->streamPrioritiesSupported = 1;
  p->sharedMemPerMultiprocessor = 167936;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = 166912;
  p->maxBlocksPerMultiProcessor = 32;
  p->memoryPoolsSupported = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
  cudaDeviceProp p;
  if (auto e = cudaGetDeviceProperties(&p, d)) return e;
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: *v = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *v = 1024; break;
    case cudaDevAttrMaxBlockDimY: *v = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *v = 64; break;
    case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *v = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 166912; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 167936; break;
    case cudaDevAttrWarpSize: *v = 32; break;
    case cudaDevAttrMultiProcessorCount: *v = 108; break;
    case cudaDevAttrComputeCapabilityMajor: *v = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
    case cudaDevAttrMaxRegistersPerBlock: *v = 65536; break;
    case cudaDevAttrClockRate: *v = 1410000; break;
    case cudaDevAttrL2CacheSize: *v = 40 << 20; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrHostRegisterSupported: *v = 1; break;
    default: *v = 0;
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* out, int n, int d) {
  snprintf(out, n, "0000:%02x:00.0", d + 1);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* v, int, int) {
  *v = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
  if (auto e = unsafe_call()) return fail(e);
  touch();
  uint64_t t0 = played_now();
  engine().wait_all();
  prof_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE, t0, played_now(), call.id,
            CUPTI_SYNCHRONIZATION_INVALID_VALUE, CUPTI_SYNCHRONIZATION_INVALID_VALUE);
  return fail((cudaError_t)sticky.load());
}

// --- errors -------------------------------------------------------------------------------
EXPORT cudaError_t cudaGetLastError() {
  auto e = last_error;
  last_error = cudaSuccess;
  return sticky ? (cudaError_t)sticky.load() : e;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
EXPORT const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "played_cuda error";
  }
}
EXPORT const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : e == cudaErrorNotReady       ? "cudaErrorNotReady"
         : e == cudaSuccess             ? "cudaSuccess"
                                        : "cudaErrorOther";
}

// --- memory -------------------------------------------------------------------------------
EXPORT cudaError_t cudaMalloc(void** p, size_t n) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020);
  touch();
  if (auto e = unsafe_call()) return fail(e);
  return fail(allocate(p, n, 2));
}
EXPORT cudaError_t cudaFree(void* p) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020);
  touch();
  if (p)
    if (auto e = unsafe_call()) return fail(e);
  return fail(release(p));
}
EXPORT cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaHostAlloc_v3020);
  touch();
  return fail(allocate(p, n, 1));
}
EXPORT cudaError_t cudaFreeHost(void* p) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaFreeHost_v3020);
  return fail(release(p));
}
EXPORT cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  note_block(p, n, 1, device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostUnregister(void* p) {
  forget_block(p);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  touch();
  *t = total_bytes;
  *f = total_bytes - used_bytes(device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  Guard g(big());
  auto* b = find_block(p);
  a->type = !b             ? cudaMemoryTypeUnregistered
            : b->kind == 1 ? cudaMemoryTypeHost
                           : cudaMemoryTypeDevice;
  a->device = b ? b->device : device;
  if (b) a->devicePointer = (void*)p;
  if (!b || b->kind == 1) a->hostPointer = (void*)p;
  return cudaSuccess;
}
// memory pools: an allocation is made and freed in place
static size_t pool_used[64], pool_high[64];
EXPORT cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMallocAsync_v11020);
  touch();
  auto e = allocate(p, n, 2);
  if (!e) {
    pool_used[device] += n;
    pool_high[device] = std::max(pool_high[device], pool_used[device]);
  }
  return fail(e);
}
EXPORT cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaFreeAsync_v11020);
  size_t n = 0;
  block_of(p, nullptr, &n, nullptr);
  auto e = release(p);
  if (!e) pool_used[device] -= std::min(n, pool_used[device]);
  return fail(e);
}
EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int d) {
  *p = (cudaMemPool_t)(intptr_t)(d + 1);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t p, cudaMemPoolAttr a, void* v) {
  int d = (int)(intptr_t)p - 1;
  bool high = a == cudaMemPoolAttrUsedMemHigh || a == cudaMemPoolAttrReservedMemHigh;
  *(uint64_t*)v = high ? pool_high[d] : pool_used[d];
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t p, cudaMemPoolAttr a, void*) {
  int d = (int)(intptr_t)p - 1;
  if (a == cudaMemPoolAttrUsedMemHigh || a == cudaMemPoolAttrReservedMemHigh)
    pool_high[d] = pool_used[d];
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// --- copies -------------------------------------------------------------------------------
static int kind_of(const void* p) { return block_of(p, nullptr, nullptr, nullptr); }
static cudaError_t copy(ApiCall& call, void* dst, const void* src, size_t n, cudaStream_t st,
                        bool wait, std::function<void()> run = nullptr) {
  touch();
  Stream* s = stream_of(st);
  int from = kind_of(src), to = kind_of(dst);
  Item item;
  item.work = Work::memcpy;
  item.bytes = n;
  static const int memory[] = {CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE,
                               CUPTI_ACTIVITY_MEMORY_KIND_PINNED,
                               CUPTI_ACTIVITY_MEMORY_KIND_DEVICE};
  item.src_kind = memory[from];
  item.dst_kind = memory[to];
  item.copy_kind = from == 2 && to == 2 ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD
                   : from == 2          ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                   : to == 2            ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                                        : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
  item.min_ns =
      1500 + (from == 2 && to == 2 ? 0 : (uint64_t)(n / pcie_bytes_per_ns * (from && to ? 1 : 2)));
  item.run = run ? run : [dst, src, n] { memcpy(dst, src, n); };
  bool pageable = (!from || !to);
  if (s->capturing && wait) {
    s->capturing->broken = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  cudaError_t e = give(s, std::move(item), call.id);
  if ((wait || pageable) && !s->capturing) engine().wait(ends_of(s));
  return fail(e);
}
EXPORT cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind,
                                   cudaStream_t st) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020);
  return copy(call, d, s, n, st, false);
}
EXPORT cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020);
  return copy(call, d, s, n, nullptr, true);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n,
                                       cudaStream_t st) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeerAsync_v4000);
  return copy(call, d, s, n, st, false);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w,
                                     size_t h, cudaMemcpyKind, cudaStream_t st) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_v3020);
  return copy(call, d, s, w * h, st, false, [=] {
    for (size_t i = 0; i < h; i++) memcpy((char*)d + i * dp, (const char*)s + i * sp, w);
  });
}
EXPORT cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t st) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020);
  touch();
  Item item;
  item.work = Work::memset;
  item.bytes = n;
  item.value = v;
  item.min_ns = 1500;
  item.run = [=] { memset(p, v, n); };
  return fail(give(stream_of(st), std::move(item), call.id));
}
EXPORT cudaError_t cudaMemset(void* p, int v, size_t n) {
  return cudaMemsetAsync(p, v, n, nullptr);
}
static std::unordered_map<const void*, void*>& symbols() {
  static auto* m = new std::unordered_map<const void*, void*>;
  return *m;
}
EXPORT cudaError_t cudaGetSymbolAddress(void** p, const void* s) {
  *p = symbols()[s];
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void* s, const void* src, size_t n, size_t off,
                                      cudaMemcpyKind) {
  if (void* p = symbols()[s]) memcpy((char*)p + off, src, n);
  return cudaSuccess;
}

// --- streams ------------------------------------------------------------------------------
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  touch();
  auto* s = new Stream{++stream_ids};
  s->flags = flags;
  s->priority = priority;
  s->device = device;
  Guard g(big());
  streams().insert(s);
  *out = (cudaStream_t)s;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) {
  return cudaStreamCreateWithPriority(s, f, 0);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* s) {
  return cudaStreamCreateWithPriority(s, 0, 0);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t st) {
  Guard g(big());
  auto* s = (Stream*)st;
  if (streams().erase(s)) {
  }  // kept: work in flight may name it
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = stream_of(s)->priority;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t st) {
  auto* s = stream_of(st);
  if (s->capturing) {
    s->capturing->broken = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  return engine().is_done(ends_of(s)) ? fail((cudaError_t)sticky.load()) : fail(cudaErrorNotReady);
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t st) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020);
  touch();
  auto* s = stream_of(st);
  if (s->capturing) {
    s->capturing->broken = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  uint64_t t0 = played_now();
  engine().wait(ends_of(s));
  prof_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE, t0, played_now(), call.id,
            (uint32_t)s->id, CUPTI_SYNCHRONIZATION_INVALID_VALUE);
  return fail((cudaError_t)sticky.load());
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t st, cudaEvent_t ev, unsigned) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020);
  auto* s = stream_of(st);
  auto* e = (Event*)ev;
  if (e->mark && e->mark->capturing) {  // the stream joins the capture
    if (!s->capturing) s->capturing = e->mark->capturing;
    return cudaSuccess;
  }
  if (e->mark) {
    uint64_t t = played_now();
    prof_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT, t, t, call.id, (uint32_t)s->id,
              e->id);
    s->waits.push_back(e->mark->seq);
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t st, cudaHostFn_t fn, void* data) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_v10000);
  Item item;
  item.work = Work::host;
  item.run = [=] { fn(data); };
  return fail(give(stream_of(st), std::move(item), call.id));
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t st, cudaStreamCallback_t fn, void* data,
                                         unsigned) {
  Item item;
  item.work = Work::host;
  item.run = [=] { fn(st, cudaSuccess, data); };
  return fail(give(stream_of(st), std::move(item), 0));
}

// --- events -------------------------------------------------------------------------------
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  touch();
  auto* e = new Event;
  e->flags = flags;
  e->device = device;
  e->id = event_ids++;
  *out = (cudaEvent_t)e;
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete (Event*)e;
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t ev, cudaStream_t st, unsigned) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020);
  auto* s = stream_of(st);
  auto* e = (Event*)ev;
  auto mark = std::make_shared<Mark>();
  mark->stream_id = s->id;
  mark->correlation = call.id;
  if (s->capturing) {
    mark->capturing = s->capturing;
  } else {
    Item item;
    item.work = Work::marker;
    mark->seq = submit(s, std::move(item), call.id, mark);
    prof_event(e->id, (uint32_t)s->id, call.id);
  }
  e->mark = mark;
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return cudaEventRecordWithFlags(e, s, 0);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t ev) {
  auto m = ((Event*)ev)->mark;
  if (!m) return cudaSuccess;
  if (m->capturing) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (auto e = (my_captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed
                    ? cudaErrorStreamCaptureUnsupported
                    : cudaSuccess))
    return fail(e);
  return engine().is_done({m->seq}) ? cudaSuccess : fail(cudaErrorNotReady);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t ev) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020);
  auto* e = (Event*)ev;
  auto m = e->mark;
  if (!m) return cudaSuccess;
  if (m->capturing) return fail(cudaErrorStreamCaptureUnsupported);
  uint64_t t0 = played_now();
  engine().wait({m->seq});
  prof_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE, t0, played_now(), call.id,
            CUPTI_SYNCHRONIZATION_INVALID_VALUE, e->id);
  return fail((cudaError_t)sticky.load());
}
EXPORT cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  auto *x = (Event*)a, *y = (Event*)b;
  if ((x->flags | y->flags) & cudaEventDisableTiming || !x->mark || !y->mark)
    return fail(cudaErrorInvalidResourceHandle);
  uint64_t s = x->mark->at, t = y->mark->at;
  if (!s || !t) return fail(cudaErrorNotReady);
  *ms = (float)(((double)t - (double)s) / 1e6);
  return cudaSuccess;
}
EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return fail(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return fail(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void*) { return fail(cudaErrorNotSupported); }
EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return fail(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return fail(cudaErrorNotSupported);
}

// --- capture and graphs -------------------------------------------------------------------
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  std::swap(*m, capture_mode);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t st, cudaStreamCaptureMode mode) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamBeginCapture_v10000);
  if ((uintptr_t)st <= 1) return fail(cudaErrorStreamCaptureUnsupported);
  auto* s = stream_of(st);
  if (s->capturing) return fail(cudaErrorIllegalState);
  s->capturing = new Graph;
  s->capturing->id = capture_ids++;
  s->origin = true;
  s->mode = mode;
  if (mode != cudaStreamCaptureModeRelaxed) my_captures++;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                                 const cudaGraphEdgeData*, size_t,
                                                 cudaStreamCaptureMode) {
  return fail(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t st, cudaGraph_t* out) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamEndCapture_v10000);
  auto* s = stream_of(st);
  if (!s->capturing) return fail(cudaErrorIllegalState);
  Graph* graph = s->capturing;
  {
    Guard g(big());
    for (auto* other : streams())
      if (other->capturing == graph) {
        other->capturing = nullptr;
        other->origin = false;
      }
  }
  if (s->mode != cudaStreamCaptureModeRelaxed) my_captures--;
  *out = graph->broken ? nullptr : (cudaGraph_t)graph;
  return graph->broken ? fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t st, cudaStreamCaptureStatus* out) {
  auto* s = stream_of(st);
  *out = !s->capturing          ? cudaStreamCaptureStatusNone
         : s->capturing->broken ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t st, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            const cudaGraphNode_t** deps,
                                            const cudaGraphEdgeData** edges, size_t* n) {
  auto* s = stream_of(st);
  cudaStreamIsCapturing(st, status);
  if (id) *id = s->capturing ? s->capturing->id : 0;
  if (graph) *graph = (cudaGraph_t)s->capturing;
  if (deps) *deps = nullptr;
  if (edges) *edges = nullptr;
  if (n) *n = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*,
                                                       const cudaGraphEdgeData*, size_t, unsigned) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t g,
                                                 unsigned long long) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaGraphInstantiateWithFlags_v11040);
  *out = (cudaGraphExec_t) new std::vector<Item>(((Graph*)g)->items);
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t st) {
  ApiCall call(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000);
  auto* s = stream_of(st);
  for (auto& item : *(std::vector<Item>*)g) {
    Item copy = item;
    if (s->capturing)
      s->capturing->items.push_back(std::move(copy));
    else
      submit(s, std::move(copy), call.id, nullptr, 1);
  }
  return fail((cudaError_t)sticky.load());
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  delete (Graph*)g;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) {
  // As on a GPU, no wait: what was launched has its own copies. Python's garbage collector may call
  // this while it holds the GIL, which the device's thread needs to let go of a tensor.
  delete (std::vector<Item>*)g;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t*, size_t* n) {
  *n = ((Graph*)g)->items.size();
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*,
                                                cudaGraphEdgeData*, size_t* n) {
  *n = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*,
                                    const cudaGraphEdgeData*, size_t, cudaGraphNodeParams*) {
  return fail(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t,
                                                    unsigned, unsigned) {
  return fail(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) {
  return cudaSuccess;
}

// --- kernels: registered by name, launched as work that takes a moment and does nothing ----
EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT char __cudaInitModule(void**) { return 1; }
EXPORT void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*,
                                   uint3*, dim3*, dim3*, int*) {
  Guard g(names_lock());
  kernels()[host] = name;
}
EXPORT void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t n, int, int) {
  Guard g(names_lock());
  symbols()[host] = calloc(1, n ? n : 1);
}
struct Config {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local std::vector<Config> configs;
EXPORT unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t shared, struct CUstream_st* s) {
  configs.push_back({g, b, shared, s});
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* shared, void* s) {
  auto c = configs.back();
  configs.pop_back();
  *g = c.grid;
  *b = c.block;
  *shared = c.shared;
  *(void**)s = c.stream;
  return cudaSuccess;
}
static std::atomic<uint64_t> raw_launches{0};
EXPORT uint64_t played_raw_launches() { return raw_launches; }
static cudaError_t launch(uint32_t cbid, const void* f, void* s) {
  ApiCall call((CUpti_runtime_api_trace_cbid)cbid);
  touch();
  raw_launches++;
  Item item;
  item.name = kernel_name(f);
  item.min_ns = kernel_ns;
  if (verbose) fprintf(stderr, "played_cuda: not computed: %s\n", item.name);
  return fail(give(stream_of(s), std::move(item), call.id));
}
EXPORT cudaError_t cudaLaunchKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) {
  return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, f, s);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3, dim3, void**, size_t,
                                               cudaStream_t s) {
  return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000, f, s);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void**) {
  return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060, f, c->stream);
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) {
  *k = (cudaKernel_t)f;
  return cudaSuccess;
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3, dim3, void**, size_t, cudaStream_t s) {
  return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, (const void*)k, s);
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->binaryVersion = 80;
  a->ptxVersion = 80;
  a->maxDynamicSharedSizeBytes = 166912;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t* l, const void*, cudaJitOption*, void**,
                                       unsigned, cudaLibraryOption*, void**, unsigned) {
  *l = (cudaLibrary_t)1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t* k, cudaLibrary_t, const char* name) {
  const char* n = played_intern(name);
  {
    Guard g(names_lock());
    kernels()[n] = n;
  }
  *k = (cudaKernel_t)n;
  return cudaSuccess;
}
EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
  *n = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int,
                                                                          size_t, unsigned) {
  *n = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* r) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  *f = nullptr;
  if (driver) {
    std::string versioned = std::string(name) + "_v2";
    *f = dlsym(driver, versioned.c_str());
    if (!*f) *f = dlsym(driver, name);
  }
  if (r) *r = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*f && verbose) fprintf(stderr, "played_cuda: no driver entry %s\n", name);
  return *f ? cudaSuccess : cudaErrorSymbolNotFound;
}
