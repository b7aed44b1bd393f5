// The part of the CUDA driver's binary interface that the emulated device has.
#pragma once

#include <cstddef>

extern "C" {

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
}

namespace heed::device {

constexpr CUresult cuda_success = 0;
constexpr CUresult cuda_invalid_value = 1;
constexpr CUresult cuda_out_of_memory = 2;
constexpr CUresult cuda_not_initialized = 3;
constexpr CUresult cuda_no_device = 100;
constexpr CUresult cuda_invalid_device = 101;
constexpr CUresult cuda_invalid_image = 200;
constexpr CUresult cuda_invalid_context = 201;
constexpr CUresult cuda_no_binary_for_gpu = 209;
constexpr CUresult cuda_invalid_ptx = 218;
constexpr CUresult cuda_unsupported_ptx_version = 222;
constexpr CUresult cuda_invalid_handle = 400;
constexpr CUresult cuda_not_found = 500;
constexpr CUresult cuda_not_ready = 600;
constexpr CUresult cuda_illegal_address = 700;
constexpr CUresult cuda_launch_failed = 719;
constexpr CUresult cuda_not_supported = 801;
constexpr CUresult cuda_capture_unsupported = 900;
constexpr CUresult cuda_capture_invalidated = 901;
constexpr CUresult cuda_capture_unmatched = 903;
constexpr CUresult cuda_capture_implicit = 906;
constexpr CUresult cuda_capture_wrong_thread = 908;
constexpr CUresult cuda_unknown = 999;

// CUstreamCaptureMode.
constexpr int capture_global = 0, capture_thread_local = 1, capture_relaxed = 2;
// CUstreamCaptureStatus.
constexpr int capture_none = 0, capture_active = 1, capture_broken = 2;

}  // namespace heed::device
