// The libraries of CUDA and NCCL, loaded when they are first asked for. Their headers give the
// types of the functions; nothing is linked.
#include "armillary/comm/nccl/api.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/nccl.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

// Communicators of one device are aborted in one group since 2.22; before, aborting the first of
// them could wait for the kernels of the second. The version of the headers does not matter: NCCL
// takes no more of the options than it knows.
constexpr int kLeastNccl = NCCL_VERSION(2, 22, 0);

/// A shared library, which stays loaded.
class Library {
 public:
  /// The first of the names that is loaded already, or else can be. @throws InvalidArgument.
  explicit Library(std::initializer_list<const char*> names) : name_(*names.begin()) {
    for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
      for (const char* name : names) {
        if (!handle_) handle_ = dlopen(name, flags);
      }
    }
    if (!handle_) {
      fail<InvalidArgument>(
          "nccl: {} cannot be loaded ({}); its folder in LD_LIBRARY_PATH is required", name_,
          dlerror());
    }
  }

  template <class Function>
  Function find(const char* symbol) const {
    void* const address = dlsym(handle_, symbol);
    if (!address) {
      fail<InvalidArgument>("nccl: {} has no function {}; a newer one is required", name_, symbol);
    }
    return reinterpret_cast<Function>(address);
  }

 private:
  const char* name_;
  void* handle_ = nullptr;
};

