// NCCL between the devices of one process, as torch.cuda.comm and nn.DataParallel use it, and between
// processes of one machine, which exchange pieces through a file in /dev/shm. What is not played
// (sending and receiving, splitting a group of processes) fails, so that nothing is silently not
// sent. build.py generates the functions that are not here; they do nothing. Written from the public
// documentation of NCCL; no NVIDIA code.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "played.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum Result {
  success = 0,
  system_error = 2,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6
};
enum class Kind { broadcast, reduce, all_reduce, all_gather, reduce_scatter };
constexpr int n_types = 10;
const size_t type_bytes[n_types] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
const char* const names[] = {"ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_Reduce_Sum_RING_LL",
                             "ncclDevKernel_AllReduce_Sum_RING_LL", "ncclDevKernel_AllGather_RING_LL",
                             "ncclDevKernel_ReduceScatter_Sum_RING_LL"};

struct Id {
  char bytes[128];
};
struct Clique {
  int ranks;
};
class Link;
struct Comm {
  std::shared_ptr<Clique> clique;
  int rank;
  std::shared_ptr<Link> link;  // to the other processes; none within a process
};
struct Part {  // what one rank has to do with a collective
  Kind kind;
  const void* in;
  void* out;
  size_t n;  // elements of the smaller side: of one rank's part
  int type, op, root;
  Comm* comm;
  cudaStream_t stream;
};
using Round = std::vector<Part>;  // one collective, in the order of the ranks

