// Interface between the pieces of played_cuda (libcudart stub, libcuda stub, libcupti stub, ATen
// bridge).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

// No setting renames the device: nothing that it shows may pass for a real GPU's.
#define PLAYED_NAME "played GPU (host memory)"

namespace played {
enum class Work : int { kernel, memcpy, memset, marker, host };
struct Item {                 // one piece of device work
  std::function<void()> run;  // may be empty
  const char* name = "";      // interned
  Work work = Work::kernel;
  uint64_t bytes = 0;
  int copy_kind = 0;               // CUPTI_ACTIVITY_MEMCPY_KIND_*
  int src_kind = 0, dst_kind = 0;  // CUPTI_ACTIVITY_MEMORY_KIND_*
  uint64_t min_ns = 0;             // it takes at least so long
  int value = 0;
};
}  // namespace played

extern "C" {
// device work under the cover of one runtime call; `stream` is a cudaStream_t. Returns a cudaError.
int played_launch(
    void* stream,
    played::Item* item);          // takes what item holds; records it where the stream captures
void played_drain(void* stream);  // host waits for the stream, without a runtime call of its own
const char* played_intern(const char* name);
int played_is_capturing(void* stream);
uint64_t played_now();
}