// A member `name` that is the function of that name.
// A declaration takes no parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define ARMILLARY_FUNCTION(library, name) \
  decltype(&::name) name = library.find<decltype(&::name)>(#name)
// NOLINTEND(bugprone-macro-parentheses)

/// Functions of CUDA's runtime. The streams of one version are those of the other.
struct Cuda {
  Library library{"libcudart.so.13", "libcudart.so.12", "libcudart.so"};
  ARMILLARY_FUNCTION(library, cudaGetErrorString);
  ARMILLARY_FUNCTION(library, cudaGetLastError);
  ARMILLARY_FUNCTION(library, cudaGetDeviceCount);
  ARMILLARY_FUNCTION(library, cudaSetDevice);
  ARMILLARY_FUNCTION(library, cudaStreamCreateWithFlags);
  ARMILLARY_FUNCTION(library, cudaStreamDestroy);
  ARMILLARY_FUNCTION(library, cudaEventCreateWithFlags);
  ARMILLARY_FUNCTION(library, cudaEventRecord);
  ARMILLARY_FUNCTION(library, cudaEventQuery);
  ARMILLARY_FUNCTION(library, cudaEventDestroy);
  ARMILLARY_FUNCTION(library, cudaDeviceCanAccessPeer);
  ARMILLARY_FUNCTION(library, cudaMemPoolCreate);
  ARMILLARY_FUNCTION(library, cudaMemPoolSetAccess);
  ARMILLARY_FUNCTION(library, cudaMemPoolDestroy);
  // CUDA overloads it, so its type is written here.
  using Allocate = cudaError_t (*)(void**, std::size_t, cudaMemPool_t, cudaStream_t);
  Allocate cudaMallocFromPoolAsync = library.find<Allocate>("cudaMallocFromPoolAsync");
  ARMILLARY_FUNCTION(library, cudaFreeAsync);
  ARMILLARY_FUNCTION(library, cudaMemcpyAsync);
  ARMILLARY_FUNCTION(library, cudaMemcpy2DAsync);
};

struct Nccl {
  Library library{"libnccl.so.2"};
  ARMILLARY_FUNCTION(library, ncclGetVersion);
  ARMILLARY_FUNCTION(library, ncclGetErrorString);
  ARMILLARY_FUNCTION(library, ncclGetLastError);
  ARMILLARY_FUNCTION(library, ncclGetUniqueId);
  ARMILLARY_FUNCTION(library, ncclCommInitRankConfig);
  ARMILLARY_FUNCTION(library, ncclCommGetAsyncError);
  ARMILLARY_FUNCTION(library, ncclGroupStart);
  ARMILLARY_FUNCTION(library, ncclGroupEnd);
  ARMILLARY_FUNCTION(library, ncclSend);
  ARMILLARY_FUNCTION(library, ncclRecv);
  ARMILLARY_FUNCTION(library, ncclAllReduce);
  ARMILLARY_FUNCTION(library, ncclReduceScatter);
  ARMILLARY_FUNCTION(library, ncclAllGather);
  ARMILLARY_FUNCTION(library, ncclBroadcast);
  ARMILLARY_FUNCTION(library, ncclCommFinalize);
  ARMILLARY_FUNCTION(library, ncclCommDestroy);
  ARMILLARY_FUNCTION(library, ncclCommAbort);
};

#undef ARMILLARY_FUNCTION

cudaStream_t native(GpuStream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t native(GpuEvent event) {
  return reinterpret_cast<cudaEvent_t>(event);
}
ncclComm_t native(NcclComm comm) {
  return reinterpret_cast<ncclComm_t>(comm);
}

ncclDataType_t native(ElementType dtype) {
  constexpr std::array kTypes{ncclUint8,   ncclInt64,   ncclBfloat16,
                              ncclFloat16, ncclFloat32, ncclFloat64};
  return kTypes[static_cast<std::size_t>(dtype)];
}
ncclRedOp_t native(Reduction reduction) {
  return reduction == Reduction::Sum ? ncclSum : ncclMax;
}

class LoadedNccl : public NcclApi {
 public:
  /// @throws InvalidArgument if a library is missing or too old, or there is no device.
  LoadedNccl() {
    int version = 0;
    nccl_.ncclGetVersion(&version);
    if (version < kLeastNccl) {
      fail<InvalidArgument>("nccl: the library has version {}; {} or a newer one is required",
                            version, kLeastNccl);
    }
    int count = 0;
    const cudaError_t error = cuda_.cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      fail<InvalidArgument>("nccl: no CUDA device ({}); one GPU and its driver are required",
                            cuda_.cudaGetErrorString(error));
    }
  }

  ~LoadedNccl() override {
    if (pool_) cuda_.cudaMemPoolDestroy(pool_);
  }

  int devices() override {
    int count = 0;
    check(cuda_.cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    return count;
  }
  // NCCL's kernels of other devices in this process may read and write memory of messages
  // directly, which memory of CUDA's own pool does not allow.
  void use_device(int device) override {
    check(cuda_.cudaSetDevice(device), "cudaSetDevice");
    if (pool_) check(cuda_.cudaMemPoolDestroy(std::exchange(pool_, nullptr)), "cudaMemPoolDestroy");
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    check(cuda_.cudaMemPoolCreate(&pool_, &props), "cudaMemPoolCreate");
    for (int other = 0; other < devices(); ++other) {
      int can = 0;
      if (other == device) continue;
      check(cuda_.cudaDeviceCanAccessPeer(&can, other, device), "cudaDeviceCanAccessPeer");
      if (!can) continue;
      cudaMemAccessDesc access = {};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = other;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      check(cuda_.cudaMemPoolSetAccess(pool_, &access, 1), "cudaMemPoolSetAccess");
    }
  }
  GpuStream make_stream() override {
    cudaStream_t stream = nullptr;
    check(cuda_.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return reinterpret_cast<GpuStream>(stream);
  }
  void drop_stream(GpuStream stream) override {
    check(cuda_.cudaStreamDestroy(native(stream)), "cudaStreamDestroy");
  }
  GpuEvent record(GpuStream stream) override {
    cudaEvent_t event = nullptr;
    check(cuda_.cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    check(cuda_.cudaEventRecord(event, native(stream)), "cudaEventRecord");
    return reinterpret_cast<GpuEvent>(event);
  }
  bool is_done(GpuEvent event) override {
    const cudaError_t error = cuda_.cudaEventQuery(native(event));
    if (error != cudaErrorNotReady) check(error, "cudaEventQuery");
    return error == cudaSuccess;
  }
  void drop_event(GpuEvent event) override {
    check(cuda_.cudaEventDestroy(native(event)), "cudaEventDestroy");
  }
  std::byte* allocate(std::int64_t bytes, GpuStream stream) override {
    void* memory = nullptr;
    check(cuda_.cudaMallocFromPoolAsync(&memory, static_cast<std::size_t>(bytes), pool_,
                                        native(stream)),
          "cudaMallocFromPoolAsync");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, GpuStream stream) override {
    check(cuda_.cudaFreeAsync(memory, native(stream)), "cudaFreeAsync");
  }
  void copy(const RowCopy& rows, GpuStream stream) override {
    const auto row_bytes = static_cast<std::size_t>(rows.row_bytes);
    // One row is copied as such, because strides have a limit and rows have none.
    if (rows.rows == 1) {
      check(cuda_.cudaMemcpyAsync(rows.to, rows.from, row_bytes, cudaMemcpyDefault, native(stream)),
            "cudaMemcpyAsync");
      return;
    }
    check(cuda_.cudaMemcpy2DAsync(rows.to, static_cast<std::size_t>(rows.to_stride), rows.from,
                                  static_cast<std::size_t>(rows.from_stride), row_bytes,
                                  static_cast<std::size_t>(rows.rows), cudaMemcpyDefault,
                                  native(stream)),
          "cudaMemcpy2DAsync");
  }

  NcclId make_id() override {
    ncclUniqueId id;
    check(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    NcclId result;
    static_assert(sizeof(result.bytes) == NCCL_UNIQUE_ID_BYTES);
    std::memcpy(result.bytes.data(), id.internal, sizeof(id.internal));
    return result;
  }
  NcclComm begin_init(const NcclInit& init) override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = init.most_blocks;
    ncclUniqueId id;
    std::memcpy(id.internal, init.id.bytes.data(), sizeof(id.internal));
    ncclComm_t comm = nullptr;
    check(nccl_.ncclCommInitRankConfig(&comm, init.world, id, init.rank, &config),
          "ncclCommInitRankConfig");
    return reinterpret_cast<NcclComm>(comm);
  }
  bool ready(NcclComm comm) override {
    ncclResult_t state = ncclSuccess;
    check(nccl_.ncclCommGetAsyncError(native(comm), &state), "ncclCommGetAsyncError");
    check(state, "a communicator");
    return state == ncclSuccess;
  }
  void begin_group() override { check(nccl_.ncclGroupStart(), "ncclGroupStart"); }
  void end_group() override { check(nccl_.ncclGroupEnd(), "ncclGroupEnd"); }
  void drop_group() noexcept override { nccl_.ncclGroupEnd(); }
  void send(NcclComm comm, GpuStream stream, std::span<const std::byte> bytes, int peer) override {
    check(nccl_.ncclSend(bytes.data(), bytes.size(), ncclUint8, peer, native(comm), native(stream)),
          "ncclSend");
  }
  void receive(NcclComm comm, GpuStream stream, std::span<std::byte> bytes, int peer) override {
    check(nccl_.ncclRecv(bytes.data(), bytes.size(), ncclUint8, peer, native(comm), native(stream)),
          "ncclRecv");
  }
  void all_reduce(NcclComm comm, GpuStream stream, const Array& values,
                  Reduction reduction) override {
    check(nccl_.ncclAllReduce(values.data, values.data, count(values), native(values.dtype),
                              native(reduction), native(comm), native(stream)),
          "ncclAllReduce");
  }
  void reduce_scatter(NcclComm comm, GpuStream stream, const Array& all, const Array& mine,
                      Reduction reduction) override {
    check(nccl_.ncclReduceScatter(all.data, mine.data, count(mine), native(mine.dtype),
                                  native(reduction), native(comm), native(stream)),
          "ncclReduceScatter");
  }
  void all_gather(NcclComm comm, GpuStream stream, const Array& mine, const Array& all) override {
    check(nccl_.ncclAllGather(mine.data, all.data, count(mine), native(mine.dtype), native(comm),
                              native(stream)),
          "ncclAllGather");
  }
  void broadcast(NcclComm comm, GpuStream stream, const Array& values, int root) override {
    check(nccl_.ncclBroadcast(values.data, values.data, count(values), native(values.dtype), root,
                              native(comm), native(stream)),
          "ncclBroadcast");
  }
  void begin_end(NcclComm comm) override {
    check(nccl_.ncclCommFinalize(native(comm)), "ncclCommFinalize");
  }
  void drop(NcclComm comm) override {
    check(nccl_.ncclCommDestroy(native(comm)), "ncclCommDestroy");
  }
  void abort(std::span<const NcclComm> comms) override {
    begin_group();
    ncclResult_t first = ncclSuccess;
    for (const NcclComm comm : comms) {
      const ncclResult_t result = nccl_.ncclCommAbort(native(comm));
      if (first == ncclSuccess) first = result;
    }
    end_group();
    check(first, "ncclCommAbort");
  }

 private:
  static std::size_t count(const Array& values) { return static_cast<std::size_t>(values.count); }

  void check(cudaError_t error, const char* call) const {
    if (error != cudaSuccess) {
      cuda_.cudaGetLastError();  // It is told here; nobody else is to find it.
      fail<CommError>("nccl: {}: {}", call, cuda_.cudaGetErrorString(error));
    }
  }
  /// A call that has not ended is no error: ready() tells when it has.
  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    std::string text = nccl_.ncclGetLastError(nullptr);
    if (!text.empty()) text = fmt::format(" ({})", text.substr(0, text.find('\n')));
    fail<CommError>("nccl: {}: {}{}", call, nccl_.ncclGetErrorString(result), text);
  }

  const Cuda cuda_;
  const Nccl nccl_;
  cudaMemPool_t pool_ = nullptr;  ///< Memory pool of the device in use.
};

}  // namespace

std::unique_ptr<NcclApi> load_nccl() {
  return std::make_unique<LoadedNccl>();
}

std::string nccl_missing() {
  try {
    load_nccl();
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

}  // namespace armillary::comm
