/* Device memory in C99, of the CUDA driver that the system has: the primary context of the first device. Every function
 * ends the process with a sentence where the driver fails. Link with dl. */
#ifndef HEED_TEST_CUDA_MEMORY_H
#define HEED_TEST_CUDA_MEMORY_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cuda_memory {
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*release)(uint64_t address);
    int (*copy_to_device)(uint64_t to, const void *from, size_t bytes);
    int (*copy_to_host)(void *to, uint64_t from, size_t bytes);
} cuda_memory;

static inline void cuda_check(int code, const char *call) {
    if (code == 0) return;
    fprintf(stderr, "%s: CUDA error %d\n", call, code);
    exit(1);
}

static inline void cuda_look_up(void *library, const char *name, void *function) {
    void *const address = dlsym(library, name);
    cuda_check(address == NULL, name);
    memcpy(function, &address, sizeof(address)); /* ISO C has no cast of objects to functions */
}

/* Makes the context current on this thread. */
static inline cuda_memory cuda_start(void) {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL;
    cuda_memory memory;
    cuda_check(library == NULL, "libcuda.so.1");
    cuda_look_up(library, "cuInit", &init);
    cuda_look_up(library, "cuDevicePrimaryCtxRetain", &retain);
    cuda_look_up(library, "cuCtxSetCurrent", &set_current);
    cuda_look_up(library, "cuMemAlloc_v2", &memory.allocate);
    cuda_look_up(library, "cuMemFree_v2", &memory.release);
    cuda_look_up(library, "cuMemcpyHtoD_v2", &memory.copy_to_device);
    cuda_look_up(library, "cuMemcpyDtoH_v2", &memory.copy_to_host);
    cuda_check(init(0), "cuInit");
    cuda_check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    cuda_check(set_current(context), "cuCtxSetCurrent");
    return memory;
}

static inline void *cuda_allocate(const cuda_memory *memory, size_t bytes) {
    uint64_t address = 0;
    cuda_check(memory->allocate(&address, bytes), "cuMemAlloc");
    return (void *)(uintptr_t)address;
}

#endif