// long double holds every value of every type here
long double load(const void* from, size_t i, int type) {
  switch (type) {
    case 0: return ((const int8_t*)from)[i];
    case 1: return ((const uint8_t*)from)[i];
    case 2: return ((const int32_t*)from)[i];
    case 3: return ((const uint32_t*)from)[i];
    case 4: return ((const int64_t*)from)[i];
    case 5: return ((const uint64_t*)from)[i];
    case 6: return (long double)(float)((const _Float16*)from)[i];
    case 7: return ((const float*)from)[i];
    case 8: return ((const double*)from)[i];
    default: {
      uint32_t bits = (uint32_t)((const uint16_t*)from)[i] << 16;
      float value;
      memcpy(&value, &bits, 4);
      return value;
    }
  }
}
void store(void* to, size_t i, int type, long double value) {
  switch (type) {
    case 0: ((int8_t*)to)[i] = (int8_t)value; break;
    case 1: ((uint8_t*)to)[i] = (uint8_t)value; break;
    case 2: ((int32_t*)to)[i] = (int32_t)value; break;
    case 3: ((uint32_t*)to)[i] = (uint32_t)value; break;
    case 4: ((int64_t*)to)[i] = (int64_t)value; break;
    case 5: ((uint64_t*)to)[i] = (uint64_t)value; break;
    case 6: ((_Float16*)to)[i] = (_Float16)(float)value; break;
    case 7: ((float*)to)[i] = (float)value; break;
    case 8: ((double*)to)[i] = (double)value; break;
    default: {  // to the nearest, ties to even
      float single = (float)value;
      uint32_t bits;
      memcpy(&bits, &single, 4);
      bool nan = single != single;
      ((uint16_t*)to)[i] = nan ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
  }
}
long double combined(long double a, long double b, int op) {
  switch (op) {
    case 1: return a * b;
    case 2: return std::max(a, b);
    case 3: return std::min(a, b);
    default: return a + b;  // sum, and average
  }
}
// elements [first, first + n) of all ranks, combined
std::vector<char> reduced(const Round& round, size_t first, size_t n) {
  const Part& any = round[0];
  std::vector<char> out(n * type_bytes[any.type]);
  for (size_t i = 0; i < n; i++) {
    long double value = load(any.in, first + i, any.type);
    for (size_t r = 1; r < round.size(); r++)
      value = combined(value, load(round[r].in, first + i, any.type), any.op);
    if (any.op == 4) value /= round.size();
    store(out.data(), i, any.type, value);
  }
  return out;
}

void work(const Round& round) {
  const Part& any = round[0];
  size_t bytes = any.n * type_bytes[any.type];
  std::vector<std::vector<char>> parts;  // whole before anything is written: in may be out
  switch (any.kind) {
    case Kind::broadcast:
      for (const Part& part : round) memmove(part.out, round[any.root].in, bytes);
      break;
    case Kind::reduce: {
      auto sum = reduced(round, 0, any.n);
      memcpy(round[any.root].out, sum.data(), bytes);
      break;
    }
    case Kind::all_reduce: {
      auto sum = reduced(round, 0, any.n);
      for (const Part& part : round) memcpy(part.out, sum.data(), bytes);
      break;
    }
    case Kind::all_gather:
      for (const Part& part : round)
        parts.emplace_back((const char*)part.in, (const char*)part.in + bytes);
      for (const Part& part : round)
        for (size_t r = 0; r < parts.size(); r++)
          memcpy((char*)part.out + r * bytes, parts[r].data(), bytes);
      break;
    case Kind::reduce_scatter:
      for (size_t r = 0; r < round.size(); r++) parts.push_back(reduced(round, r * any.n, any.n));
      for (size_t r = 0; r < round.size(); r++) memcpy(round[r].out, parts[r].data(), bytes);
      break;
  }
}

bool has_ended(int pid) {  // also if nobody has asked for its exit status yet
  FILE* stat = fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (!stat) return true;
  char state = '?';
  bool read = fscanf(stat, "%*d (%*[^)]) %c", &state) == 1;
  fclose(stat);
  return read && (state == 'Z' || state == 'X');
}

// What the processes of a group share: a file that each of them maps.
class Link {
 public:
  static constexpr int most_ranks = 64;
  Link(const Id& id, int n, int r) : ranks(n), rank(r), path(path_of(id)) {
    size_t size = sizeof(Head) + ranks * piece_bytes;
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ftruncate(file, size) == 0) {  // zeros, whoever comes first
      void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (at != MAP_FAILED) head = (Head*)at;
    }
    close(file);
  }
  ~Link() {
    if (head) munmap(head, sizeof(Head) + ranks * piece_bytes);
  }
  Link(const Link&) = delete;

  bool meet() {  // with all others; none who comes later finds the file
    if (!head) return false;
    head->pids[rank] = getpid();
    bool all = together();
    unlink(path.c_str());
    return all;
  }
  void exchange(const Part& part) {  // on the device's thread, as long as a kernel would run
    Call mine{(int)part.kind, part.type, part.op, part.root, part.n};
    head->calls[rank] = mine;
    size_t each = type_bytes[part.type];
    // of reduce_scatter a piece holds some elements of every rank's part
    size_t most = piece_bytes / each / (part.kind == Kind::reduce_scatter ? ranks : 1);
    for (size_t first = 0; first < part.n && !failed; first += most) {
      size_t n = std::min(most, part.n - first);
      give(part, first, n);
      if (!together()) return;
      for (int r = 0; r < ranks; r++)
        if (memcmp(&head->calls[r], &mine, sizeof mine)) return fail("ranks call different things");
      take(part, first, n);
      if (!together()) return;
    }
  }
  void abort() { aborted = true; }
  std::atomic<bool> failed{false};

 private:
  struct Call {
    int kind, type, op, root;
    size_t n;
  };
  static constexpr size_t piece_bytes = 1 << 18;
  struct Head {
    std::atomic<uint32_t> steps[most_ranks];  // how often each has come together with the others
    std::atomic<int> pids[most_ranks];
    Call calls[most_ranks];
  };

  static std::string path_of(const Id& id) {
    return "/dev/shm/played_nccl_" + std::string(id.bytes, strnlen(id.bytes, 32));
  }
  char* piece(int r) const { return (char*)(head + 1) + r * piece_bytes; }

  void give(const Part& part, size_t first, size_t n) {
    size_t each = type_bytes[part.type];
    int parts = part.kind == Kind::reduce_scatter ? ranks : 1;
    for (int r = 0; r < parts; r++)
      memcpy(piece(rank) + r * n * each, (const char*)part.in + (r * part.n + first) * each,
             n * each);
  }
  void take(const Part& part, size_t first, size_t n) {
    size_t each = type_bytes[part.type];
    char* out = (char*)part.out + first * each;
    Round given;
    for (int r = 0; r < ranks; r++) {
      given.push_back(part);
      given.back().in = piece(r);
    }
    switch (part.kind) {
      case Kind::broadcast: memcpy(out, piece(part.root), n * each); break;
      case Kind::reduce:
        if (rank == part.root) memcpy(out, reduced(given, 0, n).data(), n * each);
        break;
      case Kind::all_reduce: memcpy(out, reduced(given, 0, n).data(), n * each); break;
      case Kind::all_gather:
        for (int r = 0; r < ranks; r++) memcpy(out + r * part.n * each, piece(r), n * each);
        break;
      case Kind::reduce_scatter:
        memcpy(out, reduced(given, rank * n, n).data(), n * each);
        break;
    }
  }
  // wait for the others; false if one of them is gone or the group has been given up
  bool together() {
    uint32_t now = ++head->steps[rank];
    for (int r = 0; r < ranks; r++)
      for (int turn = 0; (int32_t)(head->steps[r] - now) < 0; turn++) {
        if (aborted) return failed = true, false;
        int pid = head->pids[r];
        if (pid && turn % 1000 == 999 && has_ended(pid)) {
          fail("a process of the group has ended");
          return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(turn < 100 ? 10 : 100));
      }
    return true;
  }
  void fail(const char* why) {
    failed = true;
    fprintf(stderr, "played NCCL, rank %d: %s\n", rank, why);
  }

  int ranks, rank;
  std::string path;
  Head* head = nullptr;
  std::atomic<bool> aborted{false};
};

