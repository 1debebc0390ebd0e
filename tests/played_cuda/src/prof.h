#pragma once
#include <cupti.h>

#include "played.h"
namespace played {
bool prof_on(CUpti_ActivityKind kind);
void prof_device(const Item& item, uint64_t t0, uint64_t t1, int device, uint64_t stream,
                 uint32_t correlation, uint64_t graph);
void prof_sync(CUpti_ActivitySynchronizationType type, uint64_t t0, uint64_t t1,
               uint32_t correlation, uint32_t stream, uint32_t event);
void prof_event(uint32_t event, uint32_t stream, uint32_t correlation);
struct ApiCall {  // one call of the runtime, recorded when it ends
  uint32_t id;
  CUpti_runtime_api_trace_cbid cbid;
  uint64_t start;
  explicit ApiCall(CUpti_runtime_api_trace_cbid cbid);
  ~ApiCall();
};
}  // namespace played
