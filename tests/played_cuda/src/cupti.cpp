#include <cupti.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
extern "C" {
CUptiResult played_cupti_enable(CUpti_ActivityKind k, int on);
CUptiResult played_cupti_buffers(CUpti_BuffersCallbackRequestFunc r,
                                 CUpti_BuffersCallbackCompleteFunc c);
CUptiResult played_cupti_clock(uint64_t (*f)());
CUptiResult played_cupti_flush();
CUptiResult played_cupti_next(uint8_t* buffer, size_t valid, CUpti_Activity** record);
CUptiResult played_cupti_push(int kind, uint64_t id);
CUptiResult played_cupti_pop(int kind, uint64_t* id);
}
EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind k) { return played_cupti_enable(k, 1); }
EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind k) { return played_cupti_enable(k, 0); }
EXPORT CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) {
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityFlushAll(uint32_t) { return played_cupti_flush(); }
EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t* b, size_t n, CUpti_Activity** r) {
  return played_cupti_next(b, n, r);
}
EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* n) {
  *n = 0;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind k,
                                                         uint64_t* id) {
  return played_cupti_pop(k, id);
}
EXPORT CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind k,
                                                          uint64_t id) {
  return played_cupti_push(k, id);
}
EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r,
                                                  CUpti_BuffersCallbackCompleteFunc c) {
  return played_cupti_buffers(r, c);
}
EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
  return played_cupti_clock((uint64_t (*)())f);
}
EXPORT CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t*, void*) {
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                       CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) {
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiGetResultString(CUptiResult, const char** s) {
  *s = "played_cuda";
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetVersion(uint32_t* v) {
  *v = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* s, CUpti_CallbackFunc, void*) {
  *s = (CUpti_SubscriberHandle)1;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
#define NAME(x) \
  case CUPTI_RUNTIME_TRACE_CBID_##x: *name = #x; break;
EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain, uint32_t cbid, const char** name) {
  switch (cbid) {
    NAME(cudaLaunchKernel_v7000)
    NAME(cudaDeviceSynchronize_v3020) NAME(cudaMalloc_v3020) NAME(cudaFree_v3020)
        NAME(cudaHostAlloc_v3020) NAME(cudaFreeHost_v3020) NAME(cudaMallocAsync_v11020)
            NAME(cudaFreeAsync_v11020) NAME(cudaMemcpyAsync_v3020) NAME(cudaMemcpy_v3020)
                NAME(cudaMemcpyPeerAsync_v4000) NAME(cudaMemcpy2DAsync_v3020)
                    NAME(cudaMemsetAsync_v3020) NAME(cudaStreamSynchronize_v3020)
                        NAME(cudaStreamWaitEvent_v3020) NAME(cudaLaunchHostFunc_v10000)
                            NAME(cudaEventRecord_v3020) NAME(cudaEventSynchronize_v3020)
                                NAME(cudaStreamBeginCapture_v10000)
                                    NAME(cudaStreamEndCapture_v10000)
                                        NAME(cudaGraphInstantiateWithFlags_v11040)
                                            NAME(cudaGraphLaunch_v10000)
                                                NAME(cudaLaunchCooperativeKernel_v9000)
                                                    NAME(cudaLaunchKernelExC_v11060) default
        : * name = "cudaUnknown_v1000";
  }
  return CUPTI_SUCCESS;
}