// `later` goes on when `earlier` has done what it was given
void follow(cudaStream_t later, cudaStream_t earlier) {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, earlier);
  cudaStreamWaitEvent(later, event, 0);
  cudaEventDestroy(event);
}

Result run(Round round) {
  std::sort(round.begin(), round.end(),
            [](const Part& a, const Part& b) { return a.comm->rank < b.comm->rank; });
  const Part any = round[0];
  if (any.type < 0 || any.type >= n_types || any.op < 0 || any.op > 4) return invalid_argument;
  cudaStream_t first = any.stream;
  for (size_t r = 1; r < round.size(); r++) follow(first, round[r].stream);
  played::Item item;
  item.name = played_intern(names[(int)any.kind]);
  item.bytes = any.n * type_bytes[any.type];
  item.run = [round] { work(round); };
  if (played_launch(first, &item)) return invalid_usage;
  for (size_t r = 1; r < round.size(); r++) {
    follow(round[r].stream, first);
    played::Item beside;  // the kernel of this device, whose part the first one has done
    beside.name = item.name;
    beside.bytes = item.bytes;
    if (played_launch(round[r].stream, &beside)) return invalid_usage;
  }
  return success;
}

Result across(const Part& part) {
  if (part.type < 0 || part.type >= n_types || part.op < 0 || part.op > 4) return invalid_argument;
  played::Item item;
  item.name = played_intern(names[(int)part.kind]);
  item.bytes = part.n * type_bytes[part.type];
  item.run = [part, link = part.comm->link] { link->exchange(part); };
  return played_launch(part.stream, &item) ? invalid_usage : success;
}

thread_local int depth = 0;
thread_local std::vector<Part> asked;

Result flush() {
  // the k-th call of each rank belongs to one collective
  std::map<Clique*, std::vector<Round>> rounds;
  std::map<Comm*, size_t> calls;
  std::vector<Part> now;
  now.swap(asked);
  for (const Part& part : now) {
    if (part.comm->link) {
      if (Result e = across(part)) return e;
      continue;
    }
    auto& of_clique = rounds[part.comm->clique.get()];
    size_t k = calls[part.comm]++;
    if (of_clique.size() <= k) of_clique.resize(k + 1);
    of_clique[k].push_back(part);
  }
  for (auto& [clique, all] : rounds)
    for (auto& round : all) {
      bool whole = (int)round.size() == clique->ranks;
      for (const Part& part : round) whole = whole && part.kind == round[0].kind;
      if (!whole) return invalid_usage;
      if (Result e = run(std::move(round))) return e;
    }
  return success;
}
Result ask(Part part) {
  asked.push_back(part);
  return depth ? success : flush();
}
Result join(void** out, int ranks, const Id& id, int rank) {
  std::shared_ptr<Link> link;
  if (ranks > 1) {
    if (ranks > Link::most_ranks || rank < 0 || rank >= ranks) return invalid_argument;
    link = std::make_shared<Link>(id, ranks, rank);
    if (!link->meet()) return remote_error;
  }
  *out = new Comm{std::make_shared<Clique>(Clique{ranks}), rank, link};
  return success;
}
}  // namespace

