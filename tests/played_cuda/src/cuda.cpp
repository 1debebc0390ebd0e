// The driver API, as far as torch and triton ask for it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "played.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
#undef cuDeviceTotalMem
#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuMemGetInfo
#undef cuMemAlloc
#undef cuMemFree
#undef cuLinkCreate
#undef cuLinkAddData
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuDevicePrimaryCtxRelease
#undef cuMemGetAddressRange
#undef cuDeviceGetUuid
namespace played {
bool take(int dev, size_t n);
void give_back(int dev, size_t n);
void note_block(void*, size_t, int, int);
void forget_block(void*);
int current_device();
void set_device(int);
bool is_active(int);
void activate();
int block_of(const void*, uintptr_t*, size_t*, int*);
void wait_all();
}  // namespace played
using namespace played;
EXPORT CUresult cuInit(unsigned) {
  int n;
  return cudaGetDeviceCount(&n) == cudaSuccess ? CUDA_SUCCESS
                                               : (cudaGetLastError(), CUDA_ERROR_NO_DEVICE);
}
EXPORT CUresult cuDriverGetVersion(int* v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* n) {
  if (cudaGetDeviceCount(n)) cudaGetLastError();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* d, int i) {
  *d = i;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char* out, int n, CUdevice d) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, d);
  snprintf(out, n, "%s", p.name);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid(CUuuid* u, CUdevice d) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, d);
  memcpy(u, &p.uuid, 16);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* u, CUdevice d) { return cuDeviceGetUuid(u, d); }
EXPORT CUresult cuDeviceTotalMem_v2(size_t* n, CUdevice d) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, d);
  *n = p.totalGlobalMem;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  if (a == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    *v = 1;
    return CUDA_SUCCESS;
  }
  return (CUresult)cudaDeviceGetAttribute(v, (cudaDeviceAttr)a, d);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned* flags, int* on) {
  if (flags) *flags = 0;
  *on = is_active(d);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) {
  *c = (CUcontext)(intptr_t)(d + 1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = is_active(current_device()) ? (CUcontext)(intptr_t)(current_device() + 1) : nullptr;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext c) {
  if (c) {
    set_device((int)(intptr_t)c - 1);
    activate();
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext c) { return cuCtxSetCurrent(c); }
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* c) { return cuCtxGetCurrent(c); }
EXPORT CUresult cuCtxGetDevice(CUdevice* d) {
  *d = current_device();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize() { return (CUresult)cudaDeviceSynchronize(); }
EXPORT CUresult cuGetErrorString(CUresult e, const char** s) {
  *s = cudaGetErrorString((cudaError_t)e);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult e, const char** s) {
  *s = cudaGetErrorName((cudaError_t)e);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetProcAddress_v2(const char* name, void** f, int v, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* r) {
  cudaDriverEntryPointQueryResult q;
  auto e = cudaGetDriverEntryPointByVersion(name, f, v, flags, &q);
  if (r) *r = e ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  return e ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttribute(void* out, CUpointer_attribute a, CUdeviceptr p) {
  uintptr_t base;
  size_t n;
  int dev;
  int kind = block_of((void*)p, &base, &n, &dev);
  if (!kind) return CUDA_ERROR_INVALID_VALUE;
  switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)out = (CUcontext)(intptr_t)(dev + 1); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned*)out = kind == 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr*)out = p; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void**)out = (void*)p; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)out = dev; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr*)out = base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t*)out = n; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* b, size_t* n, CUdeviceptr p) {
  uintptr_t base;
  if (!block_of((void*)p, &base, n, nullptr)) return CUDA_ERROR_NOT_FOUND;
  *b = base;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetInfo_v2(size_t* f, size_t* t) { return (CUresult)cudaMemGetInfo(f, t); }
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  return (CUresult)cudaMalloc((void**)p, n);
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr p) { return (CUresult)cudaFree((void*)p); }
EXPORT CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) {
  played::Item item;
  item.work = played::Work::memset;
  item.bytes = 4 * n;
  item.run = [=] {
    for (size_t i = 0; i < n; i++) ((unsigned*)p)[i] = v;
  };
  return (CUresult)played_launch(s, &item);
}
// virtual memory (expandable segments)
struct Physical {
  size_t size;
  int device;
};
static std::mutex mapped_lock;
static std::map<uintptr_t, Physical*> mapped;
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr,
                                    unsigned long long) {
  void* at = mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = (CUdeviceptr)at;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  munmap((void*)p, n);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t* n, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
  *n = 2 << 20;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* h, size_t n,
                            const CUmemAllocationProp* prop, unsigned long long) {
  int dev = prop ? prop->location.id : current_device();
  if (!take(dev, n)) return CUDA_ERROR_OUT_OF_MEMORY;
  *h = (CUmemGenericAllocationHandle) new Physical{n, dev};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  auto* p = (Physical*)h;
  give_back(p->device, p->size);
  delete p;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr p, size_t n, size_t, CUmemGenericAllocationHandle h,
                         unsigned long long) {
  mprotect((void*)p, n, PROT_READ | PROT_WRITE);
  note_block((void*)p, n, 2, ((Physical*)h)->device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  played::wait_all();
  forget_block((void*)p);
  mmap((void*)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle,
                                             CUmemAllocationHandleType, unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*,
                                               CUmemAllocationHandleType) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp*,
                                                       CUmemGenericAllocationHandle) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
// modules and kernels by name (NVRTC, triton): launched, not computed
EXPORT CUresult cuModuleLoadData(CUmodule* m, const void*) {
  *m = (CUmodule)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) {
  *m = (CUmodule)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoad(CUmodule* m, const char*) {
  *m = (CUmodule)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) {
  *f = (CUfunction)played_intern(name);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
       : a == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                    : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
static CUresult launch(CUfunction f, CUstream s) {
  played::Item item;
  item.name = (const char*)f;
  return (CUresult)played_launch(s, &item);
}
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, unsigned, CUstream s, void**, void**) {
  return launch(f, s);
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void**, void**) {
  return launch(f, c->hStream);
}
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned, unsigned, unsigned, unsigned,
                                          unsigned, unsigned, unsigned, CUstream s, void**) {
  return launch(f, s);
}
EXPORT CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuLinkAddData_v2(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned,
                                 CUjit_option*, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuLinkComplete(CUlinkState, void**, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; }
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int, size_t) {
  *n = 2;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveClusters(int* n, CUfunction, const CUlaunchConfig*) {
  *n = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                       const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                       const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