EXPORT const char* ncclGetErrorString(int) {
  return "played CUDA: NCCL sends and receives nothing here, splits no group of processes, and ends "
         "with the first process of a group";
}
EXPORT const char* ncclGetLastError(void*) { return ncclGetErrorString(0); }
EXPORT int ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof *id);
  unsigned char random[16];
  FILE* source = fopen("/dev/urandom", "rb");
  bool whole = source && fread(random, 1, sizeof random, source) == sizeof random;
  if (source) fclose(source);
  if (!whole) return system_error;
  for (int i = 0; i < 16; i++) snprintf(id->bytes + 2 * i, 3, "%02x", random[i]);
  return success;
}
EXPORT int ncclCommInitAll(void** comms, int n, const int*) {
  auto clique = std::make_shared<Clique>(Clique{n});
  for (int i = 0; i < n; i++) comms[i] = new Comm{clique, i};
  return success;
}
EXPORT int ncclCommInitRank(void** comm, int ranks, Id id, int rank) {
  return join(comm, ranks, id, rank);
}
EXPORT int ncclCommInitRankConfig(void** comm, int ranks, Id id, int rank, void*) {
  return join(comm, ranks, id, rank);
}
EXPORT int ncclCommInitRankScalable(void** comm, int ranks, int rank, int, Id* ids, void*) {
  return join(comm, ranks, ids[0], rank);
}
EXPORT int ncclCommSplit(Comm* comm, int color, int, void** out, void*) {
  *out = nullptr;
  if (color < 0) return success;
  return comm->clique->ranks == 1 ? join(out, 1, Id{}, 0) : invalid_usage;
}
EXPORT int ncclCommDestroy(Comm* comm) {
  delete comm;
  return success;
}
EXPORT int ncclCommAbort(Comm* comm) {
  if (comm->link) comm->link->abort();
  return ncclCommDestroy(comm);
}
EXPORT int ncclCommGetAsyncError(Comm* comm, int* e) {
  *e = comm->link && comm->link->failed ? remote_error : success;
  return success;
}
EXPORT int ncclCommCount(Comm* comm, int* n) {
  *n = comm->clique->ranks;
  return success;
}
EXPORT int ncclCommUserRank(Comm* comm, int* rank) {
  *rank = comm->rank;
  return success;
}
EXPORT int ncclGroupStart() {
  depth++;
  return success;
}
EXPORT int ncclGroupEnd() {
  if (depth > 0) depth--;
  return depth ? success : flush();
}
EXPORT int ncclBroadcast(const void* in, void* out, size_t n, int type, int root, Comm* comm,
                         cudaStream_t s) {
  return ask({Kind::broadcast, in, out, n, type, 0, root, comm, s});
}
EXPORT int ncclBcast(void* data, size_t n, int type, int root, Comm* comm, cudaStream_t s) {
  return ncclBroadcast(data, data, n, type, root, comm, s);
}
EXPORT int ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, Comm* comm,
                      cudaStream_t s) {
  return ask({Kind::reduce, in, out, n, type, op, root, comm, s});
}
EXPORT int ncclAllReduce(const void* in, void* out, size_t n, int type, int op, Comm* comm,
                         cudaStream_t s) {
  return ask({Kind::all_reduce, in, out, n, type, op, 0, comm, s});
}
EXPORT int ncclAllGather(const void* in, void* out, size_t n, int type, Comm* comm,
                         cudaStream_t s) {
  return ask({Kind::all_gather, in, out, n, type, 0, 0, comm, s});
}
EXPORT int ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, Comm* comm,
                             cudaStream_t s) {
  return ask({Kind::reduce_scatter, in, out, n, type, op, 0, comm, s});
}
EXPORT int ncclSend(const void*, size_t, int, int, Comm*, cudaStream_t) { return invalid_usage; }
EXPORT int ncclRecv(void*, size_t, int, int, Comm*, cudaStream_t) { return invalid_usage; }
EXPORT int ncclAlltoAll(const void*, void*, size_t, int, Comm*, cudaStream_t) {
  return invalid_usage;
}
